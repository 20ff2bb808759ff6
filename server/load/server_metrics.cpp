// SPDX-License-Identifier: Apache-2.0
#include "server/load/server_metrics.h"

#include <algorithm>
#include <charconv>
#include <cmath>

namespace sluice::load {
namespace {

constexpr size_t kMaxMetrics = 4096;

// Returns the end of the name and its labels; npos: the labels have no end.
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

// Returns `{position="3"}` if the labels have one; otherwise empty.
std::string position_of(std::string_view labels) {
  constexpr std::string_view kName = "position=\"";
  const size_t begin = labels.find(kName);
  if (begin == std::string_view::npos || begin == 0) return {};
  if (labels[begin - 1] != '{' && labels[begin - 1] != ',') return {};
  const std::string_view rest = labels.substr(begin + kName.size());
  const size_t end = rest.find_first_not_of("0123456789");
  if (end == 0 || end > 4 || end == std::string_view::npos || rest[end] != '"') return {};
  return "{position=\"" + std::string(rest.substr(0, end)) + "\"}";
}

void add_to(const std::string& key, double value, MetricValues& values) {
  if (values.size() >= kMaxMetrics && !values.contains(key)) return;
  values[key] += value;
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
  add_to(std::string(name), value, values);
  const std::string position = position_of(line.substr(name_end, at - name_end));
  if (!position.empty()) add_to(std::string(name) + position, value, values);
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
    const bool is_new_position = found == before.end() && name.ends_with('}');
    if (found == before.end() && !is_new_position) continue;
    const double known = is_new_position ? 0 : found->second;
    if (known != value) changes.push_back({name, known, value});
  }
  return changes;
}

std::optional<Speculation> speculation_of(const std::vector<MetricChange>& changes) {
  constexpr const char* kStem = "vllm:spec_decode_num_";
  const auto change_of = [&](const std::string& name) {
    const auto found = std::ranges::find(changes, kStem + name, &MetricChange::name);
    return found == changes.end() ? 0 : found->after - found->before;
  };
  Speculation result;
  result.num_drafts = change_of("drafts_total");
  result.num_draft_tokens = change_of("draft_tokens_total");
  result.num_accepted_tokens = change_of("accepted_tokens_total");
  if (result.num_draft_tokens <= 0) return std::nullopt;
  if (result.num_drafts <= 0) return result;
  while (true) {
    const double accepted = change_of("accepted_tokens_per_pos_total{position=\"" +
                                      std::to_string(result.accepted_at.size()) + "\"}");
    if (accepted <= 0) return result;
    result.accepted_at.push_back(accepted / result.num_drafts);
  }
}

}  // namespace sluice::load
