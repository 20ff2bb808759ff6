// SPDX-License-Identifier: Apache-2.0
// How CPU ranks in processes of one machine exchange results: each writes its part, with its state
// and a hash, into memory that all map and reads the others' where they are. A rank waits on its
// peers' numbers of calls: for some microseconds on a core, then asleep, until the group fails or
// the exchange takes too long.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "engine/parallel/parallel.h"
#include "engine/parallel/shared_segment.h"

namespace sluice {

class RankGroup;
struct RankTeam;

// Bytes of a segment for parts of at most `part_bytes`.
int64_t shared_rank_bytes(int32_t size, int64_t part_bytes);

// The endpoint of the group's own rank, of this team, on such a segment that all the team has. The
// group must outlive it.
std::unique_ptr<Communicator> make_shared_rank(RankGroup& group,
                                               const RankTeam& team,
                                               std::unique_ptr<SharedSegment> segment,
                                               int64_t part_bytes);

}  // namespace sluice
