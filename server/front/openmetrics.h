// SPDX-License-Identifier: Apache-2.0
// Families of metrics as OpenMetrics 1.0.0 text, the form that can name a trace beside a bucket.
// Any thread.
#pragma once

#include <prometheus/metric_family.h>

#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "engine/core/stats.h"

namespace sluice {

// The text format of Prometheus, or OpenMetrics, which has exemplars as well.
enum class MetricsForm : uint8_t { kText, kOpenMetrics };

inline constexpr const char* kOpenMetricsType =
    "application/openmetrics-text; version=1.0.0; charset=utf-8";

// By the name of a family with one histogram: the exemplars of its buckets in order, the last one
// above every bound.
using Exemplars = std::map<std::string, std::vector<Exemplar>, std::less<>>;

// Counters have names that end in _total.
std::string openmetrics_text(std::span<const prometheus::MetricFamily> families,
                             const Exemplars& exemplars);

}  // namespace sluice
