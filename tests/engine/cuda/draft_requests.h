// SPDX-License-Identifier: Apache-2.0
// Requests for drafts beside a target on devices, with the tiny GGUF file, and their aborts.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <string>
#include <vector>

#include "engine/core/config.h"
#include "engine/engine.h"
#include "tests/engine/cuda/tiny_model.h"
#include "tests/support/collecting_sink.h"
#include "tests/support/golden_folder.h"
#include "tests/support/same_bits.h"
#include "tests/support/varied_requests.h"

namespace sluice::testing {

inline const std::string kTinyLlama = golden_folder() + "/tiny/tiny-llama.gguf";

// Sums what DraftStats counts by source.
inline uint64_t sum(const auto& counters) {
  return std::accumulate(counters.begin(), counters.end(), uint64_t{0});
}

inline std::string spec_of(const std::string& method, const std::string& model = "") {
  std::string spec = R"({"method": ")" + method + R"(", "num_speculative_tokens": 3,
      "adaptive": false)";
  if (!model.empty()) spec += R"(, "model": ")" + model + "\"";
  return spec + "}";
}

// Drafts the request's prediction with this rate of errors.
inline std::string replay_spec(const std::string& error_rate) {
  return R"({"method": "replay", "num_speculative_tokens": 3, "adaptive": false,
             "replay_error_rate": )" +
         error_rate + "}";
}

inline std::string eagle_head(const std::string& name) {
  return golden_folder() + "/eagle/" + name;
}

inline Config drafting_config(const std::string& spec) {
  Config config = TinyGguf(kTinyLlama).config("cuda");
  config.max_num_seqs = 4;
  config.cuda_graph_sizes = {8};
  config.speculative_config = spec;
  return config;
}

// Greedy and sampled rows for the device, and one for the host, behind prompts that repeat
// everything.
inline std::vector<ValidRequest> draft_requests(int32_t num_tokens) {
  std::vector<ValidRequest> requests(3);
  for (size_t i = 0; i < requests.size(); ++i) {
    const std::vector<TokenId> once = tiny_prompt(11 + 4 * i, i);
    requests[i].prompt = once;
    requests[i].prompt.insert(requests[i].prompt.end(), once.begin(), once.end());
    SamplingParams& params = requests[i].sampling;
    params.max_tokens = num_tokens + static_cast<int32_t>(i);
    params.ignore_eos = true;
    params.num_logprobs = 2;
    params.seed = 70 + i;
    params.temperature = i == 0 ? 0.0F : 0.7F;
  }
  requests[2].sampling.presence_penalty = 0.5F;
  return requests;
}

// Gives each request its answer as the prediction.
inline void predict(std::vector<ValidRequest>& requests, const std::vector<Collected>& answers) {
  for (size_t i = 0; i < requests.size(); ++i) requests[i].prediction = answers[i].tokens;
}

// Checks that an aborted request got the beginning of its answer.
inline void expect_begins(const Collected& answer, const Collected& begun) {
  const size_t count = begun.tokens.size();
  ASSERT_LE(count, answer.tokens.size());
  EXPECT_TRUE(std::equal(begun.tokens.begin(), begun.tokens.end(), answer.tokens.begin()));
  EXPECT_TRUE(std::equal(begun.logprobs.begin(), begun.logprobs.end(), answer.logprobs.begin()));
}

// Aborts a request behind its first, second, ... token, with and without a step in flight: it ends
// once, the others' answers are unchanged, and all blocks return. `answers`: the whole answers of
// the requests.
inline void expect_aborts_end_once(Engine& engine,
                                   const std::vector<ValidRequest>& requests,
                                   const std::vector<Collected>& answers,
                                   size_t num_rounds) {
  for (size_t round = 0; round < num_rounds; ++round) {
    CollectingSink sink;
    std::vector<RequestId> ids;
    for (const ValidRequest& request : requests) {
      const Expected<RequestId> id = engine.submit(request, sink);
      ASSERT_TRUE(id.has_value());
      ids.push_back(*id);
    }
    const size_t victim = round % requests.size();
    sink.wait_tokens(ids[victim], 1 + round / requests.size());
    engine.abort(ids[victim]);
    std::vector<Collected> all;  // before any check that may leave
    for (const RequestId id : ids) all.push_back(sink.wait(id));
    for (size_t i = 0; i < ids.size(); ++i) {
      const Collected& got = all[i];
      EXPECT_EQ(got.num_ends, 1);
      const std::string what = "request " + std::to_string(i) + ", round " + std::to_string(round);
      if (i == victim && got.finish_reason == FinishReason::kAbort) {
        expect_begins(answers[i], got);
      } else {
        expect_same({answers[i]}, {got}, what);
      }
      if (::testing::Test::HasFatalFailure()) return;
    }
    settle(engine);
    EXPECT_EQ(engine.stats().num_blocks_used, 0) << round;
  }
  expect_same(answers, run_together(engine, requests), "behind aborts");
}

}  // namespace sluice::testing
