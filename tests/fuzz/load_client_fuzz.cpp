// SPDX-License-Identifier: Apache-2.0
// A server's answers to the load client: HTTP framing, events and JSON. However the bytes are cut,
// body and events are the same, and a JSON library agrees on what is an object.
#include <algorithm>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "engine/core/status.h"
#include "server/http/client/response.h"
#include "server/load/completion_event.h"
#include "server/load/server_metrics.h"
#include "server/load/sse_parser.h"
#include "tests/fuzz/target.h"

namespace sluice::load {
namespace {

struct Collected final : SseSink, client::ResponseSink {
  void on_event(std::string_view data) override { events.emplace_back(data); }

  Expected<void> on_head(const client::ResponseHead& head) override {
    status = head.status;
    return {};
  }

  Expected<void> on_body(std::string_view bytes) override {
    body += bytes;
    return {};
  }

  std::vector<std::string> events;
  int status = 0;
  std::string body;
};

Collected parse_events(std::string_view bytes, size_t step) {
  Collected got;
  SseParser parser;
  for (size_t at = 0; at < bytes.size(); at += step) {
    CHECK(parser.feed(bytes.substr(at, step), got));
  }
  return got;
}

Collected parse_response(std::string_view bytes, size_t step) {
  Collected got;
  client::ResponseParser parser(got);
  std::string pending;
  for (size_t at = 0; at < bytes.size(); at += step) {
    pending += bytes.substr(at, step);
    size_t consumed = 0;
    const auto status = parser.feed(pending, consumed);
    CHECK_LE(consumed, pending.size());
    pending.erase(0, consumed);
    if (status == client::ResponseParser::Status::kBad) got.status = -1;
    if (status != client::ResponseParser::Status::kMore) return got;
  }
  parser.end_of_file();
  return got;
}

void check_json(std::string_view text) {
  CompletionEvent event;
  const bool valid = read_completion_event(text, event);
  const auto json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  // Ours has a bound on depth and does not look at UTF-8; theirs refuses numbers out of range and
  // takes a NUL for the end.
  if (json.is_object() && text.find('\0') == std::string_view::npos) {
    size_t depth = 0;
    size_t deepest = 0;
    for (const char c : text) {
      if (c == '{' || c == '[') deepest = std::max(deepest, ++depth);
      if ((c == '}' || c == ']') && depth > 0) --depth;
    }
    CHECK(valid || deepest > 60);
  }
  if (valid) CHECK(!event.has_text || event.text.size() <= text.size());
}

}  // namespace
}  // namespace sluice::load

static int load_client_input(const uint8_t* data, size_t size) {
  using namespace sluice::load;
  if (size < 2) return 0;
  const size_t step = data[0] % 16 + 1;
  const std::string_view bytes(reinterpret_cast<const char*>(data + 2), size - 2);
  switch (data[1] % 4) {
    case 0: {
      const Collected whole = parse_events(bytes, bytes.size() + 1);
      CHECK(whole.events == parse_events(bytes, step).events);
      for (const std::string& event : whole.events) check_json(event);
      break;
    }
    case 1: {
      const Collected whole = parse_response(bytes, bytes.size() + 1);
      const Collected cut = parse_response(bytes, step);
      // A bad message may have given more of its body before the mistake when it came at once.
      if (whole.status > 0 && cut.status > 0) CHECK(whole.body == cut.body);
      break;
    }
    case 2:
      check_json(bytes);
      break;
    default:
      parse_metrics(bytes);
      break;
  }
  return 0;
}

const sluice::fuzz::Target load_client_target("load_client_fuzz", load_client_input);
