// SPDX-License-Identifier: Apache-2.0
// How CPU ranks in several processes exchange results: each sends its part to rank 0 while rank 0
// sends its own, and rank 0 hands the others' parts on. Each part carries its rank's state and a
// hash, so that a word that was changed on the way fails the group instead of an answer.
#pragma once

#include <memory>

#include "engine/parallel/parallel.h"

namespace sluice {

class RankGroup;

// Bytes in which such a rank receives parts of at most `part_bytes`.
int64_t stream_rank_bytes(int32_t size, int64_t part_bytes);

// The endpoint of the group's own rank. The group must outlive it.
std::unique_ptr<Communicator> make_stream_rank(RankGroup& group);

}  // namespace sluice
