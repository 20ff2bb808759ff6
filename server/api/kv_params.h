// SPDX-License-Identifier: Apache-2.0
// The dances in which routers split a request between a prefill and a decode worker, as fields of
// its body, and the answer that a prefill worker gives them. Three are known:
//
// - `kv_transfer_params` with do_remote_decode alone: the prefill half of a serial handoff. Its
//   answer has `kv_transfer_params` of its own, which come back with do_remote_prefill in the
//   decode half (vLLM's NixlConnector; llm-d's sidecar, vllm-router, smg).
// - `kv_transfer_params` with `transfer_id` besides: both halves are sent at once
// (MooncakeConnector).
// - `bootstrap_host`, `bootstrap_port`, `bootstrap_room`: both halves are sent at once, and are the
//   same (SGLang). The worker's role says which one it has got.
//
// What other connectors of vLLM send (MoRI-IO, point-to-point NCCL) is taken and has no meaning.
// Whatever becomes of a handoff, the answer is the same: its prompt is computed here if need be.
#pragma once

#include <array>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/core/status.h"
#include "engine/core/types.h"
#include "engine/handoff/handoff_config.h"
#include "engine/handoff/handoff_spec.h"

namespace sluice {

struct Config;
struct ModelInfo;

// How often KV is computed here that a request wanted to have moved, by HandoffFallback.
using FallbackCounts = std::array<int32_t, kNumHandoffFallbacks>;

// One handoff as a body names it, before it is known for which prompt.
struct NamedHandoff {
  HandoffSpec spec;
  std::string prompt_digest;  // of the prompt that an offer is for; empty: not said
  bool is_foreign = false;    // a fetch that no worker like this one can have offered
  bool is_bootstrap = false;  // spec.peer is the prefill worker's, whoever reads it
};

// What a body says. One handoff for each prompt or for each choice, else for the first choice.
struct KvParams {
  std::vector<NamedHandoff> handoffs;  // empty: none
  bool is_list = false;                // several are named, in the order of prompts and choices
};

// kInvalidArgument: both halves at once, two dances at once, values of wrong types, `sluice`
// members that are not what offer_json() writes.
Expected<KvParams> read_kv_params(const nlohmann::ordered_json& body);

// What this worker may do: its role, and where its peers reach it; without a place it neither
// offers nor fetches.
struct HandoffPart {
  HandoffRole role = HandoffRole::kBoth;
  const std::optional<HandoffInfo>& info;
};

// What becomes of one: a spec for the engine, or a reason why the prompt is computed here.
struct ResolvedHandoff {
  std::optional<HandoffSpec> spec;
  std::optional<HandoffFallback> fallback;
  bool makes_one_token = false;  // its answer is dropped by the router behind the first token
  std::optional<uint64_t> seed;  // of a good offer: the answer's, where the client names none
};

ResolvedHandoff resolve_handoff(const NamedHandoff& named,
                                std::span<const TokenId> prompt,
                                bool scores_prompt,
                                const HandoffPart& part);

// Of a concurrent handoff: the first 16 bytes of SHA-256 of the texts, a zero byte behind each.
// bootstrap_* has host, port and room in decimal; Mooncake the one text "transfer_id" and its
// value.
TransferId transfer_id_of(std::span<const std::string> texts);

// The first 16 bytes of SHA-256 of the ids, 4 bytes little-endian each, in hexadecimal.
std::string prompt_digest(std::span<const TokenId> prompt);

// `kv_transfer_params` of the answer to a serial offer, which read_kv_params() reads back.
// `digest`: the prompt's.
std::string offer_json(const HandoffOffer& offer,
                       const HandoffInfo& info,
                       std::string_view fingerprint,
                       std::string_view digest,
                       int32_t tensor_parallel_size);

}  // namespace sluice
