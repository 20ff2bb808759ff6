// SPDX-License-Identifier: Apache-2.0
// The part that this process takes in handoffs: `--role`, or `--kv-transfer-config` of vLLM. Read
// once at start, by the engine and by its front end.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engine/core/status.h"

namespace sluice {

struct Config;

// A role limits what is offered and asked for. Every role computes whole requests.
enum class HandoffRole : uint8_t {
  kBoth,
  kPrefill,  // offers prompts that it has computed, fetches none
  kDecode,   // fetches, offers none
};

constexpr std::string_view to_string(HandoffRole role) {
  switch (role) {
    case HandoffRole::kBoth:
      return "both";
    case HandoffRole::kPrefill:
      return "prefill";
    case HandoffRole::kDecode:
      return "decode";
  }
  return "";
}

// Returns vLLM's name of the role: kv_both, kv_producer, kv_consumer.
std::string_view kv_role_name(HandoffRole role);

// The ending of a request whose KV was requested and does not arrive.
enum class KvFailurePolicy : uint8_t {
  kRecompute,  // its prompt is computed here
  kFail,       // it ends with kUnavailable, before anything of its answer was sent
};

struct HandoffConfig {
  HandoffRole role = HandoffRole::kBoth;
  // Tells routers how to send the two requests: NixlConnector or MooncakeConnector. Empty: this
  // process was given no part in handoffs.
  std::string connector;
  KvFailurePolicy failure_policy = KvFailurePolicy::kRecompute;
  std::string engine_id;                     // as given; empty: not given
  std::vector<std::string> without_meaning;  // members that were given and change nothing here
};

// kInvalidArgument names member and value: one that vLLM does not know, a connector that no vLLM
// has, a role that contradicts --role. A connector of vLLM's that moves no KV between two workers
// is one of `without_meaning`.
Expected<HandoffConfig> handoff_config(const Config& config);

}  // namespace sluice
