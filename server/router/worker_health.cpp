// SPDX-License-Identifier: Apache-2.0
#include "server/router/worker_health.h"

#include <algorithm>

namespace sluice {

void WorkerHealth::answered(const WorkerLoad& load, Time now) {
  const bool has_work = load.num_running + load.num_waiting > 0;
  const bool is_other = load.epoch != load_.epoch || load.num_steps != load_.num_steps;
  if (!has_answered_ || !has_work || is_other) moved_at_ = now;
  if (load.num_open != 0) {
    idle_since_ = Time{};
  } else if (idle_since_ == Time{} || !has_answered_ || load.epoch != load_.epoch) {
    idle_since_ = now;
  }
  load_ = load;
  has_answered_ = true;
  ever_answered_ = true;
  answered_at_ = now;
}

bool WorkerHealth::has_forgotten_since(Time time) const {
  if (!has_answered_ || idle_since_ == Time{}) return false;
  return answered_at_ - std::max(idle_since_, time) > kMostForgotten;
}

WorkerHealth::Status WorkerHealth::status(Time now) const {
  if (!ever_answered_) return Status::kUnknown;
  if (!has_answered_ || now - answered_at_ > kMostSilence) return Status::kSilent;
  return now - moved_at_ > kMostStandstill ? Status::kStuck : Status::kLive;
}

}  // namespace sluice
