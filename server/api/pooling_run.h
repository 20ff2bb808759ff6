// SPDX-License-Identifier: Apache-2.0
// One client's request for vectors or scores from admission to its answer: submits its texts to the
// engine, a window of them at a time so that others' requests come between, and collects what they
// get. Lives on its connection's I/O thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "server/api/pooled_inputs.h"
#include "server/front/front_end.h"
#include "server/front/output_receiver.h"
#include "server/traces/request_span.h"

namespace sluice {

// What the texts got, in their order.
struct PooledAnswer {
  std::string id;     // of the answer
  std::string model;  // the client's spelling
  int64_t num_tokens = 0;
  std::vector<std::vector<float>> vectors;
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

class PoolingRun final : public OutputReceiver, public std::enable_shared_from_this<PoolingRun> {
 public:
  PoolingRun(FrontEnd& front_end, Exchange exchange, DecodedPooledRequest decoded);

  void start();

  // Implements OutputReceiver.
  void accept(size_t index, const TokenOutput& output) override;
  void flush() override;
  void fail(const Error& error) override;

 private:
  void submit_more();
  void cancel();
  void end();

  FrontEnd& front_end_;
  Exchange exchange_;
  PooledRequest request_;
  const PooledWriter write_;
  RequestSpan span_;
  Engine& engine_;
  std::vector<RequestId> ids_;   // of submitted texts
  std::vector<bool> has_ended_;  // by text
  PooledAnswer answer_;
  size_t num_submitted_ = 0;
  size_t num_open_ = 0;  // submitted and not ended
  size_t num_done_ = 0;
  const size_t most_open_;
  bool is_over_ = false;
};

}  // namespace sluice
