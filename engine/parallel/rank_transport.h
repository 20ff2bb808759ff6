// SPDX-License-Identifier: Apache-2.0
// Chooses what carries the parts of the ranks of a stage, and the rows between stages: memory that
// those ranks share, or the connections on which they met.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "engine/core/status.h"
#include "engine/parallel/parallel.h"
#include "engine/parallel/rank_group.h"

namespace sluice {

inline constexpr std::string_view kTcp = "TCP";
inline constexpr std::string_view kSharedMemory = "shared memory";

struct RankTransport {
  std::unique_ptr<Communicator> rank;   // null: its stage has no other
  std::unique_ptr<Communicator> stage;  // null: it is not the first of its stage, or there is one
  std::string name;                     // one of those above, of `rank`, or else of `stage`
  std::string reason;  // for this and not the other
};

// Bytes that such a rank of `size` takes for that, whatever carries it.
int64_t rank_transport_bytes(int32_t rank, int32_t size, const ExchangeSizes& sizes);

// The ranks of a stage, which follow each other, of the `size` ranks of a group.
RankTeam stage_team(int32_t rank, int32_t size, int32_t num_stages);

// Every rank of the group calls it once when it has loaded and before it sends anything else. With
// several stages of several ranks these have met (RankGroup::dial_peer()). `transport`: auto, shm
// or tcp (--kv-transport). The group must outlive the result, which has failed if the group has.
// kUnavailable: the group has failed. kUnsupported: shm, but a rank shares no memory with the
// first one of its stage, or that with rank 0.
Expected<RankTransport> connect_processes(RankGroup& group,
                                          const std::string& transport,
                                          const ExchangeSizes& sizes);

}  // namespace sluice
