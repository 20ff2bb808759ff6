// SPDX-License-Identifier: Apache-2.0
#include "server/router/prefill_leg.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "server/grpc/kv_handshake.h"
#include "server/http/socket_name.h"

namespace sluice {
namespace {

// Returns the KV address; a worker that listens everywhere has the host that the router knows.
std::string kv_address(const Worker& worker) {
  const HandoffInfo& info = *worker.description->model.handoff;
  const auto name = parse_socket_name(worker.address);
  return text_of({is_any_host(info.host) && name ? name->host : info.host, info.port});
}

ValidRequest prefill_of(const ValidRequest& request, const TransferId& transfer) {
  ValidRequest prefill = request;
  prefill.sampling.max_tokens = 1;
  prefill.sampling.min_tokens = std::min(prefill.sampling.min_tokens, 1);
  prefill.sampling.num_logprobs = -1;
  prefill.prediction.clear();
  HandoffSpec& offer = prefill.handoff.emplace();
  offer.kind = HandoffKind::kOffer;
  offer.mode = HandoffMode::kConcurrent;
  offer.transfer = transfer;
  return prefill;
}

}  // namespace

bool is_prefill_worker(const Worker& worker) {
  if (!worker.description) return false;
  const auto& info = worker.description->model.handoff;
  return info && info->offers && !info->fetches;
}

bool is_decode_worker(const Worker& worker) {
  if (!worker.description) return false;
  const auto& info = worker.description->model.handoff;
  return info && info->fetches;
}

std::shared_ptr<PrefillLeg> PrefillLeg::begin(Worker& worker,
                                              const ValidRequest& request,
                                              std::vector<uint64_t> chain,
                                              int64_t num_uncached) {
  const std::shared_ptr<PrefillLeg> leg(new PrefillLeg(worker));
  const ModelInfo& model = worker.description->model;
  HandoffSpec& fetch = leg->fetch_;
  fetch.kind = HandoffKind::kFetch;
  fetch.mode = HandoffMode::kConcurrent;
  fill_random(fetch.transfer);
  fetch.peer = kv_address(worker);
  fetch.peer_epoch = model.handoff->epoch;
  fetch.peer_fingerprint = model.system_fingerprint;
  leg->chain_ = std::move(chain);
  leg->queued_tokens_ = num_uncached;
  worker.queued_tokens += num_uncached;
  ++worker.num_streams;
  worker.breaker.sent(std::chrono::steady_clock::now());
  const std::weak_ptr<PrefillLeg> weak = leg;
  leg->call_ = worker.link.generate(
      prefill_of(request, fetch.transfer),
      model.system_fingerprint,
      [weak](const CallUpdate& update) {
        if (const auto alive = weak.lock()) alive->take_update(update);
      },
      [weak](CallEnd end, const std::string& /*reason*/) {
        if (const auto alive = weak.lock()) alive->take_end(end);
      });
  return leg;
}

PrefillLeg::~PrefillLeg() { end(); }

void PrefillLeg::take_update(const CallUpdate& update) {
  if (worker_ == nullptr) return;
  const auto has_ended = [](const TokenOutput& output) {
    return output.finish_reason != FinishReason::kNone;
  };
  const auto has_token = [](const TokenOutput& output) { return output.token != kInvalidToken; };
  const bool is_over = std::ranges::any_of(update.outputs, has_ended);
  if (std::ranges::any_of(update.outputs, has_token)) worker_->prefixes.add(chain_);
  if (update.accepted || update.refusal || is_over) {
    worker_->breaker.succeeded();  // the worker has answered
    has_answered_ = true;
  }
  if (is_over || update.refusal) leave();
}

void PrefillLeg::take_end(CallEnd end) {
  if (worker_ == nullptr) return;
  const auto now = std::chrono::steady_clock::now();
  if (end == CallEnd::kLost) {
    worker_->breaker.died(now);
  } else if (end == CallEnd::kDenied || end == CallEnd::kFailed) {
    worker_->breaker.failed(now);
  } else if (!has_answered_) {
    worker_->breaker.gave_up();  // the request may have been the breaker's probe
  }
  leave();
}

void PrefillLeg::leave() {
  if (worker_ == nullptr) return;
  worker_->queued_tokens -= std::exchange(queued_tokens_, 0);
  --worker_->num_streams;
  worker_ = nullptr;
}

void PrefillLeg::end() {
  if (worker_ == nullptr) return;
  if (!has_answered_) worker_->breaker.gave_up();
  leave();
  call_->cancel();
}

}  // namespace sluice
