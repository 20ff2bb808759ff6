// SPDX-License-Identifier: Apache-2.0
// What router, workers and an API server may send to each other: nothing of it reaches a CHECK.
// What a worker takes is in range and comes back the same; a ledger publishes each token of an
// answer once, in order, whatever attempts say.
#include <worker.pb.h>

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "engine/core/config.h"
#include "engine/core/status.h"
#include "engine/engine.h"
#include "server/grpc/worker_check.h"
#include "server/grpc/worker_codec.h"
#include "server/router/discovery_kubernetes.h"
#include "server/router/known_prefixes.h"
#include "server/router/kv_event_feed.h"
#include "server/router/stream_ledger.h"
#include "tests/fuzz/target.h"

namespace sluice {
namespace {

namespace wire = worker::v1;

void take_request(const std::string& bytes) {
  wire::Request message;
  if (!message.ParseFromString(bytes)) return;
  const auto now = WorkerClock::now();
  const auto request = decode(message, now);
  if (!request) return;
  wire::Request again;
  encode(*request, now, again);
  const auto twice = decode(again, now);
  CHECK(twice.has_value());
  wire::Request third;
  encode(*twice, now, third);
  CHECK(third.SerializeAsString() == again.SerializeAsString());
  ModelInfo model;
  model.vocab_size = 1000;
  model.max_model_len = 500;
  if (!check_request(*request, model, Config{})) return;
  CHECK(!request->prompt.empty());
  CHECK_LE(request->prompt.size() + static_cast<size_t>(request->sampling.max_tokens), 500U);
  CHECK_LT(request->generated.size(), static_cast<size_t>(request->sampling.max_tokens));
  const auto chain = block_chain(*request, 16);
  CHECK_EQ(chain.size(), (request->prompt.size() + request->generated.size()) / 16);
}

void take_responses(std::string_view bytes) {
  ValidRequest request;
  request.prompt = {1};
  request.sampling.max_tokens = 16;
  StreamLedger ledger(std::move(request));
  uint32_t attempt = ledger.begin_attempt();
  int32_t num_published = 0;
  for (size_t at = 0; at < bytes.size(); at += 48) {
    if (bytes[at] == 'L') {
      (void)ledger.count_loss(3);
      attempt = ledger.begin_attempt();
      continue;
    }
    wire::GenerateResponse message;
    if (!message.ParseFromString(std::string(bytes.substr(at + 1, 47)))) continue;
    if (message.has_refusal()) (void)decode(message.refusal());
    for (const wire::TokenOutput& item : message.outputs()) {
      auto output = decode(item);
      if (!output) continue;
      const TokenId token = output->token;
      const bool is_scored = !output->prompt_logprobs.empty();
      const auto verdict = ledger.accept(attempt, message.position(), *output);
      if (verdict != StreamLedger::Verdict::kPublish || is_scored) continue;
      CHECK_EQ(message.position(), num_published);
      if (token != kInvalidToken) ++num_published;
      CHECK_EQ(ledger.num_tokens(), num_published);
      CHECK_LE(num_published, 16);
    }
  }
}

void take_slices(std::string_view bytes) {
  EndpointSlices slices(bytes.size() % 2 == 0 ? 0 : 8100);
  for (size_t at = 0; at < bytes.size();) {
    const size_t end = std::min(bytes.find('\n', at), bytes.size());
    const std::string_view line = bytes.substr(at, end - at);
    if (!slices.take_list(line)) (void)slices.take_event(line);
    for (const std::string& address : slices.addresses()) CHECK(!address.empty());
    at = end + 1;
  }
}

void take_events(const uint8_t* data, size_t size) {
  KnownPrefixes index;
  index.set_capacity(64);
  KvEventFeed feed;
  for (int64_t number = 0; size > 0; ++number) {
    const size_t part = std::min<size_t>(size, 1 + data[0]);
    (void)feed.take(number, std::span(data, part), index);
    CHECK_LE(index.size(), 64U);
    data += part;
    size -= part;
  }
}

}  // namespace
}  // namespace sluice

static int worker_messages_input(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  switch (data[0] % 5) {
    case 0:
      sluice::take_request(bytes);
      break;
    case 1:
      sluice::take_responses(bytes);
      break;
    case 2:
      sluice::take_slices(bytes);
      break;
    case 3:
      sluice::take_events(data + 1, size - 1);
      break;
    default: {
      sluice::worker::v1::Description message;
      if (message.ParseFromString(bytes)) (void)sluice::decode(message);
    }
  }
  return 0;
}

const sluice::fuzz::Target worker_messages_target("worker_messages_fuzz", worker_messages_input);
