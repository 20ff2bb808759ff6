// SPDX-License-Identifier: Apache-2.0
#include "server/keys/tenant.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <utility>

namespace sluice {
namespace {

// Returns the whole seconds until `missing` units have accrued at `per_minute`.
int32_t seconds_for(double missing, int32_t per_minute) {
  return static_cast<int32_t>(std::clamp(std::ceil(missing * 60 / per_minute), 1.0, 86400.0));
}

tl::unexpected<Error> over_limit(const std::string& name,
                                 const std::string& what,
                                 int32_t seconds) {
  Error error{ErrorCode::kResourceExhausted,
              "Rate limit reached for API key '" + name + "': " + what + ". Try again in " +
                  std::to_string(seconds) + " s.",
              {},
              "rate_limit_exceeded"};
  error.retry_after_s = seconds;
  return tl::unexpected(std::move(error));
}

}  // namespace

Tenant::Tenant(std::string name, uint64_t salt, const TenantLimits& limits)
    : name_(std::move(name)),
      salt_(salt),
      id_(salt == 0 ? 0 : std::hash<std::string>()(name_) | 1),
      limits_(limits),
      requests_(limits.requests_per_minute),
      tokens_(limits.tokens_per_minute),
      refilled_(Clock::time_point::min()) {}

void Tenant::refill(Clock::time_point now) {
  if (refilled_ == Clock::time_point::min()) refilled_ = now;
  const double minutes = std::chrono::duration<double>(now - refilled_).count() / 60;
  if (minutes <= 0) return;
  refilled_ = now;
  const auto fill = [minutes](double& left, int32_t per_minute) {
    left = std::min<double>(left + minutes * per_minute, per_minute);
  };
  fill(requests_, limits_.requests_per_minute);
  fill(tokens_, limits_.tokens_per_minute);
}

Expected<void> Tenant::admit(int64_t prompt_tokens, Clock::time_point now) {
  const std::scoped_lock lock(mutex_);
  refill(now);
  if (limits_.concurrency > 0 && num_running_ >= limits_.concurrency) {
    return over_limit(name_, std::to_string(limits_.concurrency) + " requests at a time", 1);
  }
  if (limits_.requests_per_minute > 0 && requests_ < 1) {
    return over_limit(name_,
                      std::to_string(limits_.requests_per_minute) + " requests per minute",
                      seconds_for(1 - requests_, limits_.requests_per_minute));
  }
  if (limits_.tokens_per_minute > 0 && tokens_ < 1) {
    return over_limit(name_,
                      std::to_string(limits_.tokens_per_minute) + " tokens per minute",
                      seconds_for(1 - tokens_, limits_.tokens_per_minute));
  }
  ++num_running_;
  if (limits_.requests_per_minute > 0) requests_ -= 1;
  take_tokens(prompt_tokens);
  return {};
}

void Tenant::finish(int64_t generated_tokens) {
  const std::scoped_lock lock(mutex_);
  --num_running_;
  take_tokens(generated_tokens);
}

void Tenant::take_tokens(int64_t count) {
  if (limits_.tokens_per_minute > 0) tokens_ -= static_cast<double>(count);
}

void Tenant::set_limits(const TenantLimits& limits) {
  const std::scoped_lock lock(mutex_);
  requests_ += limits.requests_per_minute - limits_.requests_per_minute;
  tokens_ += limits.tokens_per_minute - limits_.tokens_per_minute;
  limits_ = limits;
}

}  // namespace sluice
