// SPDX-License-Identifier: Apache-2.0
#include "server/load/compare.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>

namespace sluice::load {
namespace {

using Json = nlohmann::ordered_json;

constexpr double kWidestBar = 20;    // characters on either side of the axis
constexpr double kLeastScale = 0.1;  // so that noise makes no long bars

enum class Better { kMore, kLess };

// nullopt: a figure that is neither good nor bad, or none.
std::optional<Better> direction_of(std::string_view key) {
  for (const std::string_view rate : {"request_throughput",
                                      "request_goodput",
                                      "output_throughput",
                                      "total_token_throughput",
                                      "tokens_per_second",
                                      "requests_per_second",
                                      "spec_decode_acceptance_length"}) {
    if (key == rate) return Better::kMore;
  }
  if (key == "failed" || key == "avg_latency") return Better::kLess;
  if (!key.ends_with("_ms") || key.starts_with("std_")) return std::nullopt;
  const bool is_quantile = key.size() > 1 && key[0] == 'p' && key[1] >= '0' && key[1] <= '9';
  if (is_quantile || key.starts_with("mean_") || key.starts_with("median_")) return Better::kLess;
  return std::nullopt;
}

double gain_of(double before, double after, Better better) {
  const double more = better == Better::kMore ? after - before : before - after;
  if (more == 0) return 0;
  if (before == 0) return std::copysign(std::numeric_limits<double>::infinity(), more);
  return more / std::abs(before);
}

std::string percent_text(double gain) {
  if (std::isinf(gain)) return gain > 0 ? "better" : "worse";
  char text[32];
  std::snprintf(text, sizeof text, "%+.1f %%", 100 * gain);
  return text;
}

std::string bar_text(double gain, double scale) {
  const auto width = static_cast<size_t>(kWidestBar);
  const double share = std::clamp(std::abs(gain) / scale, 0.0, 1.0);
  const auto length = static_cast<size_t>(std::lround(share * kWidestBar));
  if (gain < 0) return std::string(width - length, ' ') + std::string(length, '-') + "|";
  return std::string(width, ' ') + "|" + std::string(length, '+');
}

void add_difference(const Json& before, const Json& after, const char* key, Comparison& out) {
  const Json a = before.value(key, Json());
  const Json b = after.value(key, Json());
  if (a == b) return;
  const auto word = [](const Json& value) {
    return value.is_string() ? value.get<std::string>() : value.dump();
  };
  out.differences.push_back(std::string(key) + " differs: " + word(a) + " and " + word(b));
}

}  // namespace

Expected<Comparison> compare_results(const Json& before, const Json& after) {
  Comparison comparison;
  for (const auto& [key, value] : before.items()) {
    const auto better = direction_of(key);
    const auto other = after.find(key);
    if (!better || !value.is_number() || other == after.end() || !other->is_number()) continue;
    ComparedFigure figure{key, value.get<double>(), other->get<double>(), 0};
    figure.gain = gain_of(figure.before, figure.after, *better);
    // Times of a run without any are zeros.
    if (key.ends_with("_ms") && (figure.before == 0 || figure.after == 0)) continue;
    comparison.figures.push_back(std::move(figure));
  }
  if (comparison.figures.empty()) {
    return make_error(ErrorCode::kInvalidArgument, "the two results have no figure in common");
  }
  for (const char* key : {"model_id",
                          "dataset_name",
                          "num_prompts",
                          "request_rate",
                          "max_concurrency",
                          "burstiness",
                          "total_input_tokens",
                          "seed"}) {
    add_difference(before, after, key, comparison);
  }
  return comparison;
}

std::string comparison_text(const Comparison& comparison) {
  double scale = kLeastScale;
  for (const ComparedFigure& figure : comparison.figures) {
    if (std::isfinite(figure.gain)) scale = std::max(scale, std::abs(figure.gain));
  }
  char line[200];
  std::snprintf(line,
                sizeof line,
                "%-32s %12s %12s %9s  %20s|%s\n",
                "figure",
                "A",
                "B",
                "B is",
                "worse",
                "better");
  std::string text = line;
  for (const ComparedFigure& figure : comparison.figures) {
    std::snprintf(line,
                  sizeof line,
                  "%-32s %12.2f %12.2f %9s  %s\n",
                  figure.name.substr(0, 60).c_str(),
                  figure.before,
                  figure.after,
                  percent_text(figure.gain).c_str(),
                  bar_text(figure.gain, scale).c_str());
    text += line;
  }
  for (const std::string& difference : comparison.differences) text += difference + "\n";
  return text;
}

std::vector<std::string> losses(const Comparison& comparison, double percent) {
  std::vector<std::string> found;
  for (const ComparedFigure& figure : comparison.figures) {
    if (-100 * figure.gain <= percent) continue;
    char text[160];
    std::snprintf(text,
                  sizeof text,
                  "%s was %.2f and is %.2f",
                  figure.name.substr(0, 60).c_str(),
                  figure.before,
                  figure.after);
    found.emplace_back(text);
  }
  return found;
}

Expected<Json> parse_result(const std::string& text, const std::string& path) {
  Json whole = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (whole.is_object()) return whole;
  const size_t end = text.find_last_not_of(" \t\r\n");
  if (end != std::string::npos) {
    const size_t newline = text.rfind('\n', end);
    const size_t begin = newline == std::string::npos ? 0 : newline + 1;
    Json last =
        Json::parse(text.substr(begin, end + 1 - begin), nullptr, /*allow_exceptions=*/false);
    if (last.is_object()) return last;
  }
  return make_error(ErrorCode::kDataLoss, path + ": no result of `bench`, which is a JSON object");
}

}  // namespace sluice::load
