// SPDX-License-Identifier: Apache-2.0
#include "engine/loop/queue_gate.h"

#include <algorithm>
#include <chrono>
#include <cmath>

#include "engine/core/times.h"

namespace sluice {
namespace {

int64_t now_ms() { return to_ms(std::chrono::steady_clock::now()); }

}  // namespace

QueueGate::QueueGate(const Config& config)
    : admission_({.max_requests = config.max_num_queued_reqs,
                  .max_tokens = config.max_num_queued_tokens,
                  .max_wait_ms = int64_t{1000} * config.max_queue_wait_s}) {}

Expected<QueuedWork> QueueGate::enter(const ValidRequest& request) {
  const std::scoped_lock lock(mutex_);
  auto entered = admission_.enter({.tenant = request.tenant,
                                   .prompt = request.prompt,
                                   .max_tokens = request.sampling.max_tokens,
                                   .max_wait_ms = request.max_queue_wait_ms},
                                  work_per_s_,
                                  mean_output_,
                                  now_ms());
  if (!entered) ++num_refused_;
  return entered;
}

void QueueGate::leave(const QueuedWork& queued) {
  const std::scoped_lock lock(mutex_);
  admission_.leave(queued);
}

int64_t QueueGate::num_waiting() const {
  const std::scoped_lock lock(mutex_);
  return admission_.num_requests();
}

int32_t QueueGate::retry_after_s(TenantId tenant) const {
  const std::scoped_lock lock(mutex_);
  const double wait_ms = admission_.predict_wait_ms(tenant, work_per_s_);
  return static_cast<int32_t>(std::clamp(std::ceil(wait_ms / 1000), 1.0, 3600.0));
}

void QueueGate::observe_step(int64_t work_started, double seconds) {
  speed_.observe(work_started, seconds);
  work_per_s_ = speed_.work_per_s();
}

void QueueGate::observe_output(int32_t num_tokens) {
  speed_.observe_output(num_tokens);
  mean_output_ = speed_.mean_output();
}

}  // namespace sluice
