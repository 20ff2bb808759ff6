// SPDX-License-Identifier: Apache-2.0
#include "engine/sampling/device_sampling.h"

#include <algorithm>

#include "engine/core/types.h"

namespace sluice {

using kernels::SampleRow;
using kernels::TokenScore;

DeviceSampling::Places DeviceSampling::places(const Bounds& bounds) {
  const int64_t scores = align_up(bounds.max_rows * int64_t{sizeof(SampleRow)}, 64);
  const int64_t end =
      scores + int64_t{bounds.max_rows} * bounds.max_logprobs * int64_t{sizeof(TokenScore)};
  return {.scores = scores, .end = align_up(end, 64)};
}

int64_t DeviceSampling::host_bytes(const Bounds& bounds) {
  return static_cast<int64_t>(kSteps) * places(bounds).end;
}

int64_t DeviceSampling::workspace_begin(const Bounds& bounds) {
  return host_bytes(bounds) + align_up(bounds.max_rows * int64_t{sizeof(TokenId)}, 64);
}

int64_t DeviceSampling::device_bytes(const Bounds& bounds) {
  if (bounds.max_rows == 0) return 0;
  return workspace_begin(bounds) + kernels::device_sampling_workspace_bytes(
                                       DeviceType::kCuda, bounds.vocab_size, bounds.max_rows);
}

Expected<DeviceSampling> DeviceSampling::create(kernels::DeviceMemory& memory,
                                                const Bounds& bounds) {
  DeviceSampling sampling;
  sampling.bounds_ = bounds;
  sampling.places_ = places(bounds);
  SLUICE_TRY(sampling.host_,
             kernels::DeviceBuffer::allocate_pinned(memory, host_bytes(bounds), "rows to sample"));
  SLUICE_TRY(sampling.device_,
             kernels::DeviceBuffer::allocate(memory, device_bytes(bounds), "rows to sample"));
  for (Times& times : sampling.times_) {
    times = {
        .begun = memory.make_event(), .chosen = memory.make_event(), .done = memory.make_event()};
  }
  return sampling;
}

template <typename T>
T* DeviceSampling::at(const kernels::DeviceBuffer& buffer, uint64_t number, int64_t offset) const {
  const auto slot = static_cast<int64_t>(number % kSteps);
  return reinterpret_cast<T*>(buffer.data() + slot * places_.end + offset);
}

TokenId* DeviceSampling::chosen() const {
  return reinterpret_cast<TokenId*>(device_.data() + host_bytes(bounds_));
}

SampleRow* DeviceSampling::rows() const { return at<SampleRow>(device_, sent_, 0); }

void DeviceSampling::send(uint64_t number, std::span<const SampleRow> rows) {
  CHECK_LE(rows.size(), static_cast<size_t>(bounds_.max_rows));
  Step& sent = step(number);
  sent_ = number;
  sent.num_rows = rows.size();
  sent.has_scores = false;
  if (rows.empty()) return;
  auto* const staged = at<SampleRow>(host_, number, 0);
  auto* scores = at<TokenScore>(device_, number, places_.scores);
  for (size_t i = 0; i < rows.size(); ++i, scores += bounds_.max_logprobs) {
    const size_t wanted = rows[i].top_logprobs.size();
    CHECK_LE(wanted, static_cast<size_t>(bounds_.max_logprobs));
    staged[i] = rows[i];
    staged[i].top_logprobs = {scores, wanted};
    sent.has_scores = sent.has_scores || wanted > 0;
  }
  device_.memory().upload(at<std::byte>(device_, number, 0),
                          at<std::byte>(host_, number, 0),
                          static_cast<int64_t>(rows.size_bytes()));
}

void DeviceSampling::choose(const kernels::ExecContext& exec, uint64_t number) {
  Step& sent = step(number);
  if (sent.num_rows > 0) {
    kernels::sample(
        exec,
        {.rows = {at<SampleRow>(device_, number, 0), sent.num_rows},
         .vocab_size = bounds_.vocab_size,
         .workspace = device_.span().subspan(static_cast<size_t>(workspace_begin(bounds_))),
         .chosen = chosen()});
  }
  times(number).chosen->record();
  if (sent.num_rows > 0) {
    const int64_t bytes =
        sent.has_scores ? places_.end : static_cast<int64_t>(sent.num_rows * sizeof(SampleRow));
    device_.memory().download(
        at<std::byte>(host_, number, 0), at<std::byte>(device_, number, 0), bytes);
  }
  times(number).done->record();
}

double DeviceSampling::idle_before(uint64_t number) const {
  return times(number).begun->seconds_since(*times(number - 1).chosen);
}

std::span<const SampleRow> DeviceSampling::wait(uint64_t number) {
  Step& sent = step(number);
  times(number).done->wait();
  const std::span<SampleRow> rows(at<SampleRow>(host_, number, 0), sent.num_rows);
  auto* scores = at<TokenScore>(host_, number, places_.scores);
  for (SampleRow& row : rows) {
    row.top_logprobs = {scores, row.top_logprobs.size()};
    scores += bounds_.max_logprobs;
  }
  return rows;
}

}  // namespace sluice
