// SPDX-License-Identifier: Apache-2.0
#include "scheduler/row_times.h"

#include <algorithm>
#include <bit>

#include "engine/core/status.h"

namespace sluice {

namespace {

constexpr int64_t kNumSingles = 8;  // buckets of one size each
constexpr double kMinMs = 1e-3;

double median(std::span<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace

size_t RowTimes::bucket_of(int64_t num_rows) {
  if (num_rows <= kNumSingles) return static_cast<size_t>(std::max<int64_t>(num_rows, 1)) - 1;
  // Quarters of the octave (2^e, 2^(e+1)].
  const int exponent = std::bit_width(static_cast<uint64_t>(num_rows - 1)) - 1;
  const int64_t quarter = (num_rows - 1 - (int64_t{1} << exponent)) >> (exponent - 2);
  const int64_t bucket = kNumSingles + 4 * (exponent - 3) + quarter;
  return std::min(static_cast<size_t>(bucket), kNumBuckets - 1);
}

int64_t RowTimes::bucket_end(size_t bucket) {
  const auto index = static_cast<int64_t>(bucket);
  if (index < kNumSingles) return index + 1;
  const int64_t octave = (index - kNumSingles) / 4 + 3;
  const int64_t quarter = (index - kNumSingles) % 4 + 1;
  return (int64_t{1} << octave) + (quarter << (octave - 2));
}

void RowTimes::observe(const StepShape& shape, double ms) {
  CHECK(ms > 0);
  Bucket& bucket = buckets_[bucket_of(shape.num_rows())];
  bucket.samples[bucket.count % kNumSamples] = {shape, ms};
  ++bucket.count;
}

std::vector<RowTimes::Measured> RowTimes::measured() const {
  std::vector<Measured> list;
  for (size_t i = 0; i < kNumBuckets; ++i) {
    if (!is_known(i)) continue;
    const size_t count = std::min<size_t>(buckets_[i].count, kNumSamples);
    std::array<double, kNumSamples> ms{};
    for (size_t j = 0; j < count; ++j) ms[j] = buckets_[i].samples[j].ms;
    list.push_back({.num_rows = bucket_end(i), .ms = median(std::span(ms).first(count))});
  }
  return list;
}

// Measured over fitted time of a known bucket.
double RowTimes::ratio(const CostModel& cost, size_t bucket) const {
  const Bucket& from = buckets_[bucket];
  const size_t count = std::min<size_t>(from.count, kNumSamples);
  std::array<double, kNumSamples> ratios{};
  for (size_t i = 0; i < count; ++i) {
    const Sample& sample = from.samples[i];
    ratios[i] = sample.ms / std::max(cost.predict_ms(sample.shape), kMinMs);
  }
  return median(std::span(ratios).first(count));
}

RowTimes::Known RowTimes::nearest(int64_t num_rows) const {
  Known known;
  const size_t own = bucket_of(num_rows);
  for (size_t bucket = own + 1; bucket-- > 0 && !known.below;) {
    if (is_known(bucket)) known.below = bucket;
  }
  for (size_t bucket = own; bucket < kNumBuckets && !known.above; ++bucket) {
    if (is_known(bucket)) known.above = bucket;
  }
  return known;
}

double RowTimes::predict(const CostModel& cost, const StepShape& shape) const {
  const double fitted = std::max(cost.predict_ms(shape), kMinMs);
  const Known known = nearest(shape.num_rows());
  if (!known.below) return fitted * (known.above ? ratio(cost, *known.above) : 1);
  const double low = ratio(cost, *known.below);
  if (known.above == known.below) return fitted * low;
  // Between two measured buckets the better ratio counts, so that the size is tried.
  if (known.above) return fitted * std::min(low, ratio(cost, *known.above));
  return beyond(cost, shape, low, bucket_end(*known.below));
}

// Time of a step with more rows than `num_known`, the most measured, at `ratio` of the fitted time.
// Slightly more rows seem to take no longer, so that they are tried: twice as many of a few rows, a
// quarter more of many.
double RowTimes::beyond(const CostModel& cost,
                        const StepShape& shape,
                        double ratio,
                        int64_t num_known) const {
  const int64_t num_rows = shape.num_rows();
  const int64_t num_tried = num_known <= kNumSingles ? 2 * num_known : num_known + num_known / 4;
  StepShape known = shape;
  known.num_decode_tokens = std::max<int64_t>(shape.num_decode_tokens - (num_rows - num_known), 0);
  const double ms = ratio * std::max(cost.predict_ms(known), kMinMs);
  if (num_rows <= num_tried) return ms;
  const double in_proportion = ms * static_cast<double>(num_rows) / static_cast<double>(num_tried);
  return std::max(in_proportion, ratio * cost.predict_ms(shape));
}

void RowTimes::predict(const CostModel& cost,
                       std::span<const StepShape> shapes,
                       std::span<double> ms) const {
  // Adjacent violators are pooled: each run of `sizes` shapes has one time, ever longer ones.
  std::array<double, kMaxShapes> values;
  std::array<size_t, kMaxShapes> sizes;
  CHECK_LE(shapes.size(), kMaxShapes);
  size_t num_runs = 0;
  for (const StepShape& shape : shapes) {
    values[num_runs] = predict(cost, shape);
    sizes[num_runs] = 1;
    ++num_runs;
    while (num_runs > 1 && values[num_runs - 2] > values[num_runs - 1]) {
      const auto left = static_cast<double>(sizes[num_runs - 2]);
      const auto right = static_cast<double>(sizes[num_runs - 1]);
      values[num_runs - 2] =
          (left * values[num_runs - 2] + right * values[num_runs - 1]) / (left + right);
      sizes[num_runs - 2] += sizes[num_runs - 1];
      --num_runs;
    }
  }
  size_t at = 0;
  for (size_t run = 0; run < num_runs; ++run) {
    for (size_t i = 0; i < sizes[run]; ++i) ms[at++] = values[run];
  }
}

}  // namespace sluice
