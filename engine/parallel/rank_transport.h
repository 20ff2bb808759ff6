// SPDX-License-Identifier: Apache-2.0
// Chooses what carries the parts of the ranks of a group: memory that they share, or the
// connections on which they met.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "engine/core/status.h"
#include "engine/parallel/parallel.h"

namespace sluice {

class RankGroup;

inline constexpr std::string_view kTcp = "TCP";
inline constexpr std::string_view kSharedMemory = "shared memory";

struct RankTransport {
  std::unique_ptr<Communicator> rank;
  std::string name;    // one of those above
  std::string reason;  // for this and not the other
};

// Bytes that a rank takes for that, whatever carries it.
int64_t rank_transport_bytes(int32_t size, const ExchangeSizes& sizes);

// Every rank of the group calls it once, with equal values, when it has loaded and before it sends
// anything else. `transport`: auto, shm or tcp (--kv-transport). The group must outlive the
// result, which has failed if the group has. kUnavailable: the group has failed. kUnsupported: shm,
// but a rank shares no memory with rank 0.
Expected<RankTransport> connect_processes(RankGroup& group,
                                          const std::string& transport,
                                          const ExchangeSizes& sizes);

}  // namespace sluice
