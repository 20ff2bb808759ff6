// SPDX-License-Identifier: Apache-2.0
// Equal requests give equal bits in every number scheme: a covering array over the checkpoints of
// tests/golden/formats, one with all GGUF types, and the ways of running a request that determine a
// product's rows, who computes which part, and the instructions.
#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "engine/core/config.h"
#include "engine/engine.h"
#include "tests/support/covering_array.h"
#include "tests/support/golden_folder.h"
#include "tests/support/random_model.h"
#include "tests/support/same_bits.h"
#include "tests/support/temporary_folder.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;
using testing::ArrayRow;
using testing::Collected;

enum Axis : uint8_t { kScheme, kBits, kIsa, kWorkers, kChunk, kPrefix, kPreempt, kNumAxes };

using Values = std::array<std::vector<std::string>, kNumAxes>;

const std::string kFormats = golden_folder() + "/formats/";
constexpr const char* kGguf = "gguf";  // the value of kScheme outside kFormats
constexpr size_t kVocabulary = 71;     // tokens of those checkpoints

std::vector<std::string> schemes() {
  std::vector<std::string> names = {kGguf};
  std::ifstream in(kFormats + "formats.json");
  const nlohmann::json rows = nlohmann::json::parse(in);
  for (const auto& [name, row] : rows.items()) names.push_back(name);
  return names;
}

Values all_values() {
  Values values;
  values[kScheme] = schemes();
  values[kBits] = {"8", "16", "32"};
  values[kIsa] = testing::usable_isas();
  values[kWorkers] = {"1 thread", "2 threads", "2 ranks"};
  values[kChunk] = {"5", "64"};
  values[kPrefix] = {"off", "hit"};
  values[kPreempt] = {"0", "3"};
  return values;
}

std::vector<size_t> num_values(const Values& values) {
  std::vector<size_t> sizes;
  for (const auto& of_axis : values) sizes.push_back(of_axis.size());
  return sizes;
}

// Writes a tokenizer with one word per token.
void write_tokenizer(const std::string& path) {
  nlohmann::json words;
  for (size_t i = 0; i < kVocabulary; ++i) words["w" + std::to_string(i)] = i;
  std::ofstream(path) << nlohmann::json{
      {"version", "1.0"},
      {"added_tokens", nlohmann::json::array()},
      {"model", {{"type", "WordLevel"}, {"unk_token", "w3"}, {"vocab", words}}}};
}

// Greedy and seeded requests, some with common beginnings, with log-probabilities.
std::vector<ValidRequest> make_requests() {
  std::mt19937_64 random(20261126);
  const auto tokens = [&](size_t length) {
    std::vector<TokenId> ids(length);
    for (TokenId& id : ids) id = static_cast<TokenId>(3 + random() % (kVocabulary - 3));
    return ids;
  };
  const std::vector<TokenId> beginning = tokens(20);
  std::vector<ValidRequest> requests;
  for (const size_t length : {1, 3, 9, 18}) {
    ValidRequest request;
    std::vector<TokenId> prompt = length % 3 == 0 ? beginning : std::vector<TokenId>();
    const std::vector<TokenId> own = tokens(length);
    prompt.insert(prompt.end(), own.begin(), own.end());
    request.prompt = std::move(prompt);
    request.sampling.temperature = length == 3 ? 0.0F : 0.9F;
    request.sampling.seed = random();
    request.sampling.max_tokens = 8;
    request.sampling.ignore_eos = true;
    request.sampling.num_logprobs = 2;
    if (length == 18) request.sampling.num_prompt_logprobs = 1;
    request.arrival = std::chrono::steady_clock::now();
    requests.push_back(std::move(request));
  }
  return requests;
}

class SchemeArray : public ::testing::Test {
 protected:
  // Returns the scheme's file or directory, creating it if needed.
  std::string model_of(const std::string& scheme) {
    const std::string path = folder_.at(scheme);
    if (fs::exists(path)) return path;
    if (scheme == kGguf) {
      std::vector<WeightFormat> all;
      for (const FormatInfo& info : format_table()) all.push_back(info.format);
      const std::string like = golden_folder() + "/tiny/tiny-llama.gguf";
      EXPECT_TRUE(testing::write_random_model(like, path, all, WeightFormat::kQ6_K));
      return path;
    }
    fs::copy(kFormats + scheme, path);
    write_tokenizer(path + "/tokenizer.json");
    return path;
  }

  Config base_config(const std::string& scheme, const std::string& bits) {
    Config config;
    config.model = model_of(scheme);
    config.activation_bits = std::stoi(bits);
    config.max_model_len = 128;
    config.max_num_seqs = 4;
    config.kv_cache_memory = int64_t{1} << 20;
    config.threads = 1;
    return config;
  }

