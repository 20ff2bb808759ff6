// SPDX-License-Identifier: Apache-2.0
// The one way from a client's bytes to a ValidRequest. A request that passes is in range for the
// model; any other is an Error that names rule, value and field.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "engine/core/status.h"
#include "engine/engine.h"
#include "engine/tokenizer/stop_matcher.h"
#include "server/api/parameters.h"
#include "server/front/ignored_arguments.h"
#include "server/front/kv_params.h"
#include "server/keys/tenant.h"
#include "server/prompt/validation_context.h"
#include "server/tools/tool_plan.h"

namespace sluice {

struct ServedModel;

// A client's request for one or several choices.
struct GenerationRequest {
  Endpoint endpoint = Endpoint::kChat;
  std::string model;                   // the client's spelling
  std::vector<ValidRequest> requests;  // choice index = prompt * n + k
  int32_t num_choices = 1;             // generated choices per prompt: best_of, or n
  int32_t num_returned = 1;            // answered choices per prompt: n, the likeliest
  bool wants_logprobs = false;         // in the answer; best_of needs them anyway
  int32_t num_prompt_logprobs = -1;    // `prompt_logprobs`; -1: not in the answer
  int32_t num_echoed_logprobs = -1;    // for the echoed prompt; -1: none
  bool fills_context = false;          // the output limit was lowered to the room in the context
  bool only_echo = false;              // max_tokens 0: the one generated token is not sent
  std::shared_ptr<TenantLease> lease;  // set at admission, if the client's key has limits
  uint64_t seed = 0;                   // seed of choice 0
  StopConfig stop;
  std::vector<std::string> echoed;  // text of each prompt, before its answers; empty: no echo
  bool skip_special_tokens = true;
  bool stream = false;
  bool include_usage = false;
  bool continuous_usage_stats = false;
  bool return_token_ids = false;
  // Parses the output; null: all of it is content.
  std::shared_ptr<const OutputFormat> output_format;
  std::string prompt_tail;  // start state of OutputParser
  ToolPlan tools;
  bool include_reasoning = true;
  bool has_prediction = false;  // the answer says how much of it was right
  FallbackCounts fallbacks{};   // prompts whose KV should have come from peers
  TraceContext trace;           // the client's
  std::shared_ptr<const ServedModel> served;  // what it was validated for, and goes to
};

// `ignored`: gets the names that are left out.
Expected<GenerationRequest> validate_generation(const ValidationContext& context,
                                                std::string_view body,
                                                Endpoint endpoint,
                                                IgnoredArguments& ignored);

// Validates the parameters that a decoder found: an object with the names of request_parameters().
// Other names are removed from it.
Expected<GenerationRequest> validate_parameters(const ValidationContext& context,
                                                nlohmann::ordered_json& parameters,
                                                Endpoint endpoint,
                                                IgnoredArguments& ignored);

// Charges the request to the lease's tenant: it uses the tenant's share, and counts in its limits
// to the end.
void charge_to(GenerationRequest& request, const std::shared_ptr<TenantLease>& lease);

// Returns the number of prompt tokens, each prompt counted once.
int64_t num_prompt_tokens(const GenerationRequest& request);

// Returns the salt of the prefixes that the request shares: the tenant's, narrowed by `cache_salt`.
Expected<uint64_t> read_cache_salt(const ValidationContext& context,
                                   const nlohmann::ordered_json& body);

// Returns the name that a response echoes: the client's, or the first served one. kNotFound: not
// served.
Expected<std::string> resolve_model(const std::vector<std::string>& model_names,
                                    const nlohmann::ordered_json& body);

}  // namespace sluice
