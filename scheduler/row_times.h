// SPDX-License-Identifier: Apache-2.0
// How long a step of a given number of rows takes: the median of recent measurements in buckets of
// rows, laid over CostModel's linear fit, which knows the step's shape but not the stairs that
// kernels make of its rows. More rows never seem to take less time.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "scheduler/cost_model.h"

namespace sluice {

class RowTimes {
 public:
  // Buckets hold 1 to 8 rows one by one, then four sizes per octave; the last is unbounded.
  static constexpr size_t kNumBuckets = 44;
  static constexpr size_t kMaxShapes = kNumBuckets + 2;
  static size_t bucket_of(int64_t num_rows);
  static int64_t bucket_end(size_t bucket);  // largest number of rows

  // Learns that a step of this shape took `ms` > 0.
  void observe(const StepShape& shape, double ms);

  // Sets ms[i] to the time of shapes[i], for at most kMaxShapes steps with increasing rows. Just
  // beyond the largest measured step, more rows seem to take no longer, so that they are tried;
  // further rows take at least proportionally longer.
  void predict(const CostModel& cost,
               std::span<const StepShape> shapes,
               std::span<double> ms) const;

  // Returns the time of one step.
  [[nodiscard]] double predict(const CostModel& cost, const StepShape& shape) const;

  // A measured bucket: its upper end and its median.
  struct Measured {
    int64_t num_rows = 0;  // where the bucket ends
    double ms = 0;
  };

  [[nodiscard]] std::vector<Measured> measured() const;

  // True when the bucket has enough samples for a median: one disturbance between two steps is not
  // taken for their time.
  [[nodiscard]] bool is_known(size_t bucket) const { return buckets_[bucket].count >= 3; }

 private:
  static constexpr size_t kNumSamples = 15;

  struct Sample {
    StepShape shape;
    double ms = 0;
  };

  struct Bucket {
    std::array<Sample, kNumSamples> samples;  // a ring
    uint32_t count = 0;                       // total since the start
  };

  // The nearest known buckets below and above a number of rows.
  struct Known {
    std::optional<size_t> below;
    std::optional<size_t> above;
  };

  [[nodiscard]] double ratio(const CostModel& cost, size_t bucket) const;
  [[nodiscard]] Known nearest(int64_t num_rows) const;
  [[nodiscard]] double beyond(const CostModel& cost,
                              const StepShape& shape,
                              double ratio,
                              int64_t num_known) const;

  std::array<Bucket, kNumBuckets> buckets_;
};

}  // namespace sluice
