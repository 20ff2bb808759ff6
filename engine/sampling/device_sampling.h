// SPDX-License-Identifier: Apache-2.0
// Sampling on the device: parameters are sent before the layers of a step and results are fetched
// after them, so that the next step can be queued after both. Used on the thread that runs the
// steps.
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
  // Number of steps with buffers at the same time: step n + 2 reuses those of step n.
  static constexpr uint64_t kSteps = 2;

  struct Bounds {
    int32_t max_rows = 0;  // 0: the host chooses all rows
    int32_t max_logprobs = 0;
    int32_t vocab_size = 0;
  };

  // Bytes of device memory, and of pinned memory. For the memory plan.
  static int64_t device_bytes(const Bounds& bounds);
  static int64_t host_bytes(const Bounds& bounds);

  // `memory` must outlive the object.
  static Expected<DeviceSampling> create(kernels::DeviceMemory& memory, const Bounds& bounds);

  // Whether the device chooses any rows.
  [[nodiscard]] bool chooses() const { return bounds_.max_rows > 0; }

  // Sends the rows of a step, at most max_rows; log-probabilities are stored here. The step before
  // the previous one must have been waited for.
  void send(uint64_t step, std::span<const kernels::SampleRow> rows);
  // Samples them after their logits are computed; completes the queued step.
  void choose(const kernels::ExecContext& exec, uint64_t step);
  // Waits for the step; returns its rows with results, valid until send() of the second next step.
  std::span<const kernels::SampleRow> wait(uint64_t step);

  // The event that the executor of the last sent step records before its first operator.
  [[nodiscard]] kernels::DeviceEvent* begun() const { return times(sent_).begun.get(); }

  // Device memory: the rows of the last sent step.
  [[nodiscard]] kernels::SampleRow* rows() const;

  // Seconds without an operator before a step that has been waited for, since the last operator of
  // the previous step, copies included; available until the second next step begins.
  [[nodiscard]] double idle_before(uint64_t step) const;

  // Device memory: the result of the latest choose(), by row.
  [[nodiscard]] TokenId* chosen() const;

 private:
  // Offsets in either memory, consecutive.
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
    std::unique_ptr<kernels::DeviceEvent> chosen;  // after the last operator
    std::unique_ptr<kernels::DeviceEvent> done;    // after the copy of the results
  };

  DeviceSampling() = default;

  static Places places(const Bounds& bounds);
  // Offset of the kernels' workspace in device_.
  static int64_t workspace_begin(const Bounds& bounds);

  Step& step(uint64_t number) { return steps_[number % kSteps]; }

  [[nodiscard]] const Times& times(uint64_t number) const { return times_[number % times_.size()]; }

  // Address within a step's part of `buffer`.
  template <typename T>
  T* at(const kernels::DeviceBuffer& buffer, uint64_t number, int64_t offset) const;

  Bounds bounds_;
  Places places_;
  uint64_t sent_ = 0;  // the last sent step
  kernels::DeviceBuffer host_;
  kernels::DeviceBuffer device_;  // the steps, then the chosen tokens, then the workspace
  std::array<Step, kSteps> steps_;
  std::array<Times, kSteps + 1> times_;  // including the step before
};

}  // namespace sluice
