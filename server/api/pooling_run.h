// SPDX-License-Identifier: Apache-2.0
// One client's request for vectors or scores from admission to its answer: submits its texts to the
// engine, a window of them at a time so that others' requests are interleaved, and collects what
// they get. Lives on its sink's I/O thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "server/api/pooled_inputs.h"
#include "server/front/front_end.h"
#include "server/front/output_receiver.h"
#include "server/front/usage.h"
#include "server/traces/request_span.h"

namespace sluice {

// What the texts got, in their order.
struct PooledAnswer {
  std::string id;     // of the answer
  std::string model;  // the client's spelling
  int64_t num_tokens = 0;
  std::vector<std::vector<float>> vectors;
};

// The protocol half of a run: tells one client what the texts got. HTTP and gRPC implement it.
class PooledSink {
 public:
  virtual ~PooledSink() = default;

  // Returns the worker of this sink's thread.
  [[nodiscard]] virtual IoWorker& worker() = 0;

  // One of these is the last call, unless the run is cancelled before.
  virtual void finish(const PooledAnswer& answer, const Usage& usage) = 0;
  virtual void fail(const Error& error, const Usage& usage) = 0;
};

// Returns the body of the answer.
using PooledWriter = std::function<std::string(const PooledAnswer&)>;

struct DecodedPooledRequest {
  PooledRequest request;
  PooledWriter write;
};

using PooledDecoder =
    std::function<Expected<DecodedPooledRequest>(const ValidationContext&, Exchange&)>;

// Reads, admits and runs the request of an exchange.
void start_pooling(FrontEnd& front_end, Exchange exchange, const PooledDecoder& decode);

// Lets a request in for its tenant, or refuses it: its answer would be too large, or the tenant has
// had too much.
[[nodiscard]] Expected<void> admit_pooled(const std::shared_ptr<Tenant>& tenant,
                                          PooledRequest& request);

class PoolingRun final : public OutputReceiver, public std::enable_shared_from_this<PoolingRun> {
 public:
  // `parent`, `arrival`: of the request's span.
  PoolingRun(FrontEnd& front_end,
             std::shared_ptr<PooledSink> sink,
             PooledRequest request,
             const TraceContext& parent,
             std::chrono::steady_clock::time_point arrival);

  // Names the request in the trace and the answer.
  [[nodiscard]] const std::string& id() const { return answer_.id; }

  [[nodiscard]] const TraceContext& trace() const { return span_.context(); }

  [[nodiscard]] const Usage& usage() const { return usage_; }

  void start();
  // Aborts what is under way, of a client that has left. Returns false if the run is over.
  bool cancel();

  // Implements OutputReceiver.
  void accept(size_t index, const TokenOutput& output) override;
  void flush() override;
  void fail(const Error& error) override;

 private:
  void submit_more();
  void end();

  FrontEnd& front_end_;
  const std::shared_ptr<PooledSink> sink_;
  PooledRequest request_;
  RequestSpan span_;
  Engine& engine_;
  std::vector<RequestId> ids_;   // of submitted texts
  std::vector<bool> has_ended_;  // by text
  PooledAnswer answer_;
  Usage usage_;
  size_t num_submitted_ = 0;
  size_t num_open_ = 0;  // submitted and not ended
  size_t num_done_ = 0;
  const size_t most_open_;
  bool is_over_ = false;
};

}  // namespace sluice
