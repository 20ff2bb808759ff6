// SPDX-License-Identifier: Apache-2.0
// What the engine does for handoffs (handoff/handoff.h) beside holding their requests.
#include <algorithm>
#include <utility>

#include "engine/core/kv_transfer_report.h"
#include "engine/core/log.h"
#include "engine/loop/engine_core.h"
#include "engine/loop/local_engine.h"
#include "engine/run/model_runner.h"

namespace sluice {

Expected<void> LocalEngine::open_handoff(const HandoffConfig& part, const OpenKvPeers& open_peers) {
  if (config_.kv_listen.empty() || !open_peers) return {};
  if (!core_->kv.caches_prefixes()) {
    return make_error(ErrorCode::kUnsupported,
                      "--kv-listen: KV goes between workers with a prefix cache",
                      "kv-listen");
  }
  if (config_.tensor_parallel_size > 1 && info_.is_on_gpu()) {
    return make_error(ErrorCode::kUnsupported,
                      "--kv-listen: found " + std::to_string(config_.tensor_parallel_size) +
                          " GPUs, expected one, or ranks on the CPU",
                      "kv-listen");
  }
  SLUICE_TRY(core_->handoff,
             Handoff::create(config_,
                             part.role,
                             info_.system_fingerprint,
                             core_->runner->kv_ranks(),
                             core_->kv,
                             open_peers,
                             [this] { inbox_.push_urgent(WakeCommand{}); },
                             {.type = info_.is_on_gpu() ? DeviceType::kCuda : DeviceType::kCpu}));
  core_->holders.push_back(make_handoff_holder(
      *core_->handoff, part.failure_policy, draining_, core_->scheduler, core_->requests));
  info_.handoff = core_->handoff->info();
  return {};
}

void LocalEngine::Core::report_transfers() {
  std::vector<KvTransferReport> transfers;
  handoff->take_reports(transfers);
  if (transfers.empty()) return;
  const std::scoped_lock lock(engine.watcher_mutex_);
  if (engine.transfer_watcher_ == nullptr) return;
  for (const KvTransferReport& report : transfers) {
    engine.transfer_watcher_->transfer_ended(report);
  }
}

std::chrono::microseconds LocalEngine::Core::idle_wait() const {
  constexpr auto kIdleWait = std::chrono::microseconds(500'000);
  if (!handoff) return kIdleWait;
  const auto timer = handoff->next_timer();
  if (!timer) return kIdleWait;
  const auto left = std::chrono::duration_cast<std::chrono::microseconds>(*timer - Clock::now());
  return std::clamp(
      left + std::chrono::microseconds(1'000), std::chrono::microseconds(0), kIdleWait);
}

// Whether the request must start again: it was computed after another worker's blocks, and that
// worker's row of logits after the prompt had other bits. Nothing of its answer has been sent.
bool LocalEngine::Core::must_restart(const Request& request, uint64_t check, TokenId token) {
  if (!handoff) return false;
  handoff->note_token(request.id);
  if (request.num_generated() > 0) return false;
  if (request.restarts) return true;
  RequestState& state = *requests.find(request.id);
  auto offer = handoff->choose(request.id, token, state.record->sampling.seed, check);
  if (offer) state.offer = std::move(offer);  // before its last token, whose output carries it
  if (handoff->compare(request.id, check, Clock::now())) return false;
  orders.begin_again(request.id);
  return true;
}

void LocalEngine::Core::retire_handoffs(const SchedulerOutput& output) {
  if (!handoff) return;
  const Clock::time_point now = Clock::now();
  for (const ScheduledRequest& item : output.scheduled) {
    const Request* const request = scheduler.find(item.id);
    if (request != nullptr) handoff->computed(item.id, request->num_computed_tokens, now);
  }
  handoff->retire(now);
  for (const RequestId id : outcome.finished) handoff->end(id, now);
}

}  // namespace sluice
