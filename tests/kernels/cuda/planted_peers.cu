// SPDX-License-Identifier: Apache-2.0
#include "tests/kernels/cuda/planted_peers.h"

#include "kernels/cuda/gpu.h"
#include "kernels/cuda/peers.h"

namespace sluice::kernels::test {
namespace {

using Shape = PeersShape;
namespace ptx = gpu::ptx;

struct Channel {
  uint32_t number;
  uint32_t arrived[2];
};

template <PeersBug kBug>
__device__ __forceinline__ float* half_of(const PeerWindows& peers, int32_t rank, uint32_t half) {
  half = kBug == PeersBug::kOneHalf ? 0 : half % 2;
  return reinterpret_cast<float*>(peers.windows[static_cast<size_t>(rank)] + kPeerHeadBytes) +
         half * Shape::kWords;
}

template <PeersBug kBug>
__global__ void __launch_bounds__(Shape::kThreads, 1) peers_kernel(
    const __grid_constant__ PeerWindows peers, uint32_t launch, const float* own, float* out) {
  GPU_SHARED(uint32_t, has_come, 1);
  const auto thread = static_cast<int>(threadIdx.x);
  const int word = static_cast<int>(blockIdx.y) * Shape::kThreads + thread;
  const int32_t peer = 1 - peers.rank;
  const auto channel = [&](int32_t rank) {
    return reinterpret_cast<Channel*>(peers.windows[static_cast<size_t>(rank)]) + blockIdx.y;
  };
  uint32_t number = channel(peers.rank)->number + 1;
  // Recorded work has the number of its recording.
  if (kBug == PeersBug::kCountOfTheLaunch) number = launch < 2 ? launch : 2;
  if (word < Shape::kWords) {
    half_of<kBug>(peers, peer, number)[word] = own[word];
  }
  if (kBug != PeersBug::kNoBarrierBeforeTelling) __syncthreads();
  if (thread == 0) {
    uint32_t* const told = &channel(peer)->arrived[peers.rank];
    if (kBug == PeersBug::kNoRelease) {
      *told = number;
    } else {
      ptx::tell_peer(told, number);
    }
    has_come[0] = 1;
    if (kBug != PeersBug::kNoWait) {
      const uint32_t* const arrived = &channel(peers.rank)->arrived[peer];
      has_come[0] = ptx::wait_for_peer(arrived, number, peers.stop, peers.limit_ns) ? 1 : 0;
    }
    channel(peers.rank)->number = number;
  }
  if (kBug == PeersBug::kNoBarrierBehindTheWait) {
    __syncwarp();
    if (word >= Shape::kWords) return;
  } else {
    __syncthreads();
    if (has_come[0] == 0 || word >= Shape::kWords) return;
  }
  const float other = half_of<kBug>(peers, peers.rank, number)[word];
  out[word] = peers.rank == 0 ? __fsub_rn(own[word], other) : __fsub_rn(other, own[word]);
}

}  // namespace

std::vector<float> run_peers(PeersBug bug,
                             const PeerWindows& windows,
                             uint32_t number,
                             const std::vector<float>& own) {
  std::vector<float> out(Shape::kWords, -1.0F);
  const bool more = bug == PeersBug::kOneBlockMore && windows.rank == 1;
  const int64_t blocks = more ? 3 : 2;
  with_bug<PeersBug::kOneBlockMore>(bug, [&]<PeersBug kBug>() {
    gpu::launch_together(nullptr,
                         blocks,
                         Shape::kThreads,
                         false,
                         peers_kernel<kBug>,
                         windows,
                         number,
                         own.data(),
                         out.data());
  });
  return out;
}

}  // namespace sluice::kernels::test
