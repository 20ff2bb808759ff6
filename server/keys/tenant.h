// SPDX-License-Identifier: Apache-2.0
// The holder of an API key: a name, a share of the prefix cache, and limits on concurrent requests
// and on use per minute. Any thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>

#include "engine/core/status.h"
#include "engine/core/types.h"

namespace sluice {

// Limits of one tenant; 0: no limit.
struct TenantLimits {
  int32_t concurrency = 0;  // requests under way
  int32_t requests_per_minute = 0;
  int32_t tokens_per_minute = 0;  // prompt and output
};

class Tenant {
 public:
  using Clock = std::chrono::steady_clock;

  Tenant(std::string name, uint64_t salt, const TenantLimits& limits);

  [[nodiscard]] const std::string& name() const { return name_; }

  [[nodiscard]] uint64_t salt() const { return salt_; }

  // Identifies the tenant's share of the engine; 0: there are no keys. Keys of one name share.
  [[nodiscard]] TenantId id() const { return id_; }

  // Counts one more request and its prompt, or says with kResourceExhausted which limit it exceeds
  // and how long that lasts. Buckets hold a minute's worth and refill steadily; tokens are owed, so
  // a request runs if the bucket holds at least one.
  Expected<void> admit(int64_t prompt_tokens, Clock::time_point now);
  // Counts the end of a request after `generated_tokens`.
  void finish(int64_t generated_tokens);

  // Replaces the limits by those of a file that was read again; open requests and debts stay.
  void set_limits(const TenantLimits& limits);

 private:
  void refill(Clock::time_point now);
  void take_tokens(int64_t count);

  const std::string name_;
  const uint64_t salt_;
  const TenantId id_;
  std::mutex mutex_;  // guards everything below
  TenantLimits limits_;
  int32_t num_running_ = 0;
  double requests_;  // left
  double tokens_;    // left; negative: owed
  Clock::time_point refilled_;
};

// A request granted to a tenant; the destructor finishes it.
class TenantLease {
 public:
  explicit TenantLease(std::shared_ptr<Tenant> tenant) : tenant_(std::move(tenant)) {}

  ~TenantLease() { tenant_->finish(num_tokens_); }

  TenantLease(const TenantLease&) = delete;
  TenantLease& operator=(const TenantLease&) = delete;

  void add_tokens(int64_t generated) { num_tokens_ += generated; }

  [[nodiscard]] const Tenant& tenant() const { return *tenant_; }

 private:
  std::shared_ptr<Tenant> tenant_;
  int64_t num_tokens_ = 0;
};

}  // namespace sluice
