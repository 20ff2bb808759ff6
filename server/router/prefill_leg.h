// SPDX-License-Identifier: Apache-2.0
// A request's prompt at a worker that computes KV for the answering worker: a second request, whose
// one token is dropped. It may fail in any way: the answering worker then computes the prompt
// itself. Lives on the router's thread.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "engine/handoff/handoff_spec.h"
#include "engine/request.h"
#include "server/router/worker_set.h"

namespace sluice {

class PrefillLeg {
 public:
  // Sends the request. `worker`: is_prefill_worker() holds; it stays until the leg ends. `chain`:
  // the prompt's blocks, cached there afterwards. `num_uncached`: tokens that it computes.
  static std::shared_ptr<PrefillLeg> begin(Worker& worker,
                                           const ValidRequest& request,
                                           std::vector<uint64_t> chain,
                                           int64_t num_uncached);
  ~PrefillLeg();  // calls end()
  PrefillLeg(const PrefillLeg&) = delete;
  PrefillLeg& operator=(const PrefillLeg&) = delete;

  // Returns the spec for the answering worker.
  [[nodiscard]] const HandoffSpec& fetch() const { return fetch_; }

  // Returns null if the leg is over.
  [[nodiscard]] const Worker* worker() const { return worker_; }

  // Ends a prefill that is no longer wanted; later calls do nothing.
  void end();

 private:
  explicit PrefillLeg(Worker& worker) : worker_(&worker) {}

  void take_update(const CallUpdate& update);
  void take_end(CallEnd end);
  void leave();

  Worker* worker_;
  HandoffSpec fetch_;
  std::vector<uint64_t> chain_;
  int64_t queued_tokens_ = 0;
  bool has_answered_ = false;
  std::shared_ptr<WorkerCallHandle> call_;
};

// Tells whether the worker offers KV to others and fetches none.
bool is_prefill_worker(const Worker& worker);
// Tells whether the worker fetches KV that others compute.
bool is_decode_worker(const Worker& worker);

}  // namespace sluice
