// SPDX-License-Identifier: Apache-2.0
#include "engine/draft/head_rows.h"

#include <cstring>
#include <utility>

#include "kernels/elementwise.h"

namespace sluice {

using kernels::DeviceBuffer;

int64_t HeadRows::device_bytes(const HeadConfig& head, const Bounds& bounds) {
  const int64_t num_states = bounds.max_rows + 2 * (int64_t{bounds.max_kept} + 1);
  return width_of(head) * num_states * static_cast<int64_t>(sizeof(float)) + pinned_bytes(bounds);
}

int64_t HeadRows::pinned_bytes(const Bounds& bounds) {
  return (int64_t{bounds.max_rows} + bounds.max_kept + 1) * static_cast<int64_t>(sizeof(int32_t));
}

HeadRows::HeadRows(const Model& target, const HeadConfig& head, const Bounds& bounds)
    : target_(&target), bounds_(bounds), width_(width_of(head)) {
  indices_.reserve(static_cast<size_t>(bounds.max_rows));
  keeps_.reserve(static_cast<size_t>(bounds.max_kept) + 1);
  keeps_.push_back(kNobody);
}

Expected<HeadRows> HeadRows::create(kernels::DeviceMemory& memory,
                                    const Model& target,
                                    const HeadConfig& head,
                                    const Bounds& bounds) {
  HeadRows made(target, head, bounds);
  const int64_t index_bytes = pinned_bytes(bounds);
  SLUICE_TRY(made.states_,
             DeviceBuffer::allocate(
                 memory, device_bytes(head, bounds) - index_bytes, "states that a head reads"));
  made.was_sent_ = memory.make_event();
  if (memory.is_host()) return made;
  SLUICE_TRY(made.staged_,
             DeviceBuffer::allocate_pinned(memory, index_bytes, "rows that a head reads"));
  SLUICE_TRY(made.sent_, DeviceBuffer::allocate(memory, index_bytes, "rows that a head reads"));
  return made;
}

void HeadRows::keep(int32_t place, int32_t row) {
  CHECK_LT(place, bounds_.max_kept);
  for (auto i = static_cast<int32_t>(keeps_.size()); i <= place + 1; ++i) {
    keeps_.push_back(kNobody - i);
  }
  keeps_[static_cast<size_t>(place) + 1] = row;
  has_keeps_ = true;
}

std::array<std::span<const int32_t>, 2> HeadRows::send(std::span<const int32_t> first,
                                                       std::span<const int32_t> second) {
  if (staged_.size() == 0) return {first, second};
  CHECK_LE(first.size_bytes() + second.size_bytes(), staged_.size());
  was_sent_->wait();
  std::memcpy(staged_.data(), first.data(), first.size_bytes());
  if (!second.empty()) {
    std::memcpy(staged_.data() + first.size_bytes(), second.data(), second.size_bytes());
  }
  sent_.memory().upload(
      sent_.data(), staged_.data(), static_cast<int64_t>(first.size_bytes() + second.size_bytes()));
  was_sent_->record();
  const auto* const sent = reinterpret_cast<const int32_t*>(sent_.data());
  return {std::span(sent, first.size()), std::span(sent + first.size(), second.size())};
}

HiddenRows HeadRows::gather(const kernels::ExecContext& exec) {
  CHECK_LE(indices_.size(), static_cast<size_t>(bounds_.max_rows));
  const auto [wanted, kept_rows] =
      send(indices_, has_keeps_ ? std::span<const int32_t>(keeps_) : std::span<const int32_t>());
  kernels::GatherRowsArgs args = {.x = target_->taps(),
                                  .x_stride = width_,
                                  .n = static_cast<int32_t>(width_),
                                  .indices = wanted,
                                  .out = rows(),
                                  .out_stride = width_,
                                  .others = kept(kept_),
                                  .others_stride = width_};
  kernels::gather_rows(exec, args);
  if (std::exchange(has_keeps_, false)) {
    kept_ = 1 - kept_;
    args.indices = kept_rows;
    args.out = kept(kept_);
    kernels::gather_rows(exec, args);
    for (size_t i = 0; i < keeps_.size(); ++i) keeps_[i] = kNobody - static_cast<int32_t>(i);
  }
  return {rows(), width_, true};
}

HiddenRows HeadRows::gather_own(const kernels::ExecContext& exec,
                                const Model& head,
                                std::span<const int32_t> rows_of_head) {
  const int64_t width = head.config().hidden;
  kernels::gather_rows(exec,
                       {.x = head.states(),
                        .x_stride = width,
                        .n = static_cast<int32_t>(width),
                        .indices = send(rows_of_head, {})[0],
                        .out = rows(),
                        .out_stride = width});
  return own_rows(head);
}

}  // namespace sluice
