// SPDX-License-Identifier: Apache-2.0
// Decides whether one more request may wait, and when a refused one may retry. There are three
// bounds: the number of waiting requests, the tokens of their prompts, and the predicted time until
// the new request starts (the work ahead of it over the measured speed of the queue).
//
// Tenants share the queue as they share the engine. The work ahead of a request is its tenant's own
// work plus, from each other tenant, at most as much again. A named tenant may only take up to
// kQueueShare times what it leaves free (the dynamic thresholds of Choudhury and Hahne, 1998), so a
// tenant that fills the queue still leaves room for the next one.
//
// A refused request gets a ticket: the time, spaced from earlier tickets by what the engine can do,
// at which the same request is let in even if the queue is full. The queue thus continues outside
// in order, and Retry-After holds. Not thread-safe: the caller locks and supplies the time.
#pragma once

#include <cstdint>
#include <deque>
#include <span>
#include <unordered_map>

#include "engine/core/status.h"
#include "engine/core/types.h"

namespace sluice {

struct AdmissionOptions {
  int64_t max_requests = 1024;
  int64_t max_tokens = int64_t{1} << 22;  // total of prompt tokens; a single prompt may be longer
  int64_t max_wait_ms = 0;                // bound on the predicted wait; 0: none
};

struct AdmissionRequest {
  TenantId tenant;
  std::span<const TokenId> prompt;
  int32_t max_tokens = 0;
  int64_t max_wait_ms = 0;  // the request's own bound; 0: none
};

// The weight of one waiting request in the queue; leave() takes it back.
struct QueuedWork {
  TenantId tenant;
  int64_t num_tokens = 0;
  int64_t work = 0;
};

// How fast the queue moves: the work that starts over the time during which requests wait; older
// observations fade. One thread.
class QueueSpeed {
 public:
  void observe(int64_t work_started, double seconds);
  [[nodiscard]] double work_per_s() const;  // 0: not known yet

  // Records that a request has ended with `num_tokens` generated tokens.
  void observe_output(int32_t num_tokens);

  [[nodiscard]] double mean_output() const { return mean_output_; }

 private:
  double work_ = 0;
  double seconds_ = 0;
  double mean_output_ = 64;  // initial value, before any request has ended
};

class Admission {
 public:
  // Returns how many requests with tickets may wait beyond `max_requests`.
  static constexpr int64_t extra_requests(int64_t max_requests) { return max_requests / 4 + 1; }

  explicit Admission(const AdmissionOptions& options) : options_(options) {}

  // Admits a request to the queue, or fails with kResourceExhausted and, where the speed is known,
  // retry_after_s.
  Expected<QueuedWork> enter(const AdmissionRequest& request,
                             double work_per_s,
                             double mean_output,
                             int64_t now_ms);
  // Removes a request from the queue: it has started or left.
  void leave(const QueuedWork& queued);

  [[nodiscard]] int64_t num_requests() const { return total_.num_requests; }

  // Predicted time before a new request of this tenant would start; 0 where the speed is not known.
  [[nodiscard]] double predict_wait_ms(TenantId tenant, double work_per_s) const;

 private:
  struct Share {
    int64_t num_requests = 0;
    int64_t num_tokens = 0;
    int64_t work = 0;
    double last_ticket_ms = 0;  // when the latest ticket becomes valid
  };

  struct Ticket {
    int64_t from_ms = 0;
    int64_t until_ms = 0;
  };

  enum class Bound : uint8_t { kNone, kRequests, kTokens, kShare, kWait };

  [[nodiscard]] Bound exceeded_by(const QueuedWork& added,
                                  double wait_ms,
                                  int64_t max_wait_ms) const;
  bool use_ticket(uint64_t fingerprint, const QueuedWork& added, int64_t now_ms);
  [[nodiscard]] double excess_ms(Bound bound,
                                 const QueuedWork& added,
                                 double wait_ms,
                                 int64_t max_wait_ms,
                                 double work_per_s) const;
  int32_t give_ticket(uint64_t fingerprint,
                      const QueuedWork& added,
                      double excess_ms,
                      double work_per_s,
                      int64_t now_ms);
  void forget_old_tickets(int64_t now_ms);

  const AdmissionOptions options_;
  Share total_;
  std::unordered_map<TenantId, Share> shares_;  // tenants that have waiting requests or tickets
  std::unordered_map<uint64_t, Ticket> tickets_;
  std::deque<uint64_t> ticket_order_;  // in the order given; some may be used already
};

}  // namespace sluice
