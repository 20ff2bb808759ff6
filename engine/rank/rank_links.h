// SPDX-License-Identifier: Apache-2.0
// How rank 0 reaches the other ranks of its model: threads (followers.h) or processes
// (process_links.h).
#pragma once

#include "engine/rank/model_rank.h"

namespace sluice {

// start(), finish() and the destructor run on rank 0's thread, which does the same job in between.
class RankLinks {
 public:
  RankLinks() = default;
  virtual ~RankLinks() = default;
  RankLinks(const RankLinks&) = delete;
  RankLinks& operator=(const RankLinks&) = delete;

  virtual void start(const RankJob& job) = 0;
  // Returns when the other ranks no longer read the job.
  virtual void finish() = 0;
};

}  // namespace sluice
