// SPDX-License-Identifier: Apache-2.0
#include "server/router/worker_health.h"

namespace sluice {

void WorkerHealth::answered(const WorkerLoad& load, Time now) {
  const bool has_work = load.num_running + load.num_waiting > 0;
  const bool is_other = load.epoch != load_.epoch || load.num_steps != load_.num_steps;
  if (!has_answered_ || !has_work || is_other) moved_at_ = now;
  load_ = load;
  has_answered_ = true;
  ever_answered_ = true;
  answered_at_ = now;
}

WorkerHealth::Status WorkerHealth::status(Time now) const {
  if (!ever_answered_) return Status::kUnknown;
  if (!has_answered_ || now - answered_at_ > kMostSilence) return Status::kSilent;
  return now - moved_at_ > kMostStandstill ? Status::kStuck : Status::kLive;
}

}  // namespace sluice
