// SPDX-License-Identifier: Apache-2.0
// Engines of the tiny model that draft the answers themselves, with errors (method replay): runs of
// every length are accepted and cut.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "engine/core/config.h"
#include "engine/engine.h"
#include "tests/support/golden_folder.h"
#include "tests/support/same_bits.h"
#include "tests/support/varied_requests.h"

namespace sluice::testing {

inline Config tiny_config() {
  Config config;
  config.model = golden_folder() + "/tiny/tiny-llama.gguf";
  config.threads = 2;
  config.max_model_len = 512;
  config.kv_cache_memory = int64_t{8} << 20;
  return config;
}

inline std::string replay(double error_rate, int32_t num_tokens, bool is_fixed = true) {
  return R"({"method":"replay","replay_error_rate":)" + std::to_string(error_rate) +
         R"(,"num_speculative_tokens":)" + std::to_string(num_tokens) + R"(,"adaptive":)" +
         (is_fixed ? "false" : "true") + "}";
}

struct Alone {
  std::vector<ValidRequest> requests;  // each predicts its own answer
  std::vector<Collected> answers;
};

// Runs the requests without drafts, one after the other.
inline Alone alone(const std::vector<ValidRequest>& requests) {
  const std::unique_ptr<Engine> engine = start_engine(tiny_config());
  Alone result{.requests = requests, .answers = run_alone(*engine, requests)};
  for (size_t i = 0; i < requests.size(); ++i) {
    result.requests[i].prediction = result.answers[i].tokens;
  }
  return result;
}

inline uint64_t sum(const auto& counters) {
  return std::accumulate(counters.begin(), counters.end(), uint64_t{0});
}

// Makes requests with answers of this length, at a temperature.
inline std::vector<ValidRequest> requests_of(int32_t count, int32_t num_tokens) {
  std::vector<ValidRequest> requests = testing::seeded_requests(count);
  for (ValidRequest& request : requests) {
    request.sampling.max_tokens = num_tokens;
    request.sampling.ignore_eos = true;
  }
  return requests;
}

// Checks that `drafted.requests` get their answers with right and partly wrong drafts.
inline void expect_unseen(const Alone& drafted) {
  for (const double error_rate : {0.0, 0.3}) {
    Config config = tiny_config();
    config.speculative_config = replay(error_rate, 12);
    const std::unique_ptr<Engine> engine = start_engine(config);
    ASSERT_NE(engine, nullptr);
    expect_same(drafted.answers,
                run_together(*engine, drafted.requests),
                "error rate " + std::to_string(error_rate));
    settle(*engine);
    // The number depends on how long steps take.
    EXPECT_GT(sum(engine->stats().drafts.num_accepted_tokens), 4U);
  }
}

}  // namespace sluice::testing
