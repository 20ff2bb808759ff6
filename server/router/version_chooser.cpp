// SPDX-License-Identifier: Apache-2.0
#include "server/router/version_chooser.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <numeric>
#include <optional>
#include <string_view>

#include "engine/core/config.h"

namespace sluice {
namespace {

template <typename Number>
std::optional<Number> parse(std::string_view text) {
  Number value{};
  const char* const end = text.data() + text.size();
  const auto read = std::from_chars(text.data(), end, value);
  if (read.ec != std::errc() || read.ptr != end) return std::nullopt;
  return value;
}

Expected<void> read_min_ready(std::string_view text, RouteRule& rule) {
  const bool is_share = text.ends_with('%');
  const auto value = parse<int64_t>(is_share ? text.substr(0, text.size() - 1) : text);
  constexpr int64_t kMostWorkers = 100'000;
  if (!value || *value < 1 || *value > (is_share ? 100 : kMostWorkers)) {
    return make_error(ErrorCode::kInvalidArgument,
                      "--route-min-ready: a number of workers from 1 on, or a share from 1% to "
                      "100%, not \"" +
                          std::string(text) + "\".",
                      "route-min-ready");
  }
  (is_share ? rule.min_percent : rule.min_count) = *value;
  return {};
}

Expected<void> read_share(std::string_view text, RouteRule& rule) {
  const size_t equals = text.rfind('=');
  const auto share =
      equals == std::string_view::npos ? std::nullopt : parse<double>(text.substr(equals + 1));
  if (!share || equals == 0 || !(*share >= 0 && *share <= 1)) {
    return make_error(ErrorCode::kInvalidArgument,
                      "--route-share: fingerprint=share with a share from 0 to 1, not \"" +
                          std::string(text) + "\".",
                      "route-share");
  }
  if (!rule.shares.emplace(text.substr(0, equals), *share).second) {
    return make_error(ErrorCode::kInvalidArgument,
                      "--route-share: " + std::string(text.substr(0, equals)) + " is given twice.",
                      "route-share");
  }
  return {};
}

// Returns the index of the version that gets what no share takes; versions.size(): none is ready.
size_t rest_of(std::span<const VersionReadiness> versions, const RouteRule& rule) {
  int64_t total = 0;
  for (const VersionReadiness& version : versions) {
    if (!rule.shares.contains(version.fingerprint)) total += version.num_ready;
  }
  const auto is_sufficient = [&](const VersionReadiness& version) {
    return rule.min_count > 0 ? version.num_ready >= rule.min_count
                              : 100 * version.num_ready >= rule.min_percent * total;
  };
  size_t newest = versions.size();
  size_t largest = versions.size();
  for (size_t i = 0; i < versions.size(); ++i) {
    const VersionReadiness& version = versions[i];
    if (version.num_ready == 0 || rule.shares.contains(version.fingerprint)) continue;
    const auto is_newer_than = [&](size_t k) { return version.created >= versions[k].created; };
    if (is_sufficient(version) && (newest == versions.size() || is_newer_than(newest))) newest = i;
    const bool is_larger =
        largest == versions.size() || version.num_ready > versions[largest].num_ready ||
        (version.num_ready == versions[largest].num_ready && is_newer_than(largest));
    if (is_larger) largest = i;
  }
  return newest < versions.size() ? newest : largest;
}

}  // namespace

Expected<RouteRule> RouteRule::read(const Config& config) {
  RouteRule rule;
  SLUICE_TRY_VOID(read_min_ready(config.route_min_ready, rule));
  double sum = 0;
  for (const std::string& text : config.route_shares) SLUICE_TRY_VOID(read_share(text, rule));
  for (const auto& [fingerprint, share] : rule.shares) sum += share;
  constexpr double kRounding = 1e-9;
  if (sum > 1 + kRounding) {
    return make_error(ErrorCode::kInvalidArgument,
                      "--route-share: the shares are more than 1 in sum.",
                      "route-share");
  }
  return rule;
}

std::vector<double> shares_of_requests(std::span<const VersionReadiness> versions,
                                       const RouteRule& rule) {
  std::vector<double> shares(versions.size(), 0);
  for (size_t i = 0; i < versions.size(); ++i) {
    const auto given = rule.shares.find(versions[i].fingerprint);
    if (given != rule.shares.end() && versions[i].num_ready > 0) shares[i] = given->second;
  }
  const double given = std::accumulate(shares.begin(), shares.end(), 0.0);
  const size_t rest = rest_of(versions, rule);
  if (rest < versions.size()) {
    shares[rest] = std::max(1 - given, 0.0);
  } else if (given > 0) {
    for (double& share : shares) share /= given;
  }
  return shares;
}

size_t version_at(std::span<const double> shares, double point) {
  size_t latest = shares.size();  // takes the point if rounding left the sum a little below 1
  double end = 0;
  for (size_t i = 0; i < shares.size(); ++i) {
    if (shares[i] <= 0) continue;
    latest = i;
    end += shares[i];
    if (point < end) break;
  }
  return latest;
}

double point_of_request(uint64_t n) {
  constexpr double kGoldenRatio = 0.6180339887498949;
  constexpr uint64_t kPeriod = uint64_t{1} << 32;  // beyond, a double would lose the fraction
  const double at = static_cast<double>(n % kPeriod) * kGoldenRatio;
  return at - std::floor(at);
}

}  // namespace sluice
