// SPDX-License-Identifier: Apache-2.0
// Chooses tokens from a draft model's logits with the target's sampler, in the target's ids. On a
// device with memory of its own, the rows that it can sample are sampled there, and the logits of
// other rows are copied to the host. Used on the thread that runs the steps.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "engine/core/status.h"
#include "engine/core/types.h"
#include "engine/sampling/device_sampling.h"
#include "engine/sampling/sampler.h"
#include "kernels/device.h"
#include "kernels/device_memory.h"

namespace sluice {

class DraftChoice {
 public:
  struct Bounds {
    int32_t vocab_size = 0;  // the target's
    int32_t num_logits = 0;  // columns of the draft model's logits
    bool is_mapped = false;  // the columns are not the target's first ids
    int32_t max_rows = 0;    // per call
  };

  // Bytes of the memory that operators use, and of host memory beside a device with memory of its
  // own. For the memory plan.
  static int64_t bytes(const Bounds& bounds, DeviceType device, int32_t num_threads);
  static int64_t host_bytes(const Bounds& bounds, int32_t num_threads);

  // `id_offsets`: with is_mapped, added to a column to get the target's id. `device` must outlive
  // the result.
  static Expected<DraftChoice> create(const kernels::Device& device,
                                      const Bounds& bounds,
                                      std::span<const int64_t> id_offsets);

  // Sets the target's end tokens, ascending, which min_tokens suppresses. Before the first
  // choose().
  void use_end_tokens(std::vector<TokenId> end_tokens);

  // Chooses a token for each row i of `logits`, in operators' memory, by inputs[i], whose other
  // fields are set. Blocks until chosen; valid until the next call.
  std::span<const SamplerResult> choose(const kernels::ExecContext& exec,
                                        float* logits,
                                        std::span<SamplerInput> inputs);

 private:
  DraftChoice(const kernels::Device& device, const Bounds& bounds)
      : device_(&device), bounds_(bounds) {}

  static bool is_spread(const Bounds& bounds) {
    return bounds.is_mapped || bounds.num_logits < bounds.vocab_size;
  }

  static DeviceSampling::Bounds sampling_bounds(const Bounds& bounds) {
    return {.max_rows = bounds.max_rows, .max_logprobs = 0, .vocab_size = bounds.vocab_size};
  }

  static int64_t spread_bytes(const Bounds& bounds);

  static int64_t row_bytes(const Bounds& bounds) {
    return bounds.max_rows * int64_t{bounds.vocab_size} * static_cast<int64_t>(sizeof(float));
  }

  Expected<void> make_columns(std::span<const int64_t> id_offsets);
  float* by_ids_of_target(const kernels::ExecContext& exec, float* logits, size_t num_rows);

  const kernels::Device* device_;
  Bounds bounds_;
  std::optional<Sampler> sampler_;
  std::optional<DeviceSampling> sampling_;
  uint64_t num_calls_ = 0;
  std::vector<kernels::SampleRow> device_rows_;
  // Mapping of columns; empty where the model's columns are the target's ids.
  kernels::DeviceBuffer columns_;    // [vocab] of the model's logits
  kernels::DeviceBuffer spread_;     // [max_rows][vocab]
  kernels::DeviceBuffer host_rows_;  // host copy; empty where the host reads the rows in place
};

}  // namespace sluice
