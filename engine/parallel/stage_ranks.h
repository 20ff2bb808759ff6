// SPDX-License-Identifier: Apache-2.0
// Stages of a model in processes, of each the first one, as a ring of borders: each hands rows to
// the next one, and the last one to rank 0. Calls of one border wait for no other, so that stages
// work on several steps at a time. Rows carry a hash, and all_gather() is not for them.
#pragma once

#include <cstdint>
#include <memory>

#include "engine/parallel/parallel.h"
#include "engine/parallel/shared_segment.h"

namespace sluice {

class RankGroup;
struct RankTeam;

// Bytes of the shared segment, which are more than a rank takes by TCP.
int64_t shared_stage_bytes(const ExchangeSizes& sizes);

// In the segment, which is of that size and holds zeros at first. The team has one rank of each
// stage, rank 0 first. The group must outlive it.
std::unique_ptr<Communicator> make_shared_stage(RankGroup& group,
                                                const RankTeam& team,
                                                std::unique_ptr<SharedSegment> segment,
                                                const ExchangeSizes& sizes);

// On the group's connections for rows, likewise: threads of rank 0 take what comes and hand on what
// is for another rank.
std::unique_ptr<Communicator> make_stream_stage(RankGroup& group, const RankTeam& team);

}  // namespace sluice
