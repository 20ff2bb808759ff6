// SPDX-License-Identifier: Apache-2.0
// How long a step of so many rows takes: the median of what was measured lately, by buckets of
// rows, laid over CostModel's linear fit, which knows the step's shape but not the stairs that
// kernels make of its rows. More rows never seem to take less time.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "scheduler/cost_model.h"

namespace sluice {

class RowTimes {
 public:
  // Buckets end at 1 to 8 rows each, then at four sizes an octave; the last holds all beyond.
  static constexpr size_t kNumBuckets = 44;
  static constexpr size_t kMaxShapes = kNumBuckets + 2;
  static size_t bucket_of(int64_t num_rows);
  static int64_t bucket_end(size_t bucket);  // its largest number of rows

  // A step of this shape took `ms`, which is positive.
  void observe(const StepShape& shape, double ms);

  // ms[i]: what a step of shapes[i] takes, for at most kMaxShapes steps of ever more rows. Where
  // nothing as large was measured, some more rows seem to take no longer than the largest that was,
  // so that they are tried; yet more take at least as much longer as they are more.
  void predict(const CostModel& cost,
               std::span<const StepShape> shapes,
               std::span<double> ms) const;

  // What was measured, by rising rows: the medians of buckets.
  struct Measured {
    int64_t num_rows = 0;  // where the bucket ends
    double ms = 0;
  };

  [[nodiscard]] std::vector<Measured> measured() const;

  // Measured often enough for a median: what came between two steps once is not taken for their
  // time.
  [[nodiscard]] bool is_known(size_t bucket) const { return buckets_[bucket].count >= 3; }

 private:
  static constexpr size_t kNumSamples = 15;

  struct Sample {
    StepShape shape;
    double ms = 0;
  };

  struct Bucket {
    std::array<Sample, kNumSamples> samples;  // a ring
    uint32_t count = 0;                       // ever
  };

  // The known buckets at or around a number of rows; -1: none.
  struct Known {
    int below = -1;
    int above = -1;

    [[nodiscard]] size_t below_bucket() const { return static_cast<size_t>(below); }

    [[nodiscard]] size_t above_bucket() const { return static_cast<size_t>(above); }
  };

  [[nodiscard]] double ratio(const CostModel& cost, size_t bucket) const;
  [[nodiscard]] Known nearest(int64_t num_rows) const;
  [[nodiscard]] double predict_one(const CostModel& cost, const StepShape& shape) const;
  [[nodiscard]] double beyond(const CostModel& cost,
                              const StepShape& shape,
                              double ratio,
                              int64_t num_known) const;

  std::array<Bucket, kNumBuckets> buckets_;
};

}  // namespace sluice
