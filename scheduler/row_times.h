// SPDX-License-Identifier: Apache-2.0
// How long a step of so many rows takes: the median of what was measured lately, by buckets of
// rows, laid over CostModel's linear fit, which knows the step's shape but not the stairs that
// kernels make of its rows. More rows never seem to take less time.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "scheduler/cost_model.h"

namespace sluice {

class RowTimes {
 public:
  // Buckets end at 1 to 8 rows each, then at four sizes an octave; the last holds all beyond.
  static constexpr size_t kNumBuckets = 44;
  static size_t bucket_of(int64_t num_rows);
  static int64_t bucket_end(size_t bucket);  // its largest number of rows

  // A step of this shape took `ms`, which is positive.
  void observe(const StepShape& shape, double ms);

  // ms[i]: what a step of shapes[i] takes, for steps that have ever more rows. Where nothing as
  // large was measured, up to twice as many rows seem to take no longer than the largest that was,
  // so that they are tried; beyond that the linear fit counts.
  void predict(const CostModel& cost,
               std::span<const StepShape> shapes,
               std::span<double> ms) const;

  [[nodiscard]] uint32_t num_observations(size_t bucket) const { return buckets_[bucket].count; }

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

  [[nodiscard]] double ratio(const CostModel& cost, size_t bucket) const;

  std::array<Bucket, kNumBuckets> buckets_;
};

}  // namespace sluice
