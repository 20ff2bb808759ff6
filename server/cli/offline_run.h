// SPDX-License-Identifier: Apache-2.0
// Answers requests by an engine in this process and times each token, for `sluice bench MODEL`,
// `bench throughput` and `bench latency`.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "server/load/load_run.h"

namespace sluice {

struct OfflineRequest {
  std::vector<TokenId> prompt;
  SamplingParams sampling;
};

struct OfflineAnswer {
  using Time = std::chrono::steady_clock::time_point;

  std::vector<TokenId> prompt;
  int32_t max_tokens = 0;
  int32_t num_cached_tokens = 0;
  Time submitted;
  std::vector<TokenId> tokens;
  std::vector<Time> times;  // of each token: the end of its step
  Time ended;
  FinishReason finish_reason = FinishReason::kNone;
  std::string error;  // with kError
};

// Turns in order; the prompt of a turn may hold the answers before it.
using Conversation = std::vector<OfflineAnswer>;

// Returns the next turn of conversation `index`; nothing: it has ended.
using TurnSource = std::function<Expected<std::optional<OfflineRequest>>(
    size_t index, const Conversation& before)>;

struct OfflineOptions {
  size_t max_concurrency = 0;                              // conversations under way; 0: all
  std::function<void(const load::Progress&)> on_progress;  // a few times a second; may be empty
};

// Conversations are begun in order, at once as far as max_concurrency and the engine's queue allow.
// kInvalidArgument: a request that does not fit the engine's context.
Expected<std::vector<Conversation>> run_offline(Engine& engine,
                                                size_t num_conversations,
                                                const TurnSource& source,
                                                const OfflineOptions& options = {});

}  // namespace sluice
