// SPDX-License-Identifier: Apache-2.0
#include "engine/rank/process_links.h"

#include "engine/parallel/rank_group.h"

namespace sluice {

ProcessLinks::ProcessLinks(RankGroup& group,
                           int32_t first,
                           int32_t end,
                           const InputBatch::Bounds& batch)
    : group_(group), first_(first), end_(end), writer_(batch) {}

void ProcessLinks::start(const RankJob& job) {
  const std::span<const std::byte> frame = writer_.write(job);
  for (int32_t rank = first_; rank < end_; ++rank) {
    // A stage may still compute the step before. The job fails at its first exchange.
    if (!group_.send(rank, frame, RankGroup::kStage)) return;
  }
}

Expected<void> follow_rank_0(RankGroup& group,
                             RankFrameReader reader,
                             const std::function<void(const RankJob&)>& run) {
  std::vector<std::byte> payload;
  RankFrameHeader header;
  const auto next = [&]() -> Expected<bool> {
    if (!group.receive_next(std::as_writable_bytes(std::span(&header, 1)))) return false;
    SLUICE_TRY_VOID(reader.check(header));
    payload.resize(static_cast<size_t>(header.bytes));
    if (!group.receive(0, payload)) return false;
    SLUICE_TRY(const RankJob* const job, reader.read(header, payload));
    run(*job);
    return true;
  };
  for (;;) {
    const Expected<bool> goes_on = next();
    if (!goes_on) group.fail(goes_on.error().message);
    if (goes_on && *goes_on) continue;
    if (group.has_ended()) return {};
    return make_error(ErrorCode::kUnavailable, group.why());
  }
}

}  // namespace sluice
