// SPDX-License-Identifier: Apache-2.0
// The entrance of the waiting queue: scheduler/admission.h with the lock, clock and measured speed
// that front-end threads and the engine thread share. A request enters when it is submitted and
// leaves when it is first scheduled or ends before that.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>

#include "engine/core/config.h"
#include "engine/core/status.h"
#include "engine/core/types.h"
#include "engine/request.h"
#include "scheduler/admission.h"

namespace sluice {

class QueueGate {
 public:
  explicit QueueGate(const Config& config);

  // Any thread. kResourceExhausted, with retry_after_s where the speed is known: the queue is full,
  // or the request would wait in it longer than allowed.
  [[nodiscard]] Expected<QueuedWork> enter(const ValidRequest& request);
  // Any thread, once for each request that entered.
  void leave(const QueuedWork& queued);

  // Any thread: requests that have entered and not left.
  [[nodiscard]] int64_t num_waiting() const;
  // Any thread: requests that were refused.
  [[nodiscard]] uint64_t num_refused() const { return num_refused_; }

  // Engine thread: whole seconds, in [1, 3600], before a request of this tenant would start.
  [[nodiscard]] int32_t retry_after_s(TenantId tenant) const;
  // Engine thread, after a step at whose beginning requests waited: the QueuedWork::work of the
  // requests it started, and its seconds.
  void observe_step(int64_t work_started, double seconds);
  // Engine thread: a request has ended with `num_tokens` generated tokens.
  void observe_output(int32_t num_tokens);

 private:
  mutable std::mutex mutex_;  // taken when requests arrive, start and end; in no steady step
  Admission admission_;       // guarded by mutex_
  QueueSpeed speed_;          // engine thread only; published in the next two
  std::atomic<double> work_per_s_ = 0;
  std::atomic<double> mean_output_ = QueueSpeed().mean_output();
  std::atomic<uint64_t> num_refused_ = 0;
};

// A request's place in the queue, left again at the end of this object unless it is kept: something
// may fail on the way into the engine. One thread.
class QueuePlace {
 public:
  QueuePlace(QueueGate& gate, const QueuedWork& queued) : gate_(gate), queued_(queued) {}
  ~QueuePlace() {
    if (!is_kept_) gate_.leave(queued_);
  }

  QueuePlace(const QueuePlace&) = delete;
  QueuePlace& operator=(const QueuePlace&) = delete;

  // The engine thread leaves it from now on.
  void keep() { is_kept_ = true; }

 private:
  QueueGate& gate_;
  const QueuedWork queued_;
  bool is_kept_ = false;
};

}  // namespace sluice
