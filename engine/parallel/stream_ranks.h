// SPDX-License-Identifier: Apache-2.0
// How CPU ranks in several processes exchange results: each sends its part to rank 0 while rank 0
// sends its own, and rank 0 hands the others' parts on. Each part carries a hash, so that a word
// that was changed on the way fails the group instead of an answer.
#pragma once

#include <memory>

#include "engine/parallel/parallel.h"

namespace sluice {

class RankGroup;

// The endpoint of the group's own rank. The group must outlive it.
std::unique_ptr<Communicator> make_stream_rank(RankGroup& group);

}  // namespace sluice
