// SPDX-License-Identifier: Apache-2.0
#include "scheduler/admission.h"

#include <xxhash.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "scheduler/policy.h"

namespace sluice {

namespace {

constexpr int64_t kQueueShare = 8;
constexpr double kFadeS = 20;    // decay time of the queue's speed
constexpr double kLeastS = 0.5;  // waiting time before a speed is believed
constexpr double kOutputWeight = 1.0 / 32;
constexpr double kLongestRetryS = 3600;
// A ticket's time is this factor longer than its work takes, as the speed is not known exactly. No
// capacity is lost: requests without tickets fill the queue.
constexpr double kTicketMargin = 1.25;
constexpr size_t kMaxTickets = 1 << 16;
// A ticket stays valid for this time plus this share of the wait.
constexpr double kGraceMs = 10'000;
constexpr double kGraceOfWait = 0.25;
// The other choices of a request use its ticket within this time.
constexpr int64_t kUseMs = 1000;

// Identifies a request that is sent again.
uint64_t fingerprint(const AdmissionRequest& request) {
  const uint64_t whose[] = {request.tenant.value, static_cast<uint64_t>(request.max_tokens)};
  return XXH3_64bits_withSeed(
      request.prompt.data(), request.prompt.size_bytes(), XXH3_64bits(whose, sizeof whose));
}

int32_t whole_seconds(double ms) {
  return static_cast<int32_t>(std::clamp(std::ceil(ms / 1000), 1.0, kLongestRetryS));
}

std::string in_seconds(double ms) { return std::to_string(whole_seconds(ms)) + " s"; }

}  // namespace

void QueueSpeed::observe(int64_t work_started, double seconds) {
  if (!(seconds > 0)) return;
  const double kept = std::exp(-seconds / kFadeS);
  work_ = kept * work_ + static_cast<double>(work_started);
  seconds_ = kept * seconds_ + seconds;
}

double QueueSpeed::work_per_s() const { return seconds_ < kLeastS ? 0 : work_ / seconds_; }

void QueueSpeed::observe_output(int32_t num_tokens) {
  mean_output_ += kOutputWeight * (num_tokens - mean_output_);
}

double Admission::predict_wait_ms(TenantId tenant, double work_per_s) const {
  if (work_per_s <= 0) return 0;
  const auto own = shares_.find(tenant);
  const int64_t own_work = own == shares_.end() ? 0 : own->second.work;
  int64_t ahead = own_work;
  for (const auto& [id, share] : shares_) {
    if (id != tenant) ahead += std::min(share.work, own_work);
  }
  return 1000 * static_cast<double>(ahead) / work_per_s;
}

Admission::Bound Admission::exceeded_by(const QueuedWork& added,
                                        double wait_ms,
                                        int64_t max_wait_ms) const {
  if (total_.num_requests >= options_.max_requests) return Bound::kRequests;
  const int64_t tokens_left = options_.max_tokens - total_.num_tokens;
  if (total_.num_requests > 0 && added.num_tokens > tokens_left) return Bound::kTokens;
  const auto own = shares_.find(added.tenant);
  if (added.tenant.value != 0 && own != shares_.end() && own->second.num_requests > 0) {
    const int64_t requests_free = options_.max_requests - total_.num_requests - 1;
    const int64_t tokens_free = tokens_left - added.num_tokens;
    if (own->second.num_requests + 1 > kQueueShare * requests_free) return Bound::kShare;
    if (own->second.num_tokens + added.num_tokens > kQueueShare * tokens_free) return Bound::kShare;
  }
  if (max_wait_ms > 0 && wait_ms > static_cast<double>(max_wait_ms)) return Bound::kWait;
  return Bound::kNone;
}

// Time until the request fits if nothing else arrives.
double Admission::excess_ms(Bound bound,
                            const QueuedWork& added,
                            double wait_ms,
                            int64_t max_wait_ms,
                            double work_per_s) const {
  if (bound == Bound::kWait) return wait_ms - static_cast<double>(max_wait_ms);
  double part = 1 / static_cast<double>(std::max<int64_t>(total_.num_requests, 1));
  if (bound == Bound::kTokens) {
    const int64_t over = total_.num_tokens + added.num_tokens - options_.max_tokens;
    part = std::min(1.0, static_cast<double>(over) / static_cast<double>(total_.num_tokens));
  }
  return 1000 * part * static_cast<double>(total_.work) / work_per_s;
}

bool Admission::use_ticket(uint64_t hash, const QueuedWork& added, int64_t now_ms) {
  const auto it = tickets_.find(hash);
  if (it == tickets_.end() || now_ms < it->second.from_ms || now_ms > it->second.until_ms) {
    return false;
  }
  const int64_t extra_tokens = options_.max_tokens / 4 + added.num_tokens;
  if (total_.num_requests >= options_.max_requests + extra_requests(options_.max_requests) ||
      total_.num_tokens > options_.max_tokens + extra_tokens) {
    return false;
  }
  it->second.until_ms = std::min(it->second.until_ms, now_ms + kUseMs);
  return true;
}

// Returns the seconds after which to retry.
int32_t Admission::give_ticket(
    uint64_t hash, const QueuedWork& added, double excess, double work_per_s, int64_t now_ms) {
  const auto now = static_cast<double>(now_ms);
  const auto known = tickets_.find(hash);
  if (known != tickets_.end() && now_ms < known->second.from_ms) {
    return whole_seconds(static_cast<double>(known->second.from_ms) - now);
  }
  std::erase_if(shares_, [now](const auto& item) {
    return item.second.num_requests == 0 && item.second.last_ticket_ms < now;
  });
  Share& own = shares_[added.tenant];
  const double each_ms = 1000 * kTicketMargin * static_cast<double>(added.work) / work_per_s;
  const double from =
      std::max(now + excess, own.last_ticket_ms) + each_ms * static_cast<double>(shares_.size());
  if (from - now > 1000 * kLongestRetryS || tickets_.size() >= kMaxTickets) {
    return whole_seconds(from - now);
  }
  own.last_ticket_ms = from;
  const double until = from + kGraceMs + kGraceOfWait * (from - now);
  tickets_[hash] = {static_cast<int64_t>(from), static_cast<int64_t>(until)};
  ticket_order_.push_back(hash);
  return whole_seconds(from - now);
}

void Admission::forget_old_tickets(int64_t now_ms) {
  while (!ticket_order_.empty()) {
    const auto it = tickets_.find(ticket_order_.front());
    if (it != tickets_.end() && it->second.until_ms >= now_ms) return;
    if (it != tickets_.end()) tickets_.erase(it);
    ticket_order_.pop_front();
  }
}

Expected<QueuedWork> Admission::enter(const AdmissionRequest& request,
                                      double work_per_s,
                                      double mean_output,
                                      int64_t now_ms) {
  forget_old_tickets(now_ms);
  QueuedWork added{request.tenant, static_cast<int64_t>(request.prompt.size()), 0};
  const auto output = std::min<int64_t>(request.max_tokens, std::llround(mean_output));
  added.work = added.num_tokens + kGeneratedCost * output;
  int64_t max_wait_ms = options_.max_wait_ms;
  if (request.max_wait_ms > 0 && (max_wait_ms == 0 || request.max_wait_ms < max_wait_ms)) {
    max_wait_ms = request.max_wait_ms;
  }
  const double wait_ms = predict_wait_ms(request.tenant, work_per_s);
  const Bound bound = exceeded_by(added, wait_ms, max_wait_ms);
  if (bound == Bound::kNone || use_ticket(fingerprint(request), added, now_ms)) {
    for (Share* share : {&total_, &shares_[added.tenant]}) {
      ++share->num_requests;
      share->num_tokens += added.num_tokens;
      share->work += added.work;
    }
    return added;
  }
  Error error{ErrorCode::kResourceExhausted, {}, {}, {}};
  if (bound == Bound::kWait) {
    error.message = "The request would wait " + in_seconds(wait_ms) + " before it starts, " +
                    in_seconds(static_cast<double>(max_wait_ms)) + " at most are allowed.";
  } else if (bound == Bound::kTokens) {
    error.message =
        "The queue is full: " + std::to_string(total_.num_tokens) + " tokens of prompts wait.";
  } else {
    const int64_t waiting =
        bound == Bound::kShare ? shares_[added.tenant].num_requests : total_.num_requests;
    error.message = "The queue is full: " + std::to_string(waiting) + " requests wait" +
                    (bound == Bound::kShare ? " with this key." : ".");
  }
  if (work_per_s > 0) {
    const double excess = excess_ms(bound, added, wait_ms, max_wait_ms, work_per_s);
    error.retry_after_s = give_ticket(fingerprint(request), added, excess, work_per_s, now_ms);
  }
  return tl::unexpected(std::move(error));
}

void Admission::leave(const QueuedWork& queued) {
  const auto own = shares_.find(queued.tenant);
  for (Share* share : {&total_, &own->second}) {
    --share->num_requests;
    share->num_tokens -= queued.num_tokens;
    share->work -= queued.work;
  }
  if (own->second.num_requests == 0 && own->second.last_ticket_ms == 0) shares_.erase(own);
}

}  // namespace sluice
