// SPDX-License-Identifier: Apache-2.0
// Requests for engines that decide the next step while one runs, and a report of such an engine.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <future>
#include <random>
#include <utility>
#include <vector>

#include "engine/engine.h"

namespace sluice::testing {

// Returns requests with every parameter whose effect depends on earlier tokens.
inline std::vector<ValidRequest> varied_requests(int32_t vocab_size, size_t count) {
  std::mt19937_64 random(7);
  const auto token = [&] {
    return static_cast<TokenId>(random() % static_cast<uint64_t>(vocab_size));
  };
  std::vector<ValidRequest> requests(count);
  for (size_t i = 0; i < count; ++i) {
    ValidRequest& request = requests[i];
    std::vector<TokenId> prompt(1 + random() % 90);
    for (TokenId& id : prompt) id = token();
    request.prompt = std::move(prompt);
    SamplingParams& sampling = request.sampling;
    sampling.seed = random();
    sampling.temperature = i % 5 == 0 ? 0.0F : 1.1F;
    sampling.max_tokens = static_cast<int32_t>(1 + random() % 40);
    sampling.num_logprobs = static_cast<int32_t>(i % 4) - 1;
    if (i % 2 == 0) sampling.repetition_penalty = 1.3F;
    if (i % 3 == 0) sampling.presence_penalty = 0.7F;
    if (i % 4 == 0) sampling.frequency_penalty = 0.4F;
    if (i % 3 == 1) sampling.min_tokens = std::min(6, sampling.max_tokens);
    if (i % 4 == 1) sampling.stop_token_ids = {token(), token(), token(), token(), token()};
    if (i % 4 == 2) {
      sampling.allowed_token_ids = {3, 4, 5, 6, 7};
      sampling.bad_words = {{4, 5}, {3, 3, 6}, {7, 7}};
    }
    if (i % 7 == 0) sampling.num_prompt_logprobs = 2;
    request.arrival = std::chrono::steady_clock::now();
  }
  return requests;
}

inline std::vector<StepRecord> steps_of(Engine& engine) {
  std::promise<EngineState> promise;
  engine.report_state(kKeptSteps, [&](EngineState state) { promise.set_value(std::move(state)); });
  return promise.get_future().get().steps;
}

// Waits two reports, at least one step, after which no row of an ended request is in flight.
inline void settle(Engine& engine) {
  steps_of(engine);
  steps_of(engine);
}

}  // namespace sluice::testing
