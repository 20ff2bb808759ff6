// SPDX-License-Identifier: Apache-2.0
// The ranks above 0 of a shared model as other processes: rank 0 sends each job as a frame
// (rank_frame.h), and they run it while it does. What they compute comes back as parts of exchanges
// (stream_ranks.h, nccl_node.h) alone.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "engine/rank/rank_frame.h"
#include "engine/rank/rank_links.h"

namespace sluice {

class RankGroup;

class ProcessLinks final : public RankLinks {
 public:
  // Links to the ranks [first, end) of the group, which must outlive this object.
  ProcessLinks(RankGroup& group, int32_t first, int32_t end, const InputBatch::Bounds& batch);
  void start(const RankJob& job) override;

  void finish() override {}  // a frame is a copy

 private:
  RankGroup& group_;
  const int32_t first_;
  const int32_t end_;
  RankFrameWriter writer_;
};

// Calls run() with rank 0's jobs until rank 0 ends the group in order. kUnavailable: the
// group has failed, the message says why.
Expected<void> follow_rank_0(RankGroup& group,
                             RankFrameReader reader,
                             const std::function<void(const RankJob&)>& run);

}  // namespace sluice
