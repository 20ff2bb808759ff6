// SPDX-License-Identifier: Apache-2.0
// Rows whose tokens a device chooses, on their way: what is asked of it goes up before the layers
// of a step, and what came of it comes down behind them, so that the next step can be put behind
// both. By the thread that runs the steps.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>

#include "engine/core/status.h"
#include "kernels/device.h"
#include "kernels/device_memory.h"
#include "kernels/sampling.h"

namespace sluice {

class DeviceSampling {
 public:
  // Whose rows there is room for at once: step n's are where those of n + 2 will be.
  static constexpr uint64_t kSteps = 2;

  struct Bounds {
    int32_t max_rows = 0;  // 0: the host chooses all
    int32_t max_logprobs = 0;
    int32_t vocab_size = 0;
  };

  // Of the device; of pinned memory. For the plan.
  static int64_t device_bytes(const Bounds& bounds);
  static int64_t host_bytes(const Bounds& bounds);

  // `memory` must outlive it.
  static Expected<DeviceSampling> create(kernels::DeviceMemory& memory, const Bounds& bounds);

  // Whether the device chooses any rows.
  [[nodiscard]] bool chooses() const { return bounds_.max_rows > 0; }

  // Sends the rows of a step, at most max_rows; their log-probabilities find room here. The second
  // step before has been waited for.
  void send(uint64_t step, std::span<const kernels::SampleRow> rows);
  // Samples them, behind whatever gives their logits; with this the step is all in the queue.
  void choose(const kernels::ExecContext& exec, uint64_t step);
  // Waits for the step; its rows with results, until send() of the second behind it.
  std::span<const kernels::SampleRow> wait(uint64_t step);

  // For whoever runs the step that was sent last to record before its first operator.
  [[nodiscard]] kernels::DeviceEvent* begun() const { return times(sent_).begun.get(); }

  // In memory of the device: the rows of the step that was sent last.
  [[nodiscard]] kernels::SampleRow* rows() const;

  // Seconds in which the device ran no operator before a step that has been waited for, copies
  // included, since the last of the step before; until the second behind it begins.
  [[nodiscard]] double idle_before(uint64_t step) const;

  // In memory of the device: what the latest choose() chose, by row.
  [[nodiscard]] TokenId* chosen() const;

 private:
  // One after the other in either memory.
  struct Places {
    int64_t scores = 0;
    int64_t end = 0;
  };

  struct Step {
    size_t num_rows = 0;
    bool has_scores = false;
  };

  struct Times {
    std::unique_ptr<kernels::DeviceEvent> begun;   // before the first operator
    std::unique_ptr<kernels::DeviceEvent> chosen;  // behind the last
    std::unique_ptr<kernels::DeviceEvent> done;    // behind the copy of what it chose
  };

  DeviceSampling() = default;

  static Places places(const Bounds& bounds);
  // Where in device_ the kernels' workspace is.
  static int64_t workspace_begin(const Bounds& bounds);

  Step& step(uint64_t number) { return steps_[number % kSteps]; }

  [[nodiscard]] const Times& times(uint64_t number) const { return times_[number % times_.size()]; }

  // Of a step, in the memory of `buffer`.
  template <typename T>
  T* at(const kernels::DeviceBuffer& buffer, uint64_t number, int64_t offset) const;

  Bounds bounds_;
  Places places_;
  uint64_t sent_ = 0;  // the step
  kernels::DeviceBuffer host_;
  kernels::DeviceBuffer device_;  // behind the steps what was chosen, then the workspace
  std::array<Step, kSteps> steps_;
  std::array<Times, kSteps + 1> times_;  // and of the step before
};

}  // namespace sluice
