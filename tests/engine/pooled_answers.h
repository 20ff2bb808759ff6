// SPDX-License-Identifier: Apache-2.0
// Runs texts of the goldens in tests/golden/embeddings through an engine, and compares its vectors
// and scores with theirs. Errors are failures of the test that calls.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "engine/core/config.h"
#include "engine/engine.h"
#include "tests/support/golden_folder.h"
#include "tests/support/same_bits.h"
#include "tests/support/temporary_folder.h"

namespace sluice::testing::pooled {

using Json = nlohmann::json;

inline std::string folder(const std::string& name) {
  return golden_folder() + "/embeddings/" + name;
}

inline Json golden(const std::string& name) {
  return Json::parse(std::ifstream(folder(name + ".json")));
}

inline Config config_of(const std::string& name) {
  Config config;
  config.model = folder(name);
  config.kv_cache_memory = int64_t{16} << 20;
  config.max_num_seqs = 8;
  config.kv_cache_dtype = "float32";
  return config;
}

inline ValidRequest request_of(std::vector<TokenId> ids, const PoolingParams& params = {}) {
  ValidRequest request;
  request.prompt = std::move(ids);
  request.sampling.max_tokens = 1;
  request.pooling = params;
  return request;
}

inline std::vector<ValidRequest> requests_of(const Json& golden, const PoolingParams& params = {}) {
  std::vector<ValidRequest> requests;
  for (const Json& ids : golden["ids"]) {
    requests.push_back(request_of(ids.get<std::vector<TokenId>>(), params));
  }
  return requests;
}

inline std::vector<std::vector<float>> run(const Config& config,
                                           const std::vector<ValidRequest>& asked) {
  const std::unique_ptr<Engine> engine = testing::start_engine(config);
  if (engine == nullptr) return {};
  std::vector<std::vector<float>> vectors;
  for (const Collected& answer : testing::run_together(*engine, asked)) {
    EXPECT_EQ(answer.finish_reason, FinishReason::kStop) << answer.error;
    EXPECT_TRUE(answer.tokens.empty());
    vectors.push_back(answer.pooled);
  }
  return vectors;
}

inline void expect_close(const std::vector<std::vector<float>>& found, const Json& expected) {
  ASSERT_EQ(found.size(), expected.size());
  for (size_t i = 0; i < found.size(); ++i) {
    const auto vector = expected[i].get<std::vector<float>>();
    ASSERT_EQ(found[i].size(), vector.size()) << i;
    for (size_t k = 0; k < vector.size(); ++k) {
      EXPECT_NEAR(found[i][k], vector[k], 1e-5 * std::max(1.0F, std::abs(vector[k])))
          << "text " << i << ", element " << k;
    }
  }
}

// A copy of a golden directory with other values in config.json; null removes a key.
inline Config edited(const testing::TemporaryFolder& copy,
                     const std::string& name,
                     const Json& edits) {
  std::filesystem::copy(folder(name), copy.path(), std::filesystem::copy_options::recursive);
  Json json = Json::parse(std::ifstream(copy.at("config.json")));
  json.merge_patch(edits);
  std::ofstream(copy.at("config.json")) << json.dump();
  Config config = config_of(name);
  config.model = copy.path();
  return config;
}

}  // namespace sluice::testing::pooled
