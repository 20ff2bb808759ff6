// SPDX-License-Identifier: Apache-2.0
// The exchanges of kernels/peer_rows.h. A rank pushes: stores to another device's memory need no
// answer, and it polls its own memory, so that one way over the link is all that an exchange waits
// for; reading the others' parts would take two more.
#include "kernels/cuda/peer_launches.h"

#include <algorithm>

#include "engine/core/status.h"
#include "kernels/cuda/gemm_block.h"
#include "kernels/cuda/gpu.h"
#include "kernels/cuda/join_outputs.h"
#include "kernels/cuda/overlap.h"
#include "kernels/cuda/peers.h"
#include "kernels/cuda/ptx.h"

namespace sluice::kernels::cuda {
namespace {

namespace ptx = gpu::ptx;

constexpr int kPeerThreads = 128;
constexpr int kThreadWords = 4;
constexpr int32_t kPieceWords = kPeerThreads * kThreadWords;

// A block's words in a window. Other ranks write `arrived`, the window's own rank the rest.
struct alignas(64) PeerChannel {
  uint32_t number;               // of the latest exchange
  uint32_t arrived[kMostPeers];  // by rank: the number of its latest exchange
};

// Four words, of which those at a part's end may not count.
struct alignas(16) Words {
  uint32_t word[kThreadWords];
};

static_assert(gpu::kBlocksTogether * sizeof(PeerChannel) <= kPeerHeadBytes);
static_assert(most_peer_bytes(kMostPeers) % sizeof(Words) == 0);

// A rank's part of an exchange.
struct PeerPart {
  PeerWindows peers;
  const uint32_t* own;
  int32_t num_words;
  bool is_aligned;  // own
};

__device__ __forceinline__ PeerChannel* channel_of(const PeerWindows& peers, int32_t rank) {
  return reinterpret_cast<PeerChannel*>(peers.windows[static_cast<size_t>(rank)]) + blockIdx.y;
}

// Returns the place, in the window of rank `of`, of the part of rank `from` in an exchange.
__device__ __forceinline__ std::byte* place_of(const PeerWindows& peers,
                                               int32_t of,
                                               int32_t from,
                                               uint32_t number) {
  return peers.windows[static_cast<size_t>(of)] + kPeerHeadBytes + number % 2 * kPeerHalfBytes +
         from * most_peer_bytes(peers.size);
}

// Calls f(first) for this thread's words of the part, kThreadWords from `first` on.
template <typename F>
__device__ __forceinline__ void for_words(int32_t num_words, F f) {
  const auto thread = static_cast<int32_t>(threadIdx.x) * kThreadWords;
  const auto step = static_cast<int32_t>(gridDim.y) * kPieceWords;
  int32_t first = static_cast<int32_t>(blockIdx.y) * kPieceWords + thread;
  for (; first < num_words; first += step) f(first);
}

__device__ __forceinline__ Words* words_at(std::byte* part, int32_t first) {
  return reinterpret_cast<Words*>(part + int64_t{first} * 4);
}

// Returns words of the rank's own part, with zeros after its end.
__device__ __forceinline__ Words own_words(const PeerPart& part, int32_t first) {
  if (part.is_aligned && first + kThreadWords <= part.num_words) {
    return *reinterpret_cast<const Words*>(part.own + first);
  }
  Words words = {};
#pragma unroll
  for (int i = 0; i < kThreadWords; ++i) {
    if (first + i < part.num_words) words.word[i] = part.own[first + i];
  }
  return words;
}

__device__ __forceinline__ void push(const PeerPart& part, uint32_t number) {
  const PeerWindows& peers = part.peers;
  for (int32_t next = 1; next < peers.size; ++next) {
    std::byte* const to = place_of(peers, (peers.rank + next) % peers.size, peers.rank, number);
    for_words(part.num_words,
              [&](int32_t first) { *words_at(to, first) = own_words(part, first); });
  }
}

// Tells the other ranks' blocks that this block's pieces are in their windows, and waits for
// theirs. False: no rank waits any more.
__device__ __forceinline__ bool meet_peers(const PeerWindows& peers, uint32_t number) {
  GPU_SHARED(uint32_t, has_come, kMostPeers);
  const auto peer = static_cast<int32_t>(threadIdx.x);
  const bool is_peer = peer < peers.size && peer != peers.rank;
  __syncthreads();  // after every thread's stores
  if (is_peer) ptx::tell_peer(&channel_of(peers, peer)->arrived[peers.rank], number);
  __syncwarp();  // all are told before any is waited for
  if (is_peer) {
    const uint32_t* const word = &channel_of(peers, peers.rank)->arrived[peer];
    has_come[peer] = ptx::wait_for_peer(word, number, peers.stop, peers.limit_ns) ? 1 : 0;
  }
  __syncthreads();
  for (int32_t rank = 0; rank < peers.size; ++rank) {
    if (rank != peers.rank && has_come[rank] == 0) return false;
  }
  return true;
}

// Blocks, which are channels, lie along y. Calls take(first, words) with the ranks' words in order,
// if all have come.
template <typename Take>
__device__ __forceinline__ void exchange(const PeerPart& part, Take take) {
  const PeerWindows& peers = part.peers;
  PeerChannel* const channel = channel_of(peers, peers.rank);
  const uint32_t number = channel->number + 1;
  push(part, number);
  if (!meet_peers(peers, number)) return;
  if (threadIdx.x == 0) channel->number = number;
  for_words(part.num_words, [&](int32_t first) {
    Words words[kMostPeers];
#pragma unroll
    for (int32_t rank = 0; rank < kMostPeers; ++rank) {
      if (rank >= peers.size) break;
      words[rank] = rank == peers.rank
                        ? own_words(part, first)
                        : *words_at(place_of(peers, peers.rank, rank, number), first);
    }
    take(first, words);
  });
}

__global__ void __launch_bounds__(kPeerThreads, 1)
    gather_peers_kernel(const __grid_constant__ PeerPart part, uint32_t* received) {
  ptx::start_next_launch();
  ptx::wait_for_launches();
  exchange(part, [&](int32_t first, const Words(&words)[kMostPeers]) {
#pragma unroll
    for (int32_t rank = 0; rank < kMostPeers; ++rank) {
      if (rank >= part.peers.size) break;
      uint32_t* const to = received + int64_t{rank} * part.num_words + first;
      if (part.num_words % kThreadWords == 0) {
        *reinterpret_cast<Words*>(to) = words[rank];
        continue;
      }
      for (int i = 0; i < kThreadWords; ++i) {
        if (first + i < part.num_words) to[i] = words[rank].word[i];
      }
    }
  });
}

__device__ __forceinline__ float sum_from(uint32_t word, float) {
  return __int_as_float(static_cast<int32_t>(word));
}

__device__ __forceinline__ int32_t sum_from(uint32_t word, int32_t) {
  return static_cast<int32_t>(word);
}

template <typename Format>
__global__ void __launch_bounds__(kPeerThreads, 1)
    fold_peers_kernel(const __grid_constant__ PeerPart part,
                      const __grid_constant__ Outputs outputs) {
  ptx::start_next_launch();
  ptx::wait_for_launches();
  exchange(part, [&](int32_t first, const Words(&words)[kMostPeers]) {
#pragma unroll
    for (int i = 0; i < kThreadWords; ++i) {
      const int32_t at = first + i;
      if (at >= part.num_words) break;
      typename Format::Sum s[kSegments];
#pragma unroll
      for (int rank = 0; rank < kSegments; ++rank) {
        if (rank < part.peers.size) s[rank] = sum_from(words[rank].word[i], s[rank]);
      }
      finish<Format>(outputs, fold_segments(s, part.peers.size), 0, at % outputs.n, at / outputs.n);
    }
  });
}

PeerPart peer_part(const PeerWindows& peers, const void* own, int64_t bytes) {
  CHECK_GT(bytes, 0);
  CHECK_EQ(bytes % 4, 0);
  CHECK_LE(bytes, most_peer_bytes(peers.size));
  return {.peers = peers,
          .own = static_cast<const uint32_t*>(own),
          .num_words = static_cast<int32_t>(bytes / 4),
          .is_aligned = reinterpret_cast<uintptr_t>(own) % alignof(Words) == 0};
}

// Starts as many blocks on every rank, whatever its device; a piece is always the same one's.
template <typename... Parameters, typename... Arguments>
void launch(Stream stream,
            const PeerPart& part,
            void (*kernel)(Parameters...),
            const Arguments&... args) {
  const int64_t pieces = ceil_div(part.num_words, kPieceWords);
  gpu::launch_together(stream,
                       std::min<int64_t>(gpu::kBlocksTogether, pieces),
                       kPeerThreads,
                       overlaps(LaunchKind::kRows, 1),
                       kernel,
                       part,
                       args...);
}

}  // namespace

void launch_gather_peers(Stream stream, const GatherPeersArgs& args) {
  const PeerPart part = peer_part(*args.peers, args.part.data(), std::ssize(args.part));
  launch(stream, part, gather_peers_kernel, reinterpret_cast<uint32_t*>(args.received));
}

void launch_join_peer_parts(Stream stream, const JoinPeerPartsArgs& args) {
  CHECK_EQ(args.join.parts.size(), size_t{1});
  const JoinedOutputs joined = joined_outputs(args.join);
  const int64_t bytes = int64_t{joined.outputs.num_rows} * joined.outputs.n * 4;
  const PeerPart part = peer_part(*args.peers, args.join.parts.front(), bytes);
  if (joined.has_heads) return launch(stream, part, fold_peers_kernel<HeadSums>, joined.outputs);
  switch (joined.format) {
    case ActivationFormat::kInt8Token:
      return launch(stream, part, fold_peers_kernel<Int8Sums>, joined.outputs);
    case ActivationFormat::kE4M3Token:
      return launch(stream, part, fold_peers_kernel<E4M3Sums>, joined.outputs);
    default:
      return launch(stream, part, fold_peers_kernel<FloatSums>, joined.outputs);
  }
}

}  // namespace sluice::kernels::cuda
