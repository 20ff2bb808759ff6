// SPDX-License-Identifier: Apache-2.0
#include "engine/draft/draft_choice.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "kernels/elementwise.h"

namespace sluice {
namespace {

// The logit of a token that the draft model cannot choose, far below all others.
constexpr float kNever = -1e30F;

}  // namespace

int64_t DraftChoice::spread_bytes(const Bounds& bounds) {
  if (!is_spread(bounds)) return 0;
  return row_bytes(bounds) + int64_t{bounds.vocab_size} * static_cast<int64_t>(sizeof(int32_t));
}

int64_t DraftChoice::bytes(const Bounds& bounds, DeviceType device, int32_t num_threads) {
  if (device == DeviceType::kCpu) {
    return spread_bytes(bounds) +
           Sampler::buffer_bytes(bounds.vocab_size, bounds.max_rows, 0, num_threads);
  }
  return spread_bytes(bounds) + DeviceSampling::device_bytes(sampling_bounds(bounds));
}

int64_t DraftChoice::host_bytes(const Bounds& bounds, int32_t num_threads) {
  return row_bytes(bounds) + DeviceSampling::host_bytes(sampling_bounds(bounds)) +
         Sampler::buffer_bytes(bounds.vocab_size, bounds.max_rows, 0, num_threads);
}

Expected<DraftChoice> DraftChoice::create(const kernels::Device& device,
                                          const Bounds& bounds,
                                          std::span<const int64_t> id_offsets) {
  DraftChoice choice(device, bounds);
  kernels::DeviceMemory& memory = device.memory();
  if (is_spread(bounds)) SLUICE_TRY_VOID(choice.make_columns(id_offsets));
  DeviceSampling::Bounds sampling = sampling_bounds(bounds);
  int64_t host_rows = row_bytes(bounds);
  if (memory.is_host()) sampling.max_rows = host_rows = 0;
  SLUICE_TRY(choice.sampling_, DeviceSampling::create(memory, sampling));
  SLUICE_TRY(choice.host_rows_,
             kernels::DeviceBuffer::allocate_pinned(memory, host_rows, "logits of drafts"));
  choice.device_rows_.reserve(static_cast<size_t>(bounds.max_rows));
  choice.use_end_tokens({});
  return choice;
}

Expected<void> DraftChoice::make_columns(std::span<const int64_t> id_offsets) {
  std::vector<int32_t> columns(static_cast<size_t>(bounds_.vocab_size), -1);
  const auto num_ids = static_cast<size_t>(std::min(bounds_.num_logits, bounds_.vocab_size));
  for (size_t i = 0; i < num_ids; ++i) {
    const size_t id = id_offsets.empty() ? i : i + static_cast<size_t>(id_offsets[i]);
    columns[id] = static_cast<int32_t>(i);
  }
  kernels::DeviceMemory& memory = device_->memory();
  const auto bytes = static_cast<int64_t>(columns.size() * sizeof(int32_t));
  SLUICE_TRY(columns_, kernels::DeviceBuffer::allocate(memory, bytes, "ids of drafts"));
  SLUICE_TRY(spread_,
             kernels::DeviceBuffer::allocate(memory, row_bytes(bounds_), "logits of drafts"));
  if (memory.is_host()) {
    std::memcpy(columns_.data(), columns.data(), static_cast<size_t>(bytes));
    return {};
  }
  memory.upload(columns_.data(), reinterpret_cast<const std::byte*>(columns.data()), bytes);
  memory.wait();
  return {};
}

void DraftChoice::use_end_tokens(std::vector<TokenId> end_tokens) {
  sampler_.emplace(
      bounds_.vocab_size, bounds_.max_rows, 0, device_->num_threads(), std::move(end_tokens));
}

float* DraftChoice::by_ids_of_target(const kernels::ExecContext& exec,
                                     float* logits,
                                     size_t num_rows) {
  if (spread_.size() == 0) return logits;
  auto* const spread = reinterpret_cast<float*>(spread_.data());
  kernels::select_columns(exec,
                          {.x = logits,
                           .x_stride = bounds_.num_logits,
                           .num_rows = static_cast<int32_t>(num_rows),
                           .columns = {reinterpret_cast<const int32_t*>(columns_.data()),
                                       static_cast<size_t>(bounds_.vocab_size)},
                           .absent = kNever,
                           .out = spread,
                           .out_stride = bounds_.vocab_size});
  return spread;
}

std::span<const SamplerResult> DraftChoice::choose(const kernels::ExecContext& exec,
                                                   float* logits,
                                                   std::span<SamplerInput> inputs) {
  float* const rows = by_ids_of_target(exec, logits, inputs.size());
  const int64_t stride = spread_.size() > 0 ? bounds_.vocab_size : bounds_.num_logits;
  const uint64_t number = num_calls_++;
  device_rows_.clear();
  for (size_t i = 0; i < inputs.size(); ++i) {
    SamplerInput& input = inputs[i];
    input.logits = rows + static_cast<int64_t>(i) * stride;
    input.on_device = sampling_->chooses() && sampler_->can_choose(input);
    if (input.on_device) device_rows_.push_back(sampler_->device_row(input));
  }
  sampling_->send(number, device_rows_);
  sampling_->choose(exec, number);
  bool is_copying = false;
  for (size_t i = 0; i < inputs.size() && host_rows_.size() > 0; ++i) {
    if (inputs[i].on_device) continue;
    const auto bytes = int64_t{bounds_.vocab_size} * static_cast<int64_t>(sizeof(float));
    std::byte* const to = host_rows_.data() + static_cast<int64_t>(i) * bytes;
    host_rows_.memory().download(to, reinterpret_cast<const std::byte*>(inputs[i].logits), bytes);
    inputs[i].logits = reinterpret_cast<float*>(to);
    is_copying = true;
  }
  const std::span<const kernels::SampleRow> chosen = sampling_->wait(number);
  if (is_copying) host_rows_.memory().wait();
  return sampler_->sample(device_->host_context(), inputs, chosen);
}

}  // namespace sluice
