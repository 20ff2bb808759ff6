// SPDX-License-Identifier: Apache-2.0
// Parts of few rows that ranks on GPUs of one process exchange by a launch on each, without a
// library and without a host: a rank writes its part into memory of every other rank, its window,
// tells them, and waits there for theirs. CUDA only.
//
// A launch's blocks, of which all run at the same time, are channels: a block hands its pieces of
// the part to the block of its number on the other ranks, and counts its exchanges. The count gives
// the half of the window that is in use: a rank that begins exchange i + 2 has seen that all others
// have begun i + 1, and so have read what i left in that half. A place in the window belongs to one
// channel whatever the part's size, so that exchanges of different sizes may follow each other.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/device.h"
#include "kernels/partial_sums.h"

namespace sluice::kernels {

inline constexpr int32_t kMostPeers = 8;
inline constexpr int64_t kPeerHeadBytes = 4096;              // of a window: the channels' counts
inline constexpr int64_t kPeerHalfBytes = int64_t{2} << 20;  // of a window, for parts
inline constexpr int64_t kPeerWindowBytes = kPeerHeadBytes + 2 * kPeerHalfBytes;

// Returns the bytes of the largest part among so many ranks: 64 rows of 4096 floats with 2.
constexpr int64_t most_peer_bytes(int32_t size) { return kPeerHalfBytes / size; }

// One rank's view of all windows, which its device writes and reads.
struct PeerWindows {
  int32_t rank = 0;
  int32_t size = 1;  // 2, 4 or 8
  // By rank: kPeerWindowBytes on its device, 256-byte aligned, zeros before the first exchange.
  std::array<std::byte*, kMostPeers> windows = {};
  // The group's, in pinned host memory: where it is not 0 no rank waits, and exchanges give nothing
  // from then on. A wait that takes longer than the limit sets it for all.
  uint32_t* stop = nullptr;
  int64_t limit_ns = 0;
};

// Every rank calls these two in the same order with equal sizes. A launch of one rank blocks its
// device until the others have theirs.
struct GatherPeersArgs {
  const PeerWindows* peers;
  std::span<const std::byte> part;  // this rank's, a multiple of 4 and at most most_peer_bytes()
  std::byte* received;              // all ranks' in order, 16-byte aligned
};

void gather_peers(const ExecContext& ctx, const GatherPeersArgs& args);

// join_parts(), of whose parts `join.parts` has this rank's alone, of at most most_peer_bytes();
// the others come in the same launch.
struct JoinPeerPartsArgs {
  const PeerWindows* peers;
  JoinPartsArgs join;
};

void join_peer_parts(const ExecContext& ctx, const JoinPeerPartsArgs& args);

// Lets work of another device of this process write and read an allocation of a device, `window`,
// until its release; on the host's memory and on devices that do not reach each other, false.
bool open_window(DeviceMemory& memory, std::span<std::byte> window, DeviceMemory& with);

}  // namespace sluice::kernels
