// SPDX-License-Identifier: Apache-2.0
// How CPU ranks in several processes exchange results: each sends its part to the first one of them
// while that sends its own, and it hands the others' parts on. Each part carries its rank's state
// and a hash, so that a word that was changed on the way fails the group instead of an answer.
#pragma once

#include <memory>

#include "engine/parallel/parallel.h"

namespace sluice {

class RankGroup;
struct RankTeam;

// Bytes in which such a rank receives parts of at most `part_bytes`.
int64_t stream_rank_bytes(int32_t size, int64_t part_bytes);

// The endpoint of the group's own rank, of this team. The group must outlive it.
std::unique_ptr<Communicator> make_stream_rank(RankGroup& group, const RankTeam& team);

}  // namespace sluice
