// SPDX-License-Identifier: Apache-2.0
#include "server/front/openmetrics.h"

#include <array>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string_view>

#include "engine/core/hex.h"

namespace sluice {
namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;

constexpr std::string_view kTotal = "_total";

// Go's and Python's way to write a float: bounds are label values, which must not depend on the
// form that a scrape asked for or on the server that it asked.
std::string number(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "+Inf" : "-Inf";
  constexpr double kMostPlain = 1e6;
  constexpr double kLeastPlain = 1e-4;
  const double size = std::abs(value);
  const bool is_plain = size == 0 || (size >= kLeastPlain && size < kMostPlain);
  std::array<char, 64> digits{};
  const auto end =
      std::to_chars(digits.data(),
                    digits.data() + digits.size(),
                    value,
                    is_plain ? std::chars_format::fixed : std::chars_format::scientific);
  std::string text(digits.data(), end.ptr);
  if (is_plain && text.find('.') == std::string::npos) text += ".0";
  return text;
}

// A count, which no float need be.
std::string number(uint64_t value) { return std::to_string(value); }

std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '\n') {
      out += "\\n";
    } else {
      if (c == '\\' || c == '"') out += '\\';
      out += c;
    }
  }
  return out;
}

std::string_view type_name(MetricType type) {
  switch (type) {
    case MetricType::Counter:
      return "counter";
    case MetricType::Gauge:
      return "gauge";
    case MetricType::Histogram:
      return "histogram";
    case MetricType::Summary:
    case MetricType::Untyped:
      return "unknown";
  }
  return "unknown";
}

// `bound`: the value of another label, le; empty: none.
void write_sample(std::string_view name,
                  const std::vector<ClientMetric::Label>& labels,
                  std::string_view bound,
                  std::string_view value,
                  const Exemplar* exemplar,
                  std::string& out) {
  out.append(name);
  char separator = '{';
  const auto add = [&](std::string_view label, std::string_view text) {
    out += separator;
    separator = ',';
    out.append(label).append("=\"").append(escaped(text)) += '"';
  };
  for (const ClientMetric::Label& label : labels) add(label.name, label.value);
  if (!bound.empty()) add("le", bound);
  if (separator == ',') out += '}';
  out.append(" ").append(value);
  if (exemplar != nullptr && exemplar->trace_id != Exemplar{}.trace_id) {
    constexpr double kNsPerSecond = 1e9;
    std::array<char, 64> seconds{};
    const auto end = std::to_chars(seconds.data(),
                                   seconds.data() + seconds.size(),
                                   static_cast<double>(exemplar->time_ns) / kNsPerSecond,
                                   std::chars_format::fixed,
                                   3);
    out.append(" # {trace_id=\"").append(to_hex(exemplar->trace_id));
    out.append("\",span_id=\"").append(to_hex(exemplar->span_id));
    out.append("\"} ").append(number(exemplar->value)).append(" ");
    out.append(seconds.data(), end.ptr);
  }
  out += '\n';
}

void write_histogram(const std::string& name,
                     const ClientMetric& metric,
                     const std::vector<Exemplar>* exemplars,
                     std::string& out) {
  const auto exemplar = [&](size_t bucket) {
    return exemplars != nullptr && bucket < exemplars->size() ? &(*exemplars)[bucket] : nullptr;
  };
  const ClientMetric::Histogram& histogram = metric.histogram;
  const auto write = [&](double bound, uint64_t count, size_t bucket) {
    write_sample(
        name + "_bucket", metric.label, number(bound), number(count), exemplar(bucket), out);
  };
  for (size_t i = 0; i < histogram.bucket.size(); ++i) {
    write(histogram.bucket[i].upper_bound, histogram.bucket[i].cumulative_count, i);
  }
  write(std::numeric_limits<double>::infinity(), histogram.sample_count, histogram.bucket.size());
  write_sample(name + "_count", metric.label, {}, number(histogram.sample_count), nullptr, out);
  write_sample(name + "_sum", metric.label, {}, number(histogram.sample_sum), nullptr, out);
}

}  // namespace

std::string openmetrics_text(std::span<const MetricFamily> families, const Exemplars& exemplars) {
  std::string out;
  for (const MetricFamily& family : families) {
    std::string name = family.name;
    const bool is_counter = family.type == MetricType::Counter;
    if (is_counter && name.ends_with(kTotal)) name.resize(name.size() - kTotal.size());
    out.append("# TYPE ").append(name).append(" ").append(type_name(family.type)).append("\n");
    out.append("# HELP ").append(name).append(" ").append(escaped(family.help)).append("\n");
    const auto found = exemplars.find(family.name);
    for (const ClientMetric& metric : family.metric) {
      if (family.type == MetricType::Histogram) {
        write_histogram(name, metric, found == exemplars.end() ? nullptr : &found->second, out);
      } else if (is_counter) {
        const std::string sample = name + std::string(kTotal);
        write_sample(sample, metric.label, {}, number(metric.counter.value), nullptr, out);
      } else {
        write_sample(name, metric.label, {}, number(metric.gauge.value), nullptr, out);
      }
    }
  }
  return out + "# EOF\n";
}

}  // namespace sluice
