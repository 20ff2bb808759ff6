// SPDX-License-Identifier: Apache-2.0
// The hidden states that the rows of a draft head take beside their tokens (models/eagle.h): from
// the target's last step, kept from an earlier step, zeros where unknown, or from the head itself.
// They stay in operators' memory; the host only decides which row goes where. Used on the thread
// that runs the steps.
//
// Call order: begin(), one state per row, keep() for some requests, gather().
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "engine/core/status.h"
#include "engine/models/model.h"
#include "kernels/device.h"
#include "kernels/device_memory.h"

namespace sluice {

class HeadRows {
 public:
  // At most `max_rows` rows per call; states of `max_kept` requests are kept.
  struct Bounds {
    int32_t max_rows = 0;
    int32_t max_kept = 0;
  };

  // Bytes of operators' memory, and of pinned host memory. For the memory plan.
  static int64_t device_bytes(const HeadConfig& head, const Bounds& bounds);
  static int64_t pinned_bytes(const Bounds& bounds);

  // For a head on `target`. `target` and `memory`, which both models use, must outlive it.
  static Expected<HeadRows> create(kernels::DeviceMemory& memory,
                                   const Model& target,
                                   const HeadConfig& head,
                                   const Bounds& bounds);

  void begin() { indices_.clear(); }

  // These give the next row the state of the position before its own: row `row` of the target's
  // last step; the state kept in `place` < max_kept; or zeros where it is unknown.
  void add_tapped(int32_t row) { indices_.push_back(row); }

  void add_kept(int32_t place) { indices_.push_back(kNobody - 1 - place); }

  void add_unknown() { indices_.push_back(kNobody); }

  // Keeps the state of row `row` of the target's last step in `place`, from the next call on.
  void keep(int32_t place, int32_t row);

  // Returns the target's states of all added rows.
  HiddenRows gather(const kernels::ExecContext& exec);

  // Like gather(), for the head's own states of `rows` of its last pass.
  HiddenRows gather_own(const kernels::ExecContext& exec,
                        const Model& head,
                        std::span<const int32_t> rows);

  // The place where gather_own() always writes: a recorded pass reads there.
  [[nodiscard]] HiddenRows own_rows(const Model& head) const {
    return {rows(), head.config().hidden, false};
  }

 private:
  // Index of the zero row among kept rows, for GatherRowsArgs.
  static constexpr int32_t kNobody = -1;

  HeadRows(const Model& target, const HeadConfig& head, const Bounds& bounds);

  static int64_t width_of(const HeadConfig& head) {
    return static_cast<int64_t>(head.taps.size()) * head.target_hidden;
  }

  [[nodiscard]] float* rows() const { return reinterpret_cast<float*>(states_.data()); }

  // One of two buffers, each with the zero row and then max_kept states.
  [[nodiscard]] float* kept(size_t which) const {
    return rows() + width_ * (bounds_.max_rows +
                              static_cast<int64_t>(which) * (int64_t{bounds_.max_kept} + 1));
  }

  // Sends both index lists to operators' memory.
  std::array<std::span<const int32_t>, 2> send(std::span<const int32_t> first,
                                               std::span<const int32_t> second);

  const Model* target_;
  Bounds bounds_;
  int64_t width_;
  kernels::DeviceBuffer states_;  // [max_rows][width] of a call, then two buffers of kept states
  size_t kept_ = 0;               // which of the two buffers is read
  std::vector<int32_t> indices_;
  // Sources by kept row, for places in use: a row of the target to copy, or the kept row itself.
  std::vector<int32_t> keeps_;
  bool has_keeps_ = false;
  // Only for a device with memory of its own.
  kernels::DeviceBuffer staged_;
  kernels::DeviceBuffer sent_;
  std::unique_ptr<kernels::DeviceEvent> was_sent_;
};

}  // namespace sluice
