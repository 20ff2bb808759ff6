// SPDX-License-Identifier: Apache-2.0
#include "server/load/server_metrics.h"

#include <algorithm>
#include <charconv>
#include <cmath>

namespace sluice::load {
namespace {

constexpr size_t kMaxMetrics = 4096;

// Where the name and its labels end; npos when the labels have no end.
size_t end_of_labels(std::string_view line, size_t brace) {
  bool quoted = false;
  for (size_t i = brace + 1; i < line.size(); ++i) {
    if (quoted && line[i] == '\\') {
      ++i;
    } else if (line[i] == '"') {
      quoted = !quoted;
    } else if (!quoted && line[i] == '}') {
      return i + 1;
    }
  }
  return std::string_view::npos;
}

void take_line(std::string_view line, MetricValues& values) {
  if (line.empty() || line.front() == '#') return;
  const size_t name_end = line.find_first_of("{ \t");
  if (name_end == std::string_view::npos || name_end == 0) return;
  const std::string_view name = line.substr(0, name_end);
  if (name.ends_with("_bucket") || name.ends_with("_created")) return;
  size_t at = line[name_end] == '{' ? end_of_labels(line, name_end) : name_end;
  if (at == std::string_view::npos) return;
  at = line.find_first_not_of(" \t", at);
  if (at == std::string_view::npos) return;
  double value = 0;
  const std::string_view rest = line.substr(at);
  const auto [end, error] = std::from_chars(rest.begin(), rest.end(), value);
  if (error != std::errc() || !std::isfinite(value)) return;
  if (values.size() >= kMaxMetrics && !values.contains(std::string(name))) return;
  values[std::string(name)] += value;
}

}  // namespace

MetricValues parse_metrics(std::string_view text) {
  MetricValues values;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    if (line.ends_with('\r')) line.remove_suffix(1);
    take_line(line, values);
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return values;
}

std::vector<MetricChange> compare_metrics(const MetricValues& before, const MetricValues& after) {
  std::vector<MetricChange> changes;
  for (const auto& [name, value] : after) {
    const auto found = before.find(name);
    if (found != before.end() && found->second != value) {
      changes.push_back({name, found->second, value});
    }
  }
  return changes;
}

}  // namespace sluice::load
