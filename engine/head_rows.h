// SPDX-License-Identifier: Apache-2.0
// The hidden states that rows of a head have beside their tokens (models/eagle.h): of the target's
// last step, kept from an earlier one, zeros where nobody knows them, or the head's own. All are
// where operators read and stay there; the host says which go where. By the thread that runs the
// steps.
//
// A call: begin(), a state for each row, keep() for some requests, then gather().
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
  // Of at most `max_rows` rows at once; states of `max_kept` requests are kept.
  struct Bounds {
    int32_t max_rows = 0;
    int32_t max_kept = 0;
  };

  // Where operators read; of pinned memory of the host. For the plan.
  static int64_t device_bytes(const HeadConfig& head, const Bounds& bounds);
  static int64_t pinned_bytes(const Bounds& bounds);

  // For a head on `target`, which must outlive it, as `memory` must: both models'.
  static Expected<HeadRows> create(kernels::DeviceMemory& memory,
                                   const Model& target,
                                   const HeadConfig& head,
                                   const Bounds& bounds);

  void begin() { indices_.clear(); }

  // The next row has the state of the position before its own: row `row` of the target's last step;
  // what is kept in `place`, below max_kept; or nobody's, zeros.
  void add_tapped(int32_t row) { indices_.push_back(row); }

  void add_kept(int32_t place) { indices_.push_back(kNobody - 1 - place); }

  void add_unknown() { indices_.push_back(kNobody); }

  // Keeps the state of row `row` of the target's last step in `place`, from the next call on.
  void keep(int32_t place, int32_t row);

  // The target's states of all rows that were added.
  HiddenRows gather(const kernels::ExecContext& exec);

  // In their place those that the head itself has left of `rows` of its last pass.
  HiddenRows gather_own(const kernels::ExecContext& exec,
                        const Model& head,
                        std::span<const int32_t> rows);

  // What gather_own() gives, wherever it is called: a pass that is recorded reads there.
  [[nodiscard]] HiddenRows own_rows(const Model& head) const {
    return {rows(), head.config().hidden, false};
  }

 private:
  // A row of what is kept, as an index of GatherRowsArgs: the first, which is zeros.
  static constexpr int32_t kNobody = -1;

  HeadRows(const Model& target, const HeadConfig& head, const Bounds& bounds);

  static int64_t width_of(const HeadConfig& head) {
    return static_cast<int64_t>(head.taps.size()) * head.target_hidden;
  }

  [[nodiscard]] float* rows() const { return reinterpret_cast<float*>(states_.data()); }

  // One of two, each with the zeros and then max_kept states.
  [[nodiscard]] float* kept(size_t which) const {
    return rows() + width_ * (bounds_.max_rows +
                              static_cast<int64_t>(which) * (int64_t{bounds_.max_kept} + 1));
  }

  // Both lists where operators read.
  std::array<std::span<const int32_t>, 2> send(std::span<const int32_t> first,
                                               std::span<const int32_t> second);

  const Model* target_;
  Bounds bounds_;
  int64_t width_;
  kernels::DeviceBuffer states_;  // [max_rows][width] of a call, then what is kept, twice
  size_t kept_ = 0;               // which of the two is read
  std::vector<int32_t> indices_;
  // By row of what is kept, as far as places are in use: the row of the target's, or its own.
  std::vector<int32_t> keeps_;
  bool has_keeps_ = false;
  // Of a device with memory of its own.
  kernels::DeviceBuffer staged_;
  kernels::DeviceBuffer sent_;
  std::unique_ptr<kernels::DeviceEvent> was_sent_;
};

}  // namespace sluice
