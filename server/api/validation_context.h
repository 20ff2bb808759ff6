// SPDX-License-Identifier: Apache-2.0
// What requests are checked against: configuration, model, tokenizer, chat template. Any thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "engine/core/status.h"
#include "engine/engine.h"
#include "engine/handoff/handoff_config.h"
#include "engine/tokenizer/tokenizer.h"
#include "server/api/output_families.h"
#include "server/prompt/chat_template.h"

namespace sluice {

struct Config;

// Everything referred to outlives the validator's calls.
struct ValidationContext {
  const Config& config;
  const ModelInfo& model;
  const Tokenizer& tokenizer;
  const Expected<ChatTemplate>& chat_template;  // or why there is none that can be used
  const std::vector<std::string>& model_names;
  uint64_t unset_seed;  // for a request that names none
  uint64_t tenant_salt;
  std::chrono::steady_clock::time_point arrival;
  const OutputFamilies* families = nullptr;  // how the model writes; null: plain text
  HandoffRole role = HandoffRole::kBoth;     // of this worker
  bool fills_context = false;  // without max_tokens a completion takes what is left, as chats do
};

}  // namespace sluice