  Config config_of(const Values& values, const ArrayRow& row) {
    const auto value = [&](Axis axis) { return values[axis][row[axis]]; };
    Config config = base_config(value(kScheme), value(kBits));
    config.isa = value(kIsa);
    if (value(kWorkers) != "1 thread") config.threads = 2;
    if (value(kWorkers) == "2 ranks") config.tensor_parallel_size = 2;
    config.max_num_batched_tokens = std::stoi(value(kChunk));
    config.enable_prefix_caching = value(kPrefix) == "hit";
    config.debug_preempt_every = std::stoi(value(kPreempt));
    return config;
  }

  // Checkpoints with too few columns for two ranks run on one, with as many threads.
  std::unique_ptr<Engine> start(Config config) {
    if (config.tensor_parallel_size == 1) return testing::start_engine(config);
    Expected<std::unique_ptr<Engine>> shared = create_engine(config);
    if (shared) {
      ++num_shared_;
      return std::move(*shared);
    }
    const std::string& message = shared.error().message;
    const bool is_block = config.model.find("fp8-block") != std::string::npos;
    const bool is_experts = config.model.ends_with("-experts");
    EXPECT_TRUE(
        (is_block && message.find("on a rank, expected multiples of 128") != message.npos) ||
        (is_experts && message.find("on each rank") != message.npos))
        << message;
    config.tensor_parallel_size = 1;
    return testing::start_engine(config);
  }

  // Runs one request after the other, without a cache, by the fastest instructions.
  const std::vector<Collected>& expected(const std::string& scheme, const std::string& bits) {
    std::vector<Collected>& results = expected_[scheme + bits];
    if (!results.empty()) return results;
    Config config = base_config(scheme, bits);
    config.enable_prefix_caching = false;
    const std::unique_ptr<Engine> engine = testing::start_engine(config);
    if (engine != nullptr) results = testing::run_alone(*engine, requests_);
    return results;
  }

  const testing::TemporaryFolder folder_;
  const std::vector<ValidRequest> requests_ = make_requests();
  std::map<std::string, std::vector<Collected>> expected_;  // by scheme and bits
  size_t num_shared_ = 0;                                   // settings on two ranks
};

TEST_F(SchemeArray, AnyWayOfRunningARequestGivesItTheSameBitsInEveryScheme) {
  const Values values = all_values();
  const std::vector<ArrayRow> rows = testing::covering_array(num_values(values));
  ASSERT_EQ(testing::num_missing_pairs(num_values(values), rows), 0U);
  uint64_t num_preemptions = 0;
  uint64_t num_hits = 0;
  for (const ArrayRow& row : rows) {
    std::string what;
    for (size_t a = 0; a < kNumAxes; ++a) what += values[a][row[a]] + ", ";
    const std::vector<Collected>& alone =
        expected(values[kScheme][row[kScheme]], values[kBits][row[kBits]]);
    const std::unique_ptr<Engine> engine = start(config_of(values, row));
    ASSERT_NE(engine, nullptr) << what;
    ASSERT_EQ(alone.size(), requests_.size()) << what;
    if (values[kPrefix][row[kPrefix]] == "hit") testing::run_together(*engine, requests_);
    testing::expect_same(alone, testing::run_together(*engine, requests_), what);
    if (HasFatalFailure()) return;
    num_preemptions += engine->stats().num_preemptions;
    num_hits += engine->stats().prefix_cache_hits;
  }
  std::printf("%zu schemes in %zu settings\n", values[kScheme].size(), rows.size());
  // The axes had their effects.
  EXPECT_GT(num_preemptions, 0U);
  EXPECT_GT(num_hits, 0U);
  EXPECT_GT(num_shared_, values[kScheme].size() / 2);
}

// Results depend on the scheme: different ones give other tokens or log-probabilities.
TEST_F(SchemeArray, SchemesDifferFromOneAnother) {
  std::map<std::vector<float>, std::string> seen;
  for (const std::string& scheme : schemes()) {
    const std::vector<Collected>& results = expected(scheme, "8");
    ASSERT_EQ(results.size(), requests_.size()) << scheme;
    std::vector<float> logprobs;
    for (const Collected& result : results) {
      logprobs.insert(logprobs.end(), result.logprobs.begin(), result.logprobs.end());
    }
    const auto [same, is_new] = seen.emplace(logprobs, scheme);
    if (is_new) continue;
    // The only equal pair is one checkpoint under two labels.
    EXPECT_EQ(scheme + " " + same->second, "gptq-v2-as-v1 gptq-v2");
  }
}

}  // namespace
}  // namespace sluice
