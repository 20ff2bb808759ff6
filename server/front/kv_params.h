// SPDX-License-Identifier: Apache-2.0
// The protocols by which routers split a request between a prefill and a decode worker, as fields
// of its body, and the answer that a prefill worker gives them. Three are known:
//
// - `kv_transfer_params` with do_remote_decode alone: the prefill half of a serial handoff. Its
//   answer has `kv_transfer_params` of its own, which the client returns with do_remote_prefill in
//   the decode half (vLLM's NixlConnector; llm-d's sidecar, vllm-router, smg).
// - `kv_transfer_params` with `transfer_id` too: both halves are sent at once (MooncakeConnector).
// - `bootstrap_host`, `bootstrap_port`, `bootstrap_room`: both halves are sent at once, and are the
//   same (SGLang). The worker's role says which one it has got.
//
// Fields of vLLM's other connectors (MoRI-IO, point-to-point NCCL) are taken and have no meaning.
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

// Number of prompts that a request wanted to have moved and that are computed here, by
// HandoffFallback.
using FallbackCounts = std::array<int32_t, kNumHandoffFallbacks>;

// One handoff of a body, before its prompt is known.
struct NamedHandoff {
  HandoffSpec spec;
  std::string prompt_digest;  // the offered prompt's digest; empty: not given
  bool is_foreign = false;    // a fetch that no worker like this one can have offered
  bool is_bootstrap = false;  // spec.peer is the prefill worker's in both halves
};

// The handoffs of a body: one for each prompt or for each choice, else for the first choice.
struct KvParams {
  std::vector<NamedHandoff> handoffs;  // empty: none
  bool is_list = false;                // several are named, in the order of prompts and choices
};

// kInvalidArgument: both halves at once, two protocols at once, values of wrong types, `sluice`
// members that offer_json() does not write.
Expected<KvParams> read_kv_params(const nlohmann::ordered_json& body);

// The part that this worker may play: its role, and the address for its peers; without an address
// it neither offers nor fetches.
struct HandoffPart {
  HandoffRole role = HandoffRole::kBoth;
  const std::optional<HandoffInfo>& info;
};

// The outcome of one handoff: a spec for the engine, or a reason why the prompt is computed here.
struct ResolvedHandoff {
  std::optional<HandoffSpec> spec;
  std::optional<HandoffFallback> fallback;
  bool makes_one_token = false;  // the router drops its answer after the first token
  std::optional<uint64_t> seed;  // a good offer's seed, for a client that names none
};

ResolvedHandoff resolve_handoff(const NamedHandoff& named,
                                std::span<const TokenId> prompt,
                                bool scores_prompt,
                                const HandoffPart& part);

// Returns the id of a concurrent handoff: the first 16 bytes of SHA-256 of the texts, each followed
// by a zero byte. bootstrap_*: the texts are host, port and room in decimal; Mooncake: the one text
// "transfer_id" and its value.
TransferId transfer_id_of(std::span<const std::string> texts);

// Returns the first 16 bytes of SHA-256 of the ids (4 bytes each, little-endian), in hexadecimal.
std::string prompt_digest(std::span<const TokenId> prompt);

// Returns `kv_transfer_params` of the answer to a serial offer, which read_kv_params() reads back.
// `digest`: the prompt's.
std::string offer_json(const HandoffOffer& offer,
                       const HandoffInfo& info,
                       std::string_view fingerprint,
                       std::string_view digest,
                       int32_t tensor_parallel_size);

}  // namespace sluice
