// SPDX-License-Identifier: Apache-2.0
// Whether one more request may wait, and when to come back if not. Three bounds: requests, tokens
// of their prompts, and the time until a request starts as it is predicted from the work ahead of
// it and the measured speed of the queue.
//
// Tenants share the queue as they share the engine. Ahead of a request is its tenant's own work and
// of each other tenant at most as much again. And one with a name may only take up to kQueueShare
// times what it leaves free (the dynamic thresholds of Choudhury and Hahne, 1998): whoever fills
// the queue, there is room for the next.
//
// Who is refused gets a ticket: a time, spaced from those before it by what the engine can do, at
// which the same request is let in though the queue be full. So the queue goes on outside, in
// order, and a Retry-After holds. Not for several threads: the caller locks, and says what time it
// is.
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
  int64_t max_tokens = int64_t{1} << 22;  // of prompts; one alone may be longer
  int64_t max_wait_ms = 0;                // predicted; 0: any
};

struct AdmissionRequest {
  TenantId tenant;
  std::span<const TokenId> prompt;
  int32_t max_tokens = 0;
  int64_t max_wait_ms = 0;  // its own bound; 0: none
};

// What a waiting request weighs; leave() takes it back.
struct QueuedWork {
  TenantId tenant;
  int64_t num_tokens = 0;
  int64_t work = 0;
};

// How fast the queue moves: what starts, in units of work, over the time in which somebody waits,
// both fading. One thread.
class QueueSpeed {
 public:
  void observe(int64_t work_started, double seconds);
  [[nodiscard]] double work_per_s() const;  // 0: not known yet

  // A request has ended with so many tokens.
  void observe_output(int32_t num_tokens);

  [[nodiscard]] double mean_output() const { return mean_output_; }

 private:
  double work_ = 0;
  double seconds_ = 0;
  double mean_output_ = 64;  // before any has ended
};

class Admission {
 public:
  // Requests that may wait with their tickets above the bound.
  static constexpr int64_t extra_requests(int64_t max_requests) { return max_requests / 4 + 1; }

  explicit Admission(const AdmissionOptions& options) : options_(options) {}

  // kResourceExhausted, with retry_after_s where the speed is known.
  Expected<QueuedWork> enter(const AdmissionRequest& request,
                             double work_per_s,
                             double mean_output,
                             int64_t now_ms);
  // It has started, or gone.
  void leave(const QueuedWork& queued);

  [[nodiscard]] int64_t num_requests() const { return total_.num_requests; }

  // Until a request of this tenant would start; 0 where the speed is not known.
  [[nodiscard]] double predict_wait_ms(TenantId tenant, double work_per_s) const;

 private:
  struct Share {
    int64_t num_requests = 0;
    int64_t num_tokens = 0;
    int64_t work = 0;
    double last_ticket_ms = 0;  // when the last one told to come back may
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
  std::unordered_map<TenantId, Share> shares_;  // of those that wait or have tickets
  std::unordered_map<uint64_t, Ticket> tickets_;
  std::deque<uint64_t> ticket_order_;  // as given; some are used
};

}  // namespace sluice
