// SPDX-License-Identifier: Apache-2.0
// The metrics of one scrape, family by family, as text. One thread.
#pragma once

#include <prometheus/metric_family.h>
#include <prometheus/text_serializer.h>

#include <array>
#include <string>
#include <utility>
#include <vector>

#include "engine/core/stats.h"
#include "server/front/openmetrics.h"

namespace sluice {

// Metrics of a family are consecutive. Those without labels of their own have the engine's and the
// model's.
class Families {
 public:
  using Labels = std::vector<prometheus::ClientMetric::Label>;

  explicit Families(const std::string& model_name)
      : labels_{{"engine", "0"}, {"model_name", model_name}} {}

  void gauge(const char* name, const char* help, double value) {
    prometheus::ClientMetric& metric = open(name, help, prometheus::MetricType::Gauge, labels_);
    metric.gauge.value = value;
  }

  void counter(const char* name, const char* help, double value) {
    prometheus::ClientMetric& metric = open(name, help, prometheus::MetricType::Counter, labels_);
    metric.counter.value = value;
  }

  template <size_t kNumBounds>
  void histogram(const char* name,
                 const char* help,
                 const std::array<double, kNumBounds>& bounds,
                 const HistogramData<kNumBounds>& data) {
    auto& histogram = open(name, help, prometheus::MetricType::Histogram, labels_).histogram;
    uint64_t cumulative = 0;
    for (size_t i = 0; i < kNumBounds; ++i) {
      cumulative += data.counts[i];
      histogram.bucket.push_back({cumulative, bounds[i]});
    }
    histogram.sample_count = cumulative + data.counts[kNumBounds];
    histogram.sample_sum = data.sum;
  }

  template <size_t kNumBounds>
  void histogram(const char* name,
                 const char* help,
                 const std::array<double, kNumBounds>& bounds,
                 const TracedHistogramData<kNumBounds>& data) {
    const HistogramData<kNumBounds>& counts = data;
    histogram(name, help, bounds, counts);
    exemplars_[name].assign(data.exemplars.begin(), data.exemplars.end());
  }

  prometheus::ClientMetric& open(const char* name,
                                 const char* help,
                                 prometheus::MetricType type,
                                 Labels labels) {
    if (families_.empty() || families_.back().name != name) {
      families_.push_back(prometheus::MetricFamily{name, help, type, {}});
    }
    auto& metrics = families_.back().metric;
    metrics.emplace_back();
    metrics.back().label = std::move(labels);
    return metrics.back();
  }

  [[nodiscard]] Labels labels_with(const char* name, const std::string& value) const {
    Labels labels = labels_;
    labels.push_back({name, value});
    return labels;
  }

  [[nodiscard]] std::string text(MetricsForm form) const {
    if (form == MetricsForm::kOpenMetrics) return openmetrics_text(families_, exemplars_);
    return prometheus::TextSerializer().Serialize(families_);
  }

 private:
  Labels labels_;
  std::vector<prometheus::MetricFamily> families_;
  Exemplars exemplars_;
};

}  // namespace sluice
