// SPDX-License-Identifier: Apache-2.0
// The context that requests are checked against: configuration, model, tokenizer, chat template.
// Any thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/core/status.h"
#include "engine/engine.h"
#include "engine/handoff/handoff_config.h"
#include "engine/tokenizer/tokenizer.h"
#include "server/prompt/chat_template.h"

namespace sluice {

struct Config;
struct OutputFamilies;
struct ServedModel;

// The API that a request speaks, where rules or words differ.
enum class Dialect : uint8_t {
  kOpenAi,
  // Anthropic's Messages: an output limit beyond the context is lowered to it, and clients read the
  // two numbers out of the error about a prompt that is too long.
  kMessages,
};

// The referenced objects outlive the validator's calls.
struct ValidationContext {
  const Config& config;
  const ModelInfo& model;
  const Tokenizer& tokenizer;
  const Expected<ChatTemplate>& chat_template;  // an error: why there is none
  const std::vector<std::string>& model_names;
  uint64_t unset_seed;  // seed for a request that names none
  uint64_t tenant_salt;
  std::chrono::steady_clock::time_point arrival;
  const OutputFamilies* families = nullptr;  // the model's forms; null: plain text
  HandoffRole role = HandoffRole::kBoth;     // this worker's role
  bool fills_context = false;  // without max_tokens a completion takes all remaining context, like
                               // a chat
  Dialect dialect = Dialect::kOpenAi;
  bool describes_tools = false;  // in the instructions, since the chat template does not
  bool sorts_tools = false;      // the chat template gets tools with ascending keys
  // Holds the objects above; null: the caller does.
  std::shared_ptr<const ServedModel> served = nullptr;
};

}  // namespace sluice
