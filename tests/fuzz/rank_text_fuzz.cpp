// SPDX-License-Identifier: Apache-2.0
// Arbitrary bytes as what one node says to another: the handshake of both sides, and the texts by
// which nodes agree on settings, a plan and a model. A refusal is one line, and a plan is in range.
#include <sys/socket.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <string>

#include "engine/core/config.h"
#include "engine/parallel/group_handshake.h"
#include "engine/run/rank_processes.h"
#include "tests/fuzz/target.h"

namespace {

using namespace sluice;

void check_line(const Error& error) {
  CHECK(!error.message.empty());
  CHECK_EQ(error.message.find('\n'), std::string::npos);
}

// The bytes are all that the other end says.
void shake_hands(std::span<const std::byte> bytes, bool is_first) {
  int ends[2] = {-1, -1};
  CHECK_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends), 0);
  GroupSocket own(ends[0]);
  GroupSocket other(ends[1]);
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(1);
  CHECK(other.send(bytes, deadline).has_value());
  other.finish();
  if (is_first) {
    CHECK(!hear_claims(own, "secret", deadline).has_value());  // which it does not know
  } else {
    const GroupClaims claims = {.rank = 1, .size = 2, .build = "1"};
    CHECK(!present_claims(own, claims, "secret", deadline).has_value());
  }
}

}  // namespace

// The first byte: what the rest is.
static int rank_text_input(const uint8_t* data, size_t size) {
  if (size == 0 || size > 4096) return 0;
  const std::string text(reinterpret_cast<const char*>(data + 1), size - 1);
  switch (data[0] % 6) {
    case 0:
    case 1:
      shake_hands(std::as_bytes(std::span(text)), data[0] % 6 == 0);
      return 0;
    case 2: {
      const auto plan = read_settings(text, Config());
      if (!plan) check_line(plan.error());
      return 0;
    }
    case 3: {
      const auto plan = read_shared_plan(text);
      if (!plan) {
        check_line(plan.error());
        return 0;
      }
      CHECK(plan->max_model_len > 0 &&
            plan->max_model_len <= std::numeric_limits<int32_t>::max());
      for (const int32_t count : plan->num_blocks) CHECK_GE(count, 0);
      return 0;
    }
    case 4: {
      const auto loaded = read_loaded_model(text);
      if (!loaded) check_line(loaded.error());
      return 0;
    }
    default: {
      const auto address = read_address(text);
      if (!address) {
        check_line(address.error());
        return 0;
      }
      const nlohmann::json sent = {{"host", address->host}, {"port", address->port}};
      const auto again = read_address(sent.dump());
      CHECK(again && again->host == address->host && again->port == address->port);
      return 0;
    }
  }
}

const sluice::fuzz::Target rank_text_target("rank_text_fuzz", rank_text_input);
