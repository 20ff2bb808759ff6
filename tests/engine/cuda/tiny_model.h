// SPDX-License-Identifier: Apache-2.0
// A tiny checkpoint with a tokenizer, and requests that together use every way of sampling.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "engine/core/config.h"
#include "engine/engine.h"
#include "engine/quantize.h"
#include "tests/support/golden_folder.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/tier.h"
#include "tests/support/tiny_hf_model.h"

namespace sluice::testing {

inline Config tiny_config(const std::string& device,
                          const std::string& model = {},
                          const std::string& kv_cache_dtype = "auto") {
  Config config;
  config.device = device;
  config.model = model;
  config.kv_cache_dtype = kv_cache_dtype;
  config.threads = 1;
  config.max_model_len = 256;
  config.max_num_seqs = 8;
  config.kv_cache_memory = int64_t{1} << 20;
  return config;
}

// A checkpoint on disk that exists as long as the object.
class TinyModel {
 public:
  explicit TinyModel(TinyWeights weights, std::string kv_cache_dtype = "auto")
      : kv_cache_dtype_(std::move(kv_cache_dtype)) {
    EXPECT_TRUE(write_tiny_hf_model(folder_.path(), weights));
    std::filesystem::copy_file(golden_folder() + "/tokenizer/json/qwen.json",
                               folder_.at("tokenizer.json"));
  }

  [[nodiscard]] Config config(const std::string& device) const {
    return tiny_config(device, folder_.path(), kv_cache_dtype_);
  }

 private:
  std::string kv_cache_dtype_;
  TemporaryFolder folder_;
};

// The checkpoint in BF16 in another of `sluice quantize`'s formats.
class TinyQuantized {
 public:
  explicit TinyQuantized(const std::string& scheme) {
    const std::string input = folder_.at("bf16");
    EXPECT_TRUE(write_tiny_hf_model(input, TinyWeights::kBF16));
    std::filesystem::copy_file(golden_folder() + "/tokenizer/json/qwen.json",
                               input + "/tokenizer.json");
    const auto written =
        quantize_model({.input = input, .output = folder_.at("out"), .to = scheme});
    EXPECT_TRUE(written.has_value()) << written.error().message;
  }

  [[nodiscard]] Config config(const std::string& device) const {
    return tiny_config(device, folder_.at("out"));
  }

 private:
  TemporaryFolder folder_;
};

// A GGUF file of the repository instead. Where its vocabulary does not include the prompts below,
// tiny_requests_of() makes others.
class TinyGguf {
 public:
  explicit TinyGguf(std::string path, std::string kv_cache_dtype = "auto")
      : path_(std::move(path)), kv_cache_dtype_(std::move(kv_cache_dtype)) {}

  [[nodiscard]] Config config(const std::string& device) const {
    return tiny_config(device, path_, kv_cache_dtype_);
  }

 private:
  std::string path_;
  std::string kv_cache_dtype_;
};

// A golden model of the repository, with fewer tokens than the prompts below, and a tokenizer.
class TinyGolden {
 public:
  TinyGolden(const std::string& name, std::string kv_cache_dtype)
      : kv_cache_dtype_(std::move(kv_cache_dtype)) {
    for (const char* file : {"config.json", "model.safetensors"}) {
      std::filesystem::copy_file(golden_folder() + "/models/" + name + "/" + file,
                                 folder_.at(file));
    }
    // Requests are token ids; two words are fewer than any of these models has.
    std::ofstream(folder_.at("tokenizer.json"))
        << R"({"model":{"type":"BPE","vocab":{"a":0,"b":1},"merges":[]}})";
  }

  [[nodiscard]] Config config(const std::string& device) const {
    return tiny_config(device, folder_.path(), kv_cache_dtype_);
  }

 private:
  std::string kv_cache_dtype_;
  TemporaryFolder folder_;
};

// Under a sanitizer the shim takes minutes instead of seconds (tests/stage.sh).
inline bool is_short() { return std::getenv("SLUICE_DETERMINISM_REQUESTS") != nullptr; }

inline std::vector<TokenId> tiny_prompt(size_t length, size_t seed) {
  std::vector<TokenId> tokens(length);
  for (size_t i = 0; i < length; ++i) {
    tokens[i] = static_cast<TokenId>(3 + (i * i * 31 + i * 7 + seed) % 430);
  }
  return tokens;
}

// Greedy, seeded and filtered rows for the device, with and without alternatives; a row with edits,
// for the host; a scored prompt; two prompts with a common beginning, one of them past the first 64
// positions.
inline std::vector<ValidRequest> tiny_requests() {
  std::vector<ValidRequest> requests(5);
  constexpr size_t kLengths[] = {3, 34, 62, 12, 9};
  constexpr size_t kPrompts[] = {1, 2, 2, 3, 4};
  for (size_t i = 0; i < requests.size(); ++i) {
    requests[i].prompt = tiny_prompt(kLengths[i], kPrompts[i]);
    SamplingParams& params = requests[i].sampling;
    params.max_tokens = 5;
    params.ignore_eos = true;
    params.num_logprobs = 0;
    params.seed = 100 + i;
    params.temperature = i == 0 ? 0.0F : 0.9F;
  }
  requests[2].sampling.top_k = 20;
  requests[2].sampling.top_p = 0.8F;
  requests[3].sampling.num_logprobs = 3;
  requests[3].sampling.num_prompt_logprobs = 2;
  requests[4].sampling.presence_penalty = 0.5F;
  requests[4].sampling.logit_bias = {{17, 2.0F}};
  return requests;
}

}  // namespace sluice::testing
