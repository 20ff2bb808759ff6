// SPDX-License-Identifier: Apache-2.0
// Engines with a draft model: answers, prefix cache hits and counts equal those without, and a
// model that drafts for itself is always right.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <iterator>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "engine/core/config.h"
#include "engine/engine.h"
#include "tests/support/golden_folder.h"
#include "tests/support/random_model.h"
#include "tests/support/same_bits.h"
#include "tests/support/shared_model.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/varied_requests.h"

namespace sluice {
namespace {

using testing::Collected;
using testing::expect_same;
using testing::run_alone;
using testing::run_together;
using testing::settle;
using testing::start_engine;
using testing::varied_requests;

const std::string kTiny = golden_folder() + "/tiny/tiny-llama.gguf";

Config tiny_config() {
  Config config;
  config.model = kTiny;
  config.threads = 2;
  config.max_model_len = 512;
  config.kv_cache_memory = int64_t{8} << 20;
  return config;
}

const std::string kHead = golden_folder() + "/eagle/mapped";

std::string drafting_by_head(const std::string& path, bool is_fixed = true) {
  return R"({"method": "eagle3", "model": ")" + path +
         R"(", "num_speculative_tokens": 3, "adaptive": )" + (is_fixed ? "false" : "true") + "}";
}

std::string drafting_with(const std::string& path, bool is_fixed = true) {
  return R"({"method": "draft_model", "model": ")" + path +
         R"(", "num_speculative_tokens": 4, "adaptive": )" + (is_fixed ? "false" : "true") + "}";
}

// A model with the same vocabulary that is rarely right.
const std::string& other_model() {
  static const testing::TemporaryFolder folder;
  static const std::string path = [] {
    const std::string written = folder.at("other.gguf");
    const std::vector<WeightFormat> formats(7, WeightFormat::kQ8_0);
    EXPECT_TRUE(testing::write_random_model(kTiny, written, formats, WeightFormat::kQ8_0));
    return written;
  }();
  return path;
}

uint64_t sum(const auto& counters) {
  return std::accumulate(counters.begin(), counters.end(), uint64_t{0});
}

TEST(ModelSpeculation, ChangesNoAnswer) {
  const std::unique_ptr<Engine> plain = start_engine(tiny_config());
  ASSERT_NE(plain, nullptr);
  const std::vector<ValidRequest> requests = varied_requests(plain->model().vocab_size, 60);
  const std::vector<Collected> expected = run_alone(*plain, requests);
  for (const std::string& draft : {kTiny, other_model(), kHead}) {
    for (const int32_t num_seqs : {1, 7, 64}) {
      for (const bool overlap : {false, true}) {
        Config config = tiny_config();
        const bool is_fixed = num_seqs != 64 || overlap;
        config.speculative_config =
            draft == kHead ? drafting_by_head(draft, is_fixed) : drafting_with(draft, is_fixed);
        config.max_num_seqs = num_seqs;
        config.overlap = overlap;
        config.debug_preempt_every = num_seqs == 7 ? 5 : 0;
        config.max_num_batched_tokens = num_seqs == 7 ? 32 : 512;
        const std::unique_ptr<Engine> engine = start_engine(config);
        ASSERT_NE(engine, nullptr);
        const std::string what = draft + ", " + std::to_string(num_seqs);
        expect_same(expected, run_together(*engine, requests), what);
        expect_same(expected, run_together(*engine, requests), what + ", with hits");
        if (HasFatalFailure()) return;
        settle(*engine);
        EXPECT_EQ(engine->stats().num_blocks_used, 0);
        EXPECT_TRUE(!is_fixed || sum(engine->stats().drafts.num_drafts) > 0) << what;
      }
    }
  }
}

TEST(ModelSpeculation, AModelThatDraftsForItselfIsAlwaysRight) {
  for (const float temperature : {0.0F, 0.7F, 1.3F}) {
    std::vector<ValidRequest> requests = varied_requests(480, 24);
    for (ValidRequest& request : requests) {
      request.sampling.temperature = temperature;
      request.sampling.max_tokens = 41;
      request.sampling.min_tokens = 0;
    }
    Config config = tiny_config();
    config.speculative_config = drafting_with(kTiny);
    const std::unique_ptr<Engine> engine = start_engine(config);
    ASSERT_NE(engine, nullptr);
    run_together(*engine, requests);
    settle(*engine);
    const DraftStats drafts = engine->stats().drafts;
    const auto source = static_cast<size_t>(DraftSource::kDraftModel);
    EXPECT_GT(drafts.num_draft_tokens[source], 300U);
    EXPECT_EQ(drafts.num_accepted_tokens[source] + drafts.num_padded_rows,
              drafts.num_draft_tokens[source])
        << temperature;
    EXPECT_LE(drafts.num_padded_rows, 24U) << temperature;
  }
}

TEST(ModelSpeculation, PrefixHitTokensEqualNoSpeculation) {
  const auto hits = [](const std::string& speculation) {
    Config config = tiny_config();
    config.speculative_config = speculation;
    const std::unique_ptr<Engine> engine = start_engine(config);
    EXPECT_NE(engine, nullptr);
    std::vector<int32_t> cached;
    const std::vector<ValidRequest> requests = varied_requests(480, 16);
    for (int turn = 0; turn < 2; ++turn) {
      const std::vector<Collected> answers = run_alone(*engine, requests);
      for (const Collected& answer : answers) cached.push_back(answer.num_cached_tokens);
      // The next turn continues behind the answer.
      std::vector<ValidRequest> next = requests;
      for (size_t i = 0; i < next.size(); ++i) {
        next[i].prompt.insert(
            next[i].prompt.end(), answers[i].tokens.begin(), answers[i].tokens.end());
        next[i].prompt.push_back(7);
      }
      for (const Collected& answer : run_alone(*engine, next)) {
        cached.push_back(answer.num_cached_tokens);
      }
    }
    return cached;
  };
  const std::vector<int32_t> off = hits("");
  EXPECT_GT(sum(off), 100U);
  EXPECT_EQ(hits(drafting_with(kTiny)), off);
  EXPECT_EQ(hits(drafting_with(other_model())), off);
  EXPECT_EQ(hits(drafting_by_head(kHead)), off);
}

TEST(ModelSpeculation, RequestsThatWantNoDraftsHaveNone) {
  Config config = tiny_config();
  config.speculative_config = drafting_with(kTiny);
  const std::unique_ptr<Engine> engine = start_engine(config);
  ASSERT_NE(engine, nullptr);
  std::vector<ValidRequest> requests = varied_requests(480, 8);
  for (ValidRequest& request : requests) request.speculative = false;
  run_together(*engine, requests);
  settle(*engine);
  EXPECT_EQ(sum(engine->stats().drafts.num_drafts), 0U);
}

TEST(ModelSpeculation, TogetherWithProposersNoAnswerChanges) {
  const std::unique_ptr<Engine> plain = start_engine(tiny_config());
  ASSERT_NE(plain, nullptr);
  std::vector<ValidRequest> requests = varied_requests(plain->model().vocab_size, 40);
  for (ValidRequest& request : requests) {
    const std::vector<TokenId> once = request.prompt;
    request.prompt.insert(request.prompt.end(), once.begin(), once.end());
  }
  const std::vector<Collected> expected = run_alone(*plain, requests);
  Config config = tiny_config();
  config.speculative_config = R"({"method": "ngram,draft_model", "prompt_lookup_max": 2,
      "prompt_lookup_min": 1, "num_speculative_tokens": 4, "adaptive": false, "model": ")" +
                              kTiny + "\"}";
  const std::unique_ptr<Engine> engine = start_engine(config);
  ASSERT_NE(engine, nullptr);
  expect_same(expected, run_together(*engine, requests), "ngram and model");
  settle(*engine);
  const DraftStats drafts = engine->stats().drafts;
  EXPECT_GT(drafts.num_drafts[static_cast<size_t>(DraftSource::kDraftModel)], 0U);
  EXPECT_GT(drafts.num_drafts[static_cast<size_t>(DraftSource::kNgram)], 0U);
}

// The draft model lacks the target's last tokens: it never drafts one, and reads another in its
// place.
TEST(ModelSpeculation, AModelWithFewerTokensDraftsAndChangesNoAnswer) {
  const std::unique_ptr<Engine> plain = start_engine(tiny_config());
  ASSERT_NE(plain, nullptr);
  const std::vector<ValidRequest> requests = varied_requests(plain->model().vocab_size, 40);
  const std::vector<Collected> expected = run_alone(*plain, requests);
  constexpr TokenId kFewer = 450;
  int num_beyond = 0;
  for (const Collected& answer : expected) {
    num_beyond += static_cast<int>(
        std::ranges::count_if(answer.tokens, [](TokenId token) { return token >= kFewer; }));
  }
  EXPECT_GT(num_beyond, 10);
  const testing::TemporaryFolder folder;
  const std::string path = folder.at("fewer.gguf");
  const std::vector<WeightFormat> formats(7, WeightFormat::kQ8_0);
  ASSERT_TRUE(testing::write_random_model(kTiny, path, formats, WeightFormat::kQ8_0, kFewer));
  for (const bool overlap : {false, true}) {
    Config config = tiny_config();
    config.speculative_config = drafting_with(path);
    config.overlap = overlap;
    config.debug_preempt_every = overlap ? 5 : 0;
    const std::unique_ptr<Engine> engine = start_engine(config);
    ASSERT_NE(engine, nullptr);
    expect_same(expected, run_together(*engine, requests), "fewer tokens");
    if (HasFatalFailure()) return;
    settle(*engine);
    EXPECT_GT(sum(engine->stats().drafts.num_drafts), 100U);
  }
}

TEST(ModelSpeculation, HeadsOfEveryFormDraftAndChangeNoAnswer) {
  const std::unique_ptr<Engine> plain = start_engine(tiny_config());
  ASSERT_NE(plain, nullptr);
  const std::vector<ValidRequest> requests = varied_requests(plain->model().vocab_size, 12);
  const std::vector<Collected> expected = run_alone(*plain, requests);
  const std::string folder = golden_folder() + "/eagle/";
  for (const char* name : {"layers", "mapped", "whole"}) {
    for (const int32_t ranks : {1, 2}) {
      Config config = tiny_config();
      config.tensor_parallel_size = ranks;
      config.max_num_batched_tokens = 40;
      config.speculative_config = drafting_by_head(folder + name);
      const std::unique_ptr<Engine> engine = start_engine(config);
      ASSERT_NE(engine, nullptr);
      expect_same(expected, run_together(*engine, requests), name);
      if (HasFatalFailure()) return;
      settle(*engine);
      const DraftStats drafts = engine->stats().drafts;
      EXPECT_GT(drafts.num_drafts[static_cast<size_t>(DraftSource::kEagle)], 50U) << name;
    }
  }
}

TEST(ModelSpeculation, AHeadOfTheFirstKindDraftsAndChangesNoAnswer) {
  const std::unique_ptr<Engine> plain = start_engine(tiny_config());
  ASSERT_NE(plain, nullptr);
  const std::vector<ValidRequest> requests = varied_requests(plain->model().vocab_size, 24);
  const std::vector<Collected> expected = run_alone(*plain, requests);
  Config config = tiny_config();
  config.max_num_batched_tokens = 40;
  config.speculative_config = R"({"method": "eagle", "num_speculative_tokens": 3,
      "adaptive": false, "model": ")" +
                              golden_folder() + "/eagle/first\"}";
  for (const bool overlap : {false, true}) {
    config.overlap = overlap;
    config.debug_preempt_every = overlap ? 5 : 0;
    const std::unique_ptr<Engine> engine = start_engine(config);
    ASSERT_NE(engine, nullptr);
    expect_same(expected, run_together(*engine, requests), "eagle");
    if (HasFatalFailure()) return;
    settle(*engine);
    const DraftStats drafts = engine->stats().drafts;
    EXPECT_GT(drafts.num_drafts[static_cast<size_t>(DraftSource::kEagle)], 50U);
  }
  config.tensor_parallel_size = 2;
  const auto shared = create_engine(config);
  ASSERT_FALSE(shared.has_value());
  EXPECT_NE(shared.error().message.find("--tensor-parallel-size 2, expected 1"), std::string::npos)
      << shared.error().message;
}

// A head is asked about all rows of a request that has begun, also those of a prompt that is
// computed again in several steps: none of these may run beside the head.
TEST(ModelSpeculation, APreemptedRequestsPromptAndAHeadDoNotRunAtOnce) {
  Config config = tiny_config();
  config.enable_prefix_caching = false;
  config.max_num_batched_tokens = 32;
  const std::unique_ptr<Engine> plain = start_engine(config);
  ASSERT_NE(plain, nullptr);
  std::vector<ValidRequest> requests = varied_requests(plain->model().vocab_size, 3);
  for (size_t i = 0; i < requests.size(); ++i) {
    for (int32_t token = 0; requests[i].prompt.size() < 150; ++token) {
      requests[i].prompt.push_back(3 + (token * 7 + static_cast<int32_t>(i)) % 400);
    }
    requests[i].sampling.max_tokens = 30;
    requests[i].sampling.ignore_eos = true;
    requests[i].sampling.stop_token_ids.clear();
  }
  const std::vector<Collected> expected = run_alone(*plain, requests);
  config.overlap = true;
  config.max_num_seqs = 1;
  config.debug_preempt_every = 5;
  for (const std::string& drafting :
       {drafting_by_head(kHead),
        R"({"method": "mtp", "num_speculative_tokens": 3, "adaptive": false, "model": ")" +
            golden_folder() + "/eagle/mtp-mimo\"}"}) {
    config.speculative_config = drafting;
    const std::unique_ptr<Engine> engine = start_engine(config);
    ASSERT_NE(engine, nullptr);
    expect_same(expected, run_together(*engine, requests), drafting);
    if (HasFatalFailure()) return;
    settle(*engine);
    EXPECT_GT(engine->stats().num_preemptions, 5U);
    EXPECT_GT(sum(engine->stats().drafts.num_drafts), 10U);
  }
}

// Behind another model's layers, modules are recognised by their names; in the target's own folder
// no path names them.
TEST(ModelSpeculation, ModulesBehindTheLayersDraftAndChangeNoAnswer) {
  const std::unique_ptr<Engine> plain = start_engine(tiny_config());
  ASSERT_NE(plain, nullptr);
  const std::vector<ValidRequest> requests = varied_requests(plain->model().vocab_size, 12);
  const std::vector<Collected> expected = run_alone(*plain, requests);
  for (const char* name : {"mtp-layers", "mtp-mimo", "mtp-next"}) {
    Config config = tiny_config();
    config.max_num_batched_tokens = 40;
    config.overlap = name == std::string("mtp-mimo");
    config.debug_preempt_every = config.overlap ? 5 : 0;
    config.speculative_config = R"({"method": "mtp", "num_speculative_tokens": 3,
        "adaptive": false, "model": ")" +
                                golden_folder() + "/eagle/" + name + "\"}";
    const std::unique_ptr<Engine> engine = start_engine(config);
    ASSERT_NE(engine, nullptr);
    expect_same(expected, run_together(*engine, requests), name);
    if (HasFatalFailure()) return;
    settle(*engine);
    const DraftStats drafts = engine->stats().drafts;
    EXPECT_GT(drafts.num_drafts[static_cast<size_t>(DraftSource::kMtp)], 50U) << name;
  }
}

TEST(ModelSpeculation, AModuleOfTheTargetsOwnFolderDraftsAndChangesNoAnswer) {
  // Plain; with experts; with latents, and with a choice among them, behind a layer without one.
  const std::pair<const char*, nlohmann::json> models[] = {
      {"models/qwen2", {{"model_type", "mimo"}}},
      {"models/glm4-moe", {}},
      {"models/qwen3-5", {}},
      {"models/qwen3-next", {}},
      {"models/mimo-v2-published", {{"swa_head_dim", 32}}},
      {"models/step3p5", {{"attention_other_setting", {{"head_dim", 32}}}}},
      {"models/deepseek-v3", {}},
      {"models/glm-moe-dsa", {{"indexer_types", {"full", "full", "shared"}}, {"index_topk", 20}}},
  };
  for (const auto& [name, changes] : models) {
    const testing::TemporaryFolder folder;
    testing::write_model(folder, name, changes);
    Config config = tiny_config();
    config.model = folder.path();
    config.load_format = "dummy";
    const std::unique_ptr<Engine> plain = start_engine(config);
    ASSERT_NE(plain, nullptr);
    const std::vector<ValidRequest> requests = varied_requests(plain->model().vocab_size, 6);
    config.speculative_config =
        R"({"method": "mtp", "num_speculative_tokens": 2, "adaptive": false})";
    const std::unique_ptr<Engine> engine = start_engine(config);
    ASSERT_NE(engine, nullptr);
    expect_same(run_alone(*plain, requests), run_together(*engine, requests), name);
    if (HasFatalFailure()) return;
    settle(*engine);
    EXPECT_GT(sum(engine->stats().drafts.num_draft_tokens), 0U) << name;
  }
}

// In the target's own file or folder, made to guess well: behind layers that keep states, where the
// next step runs accepted drafts again; with a window and sinks, with an output layer of its own.
TEST(ModelSpeculation, AModuleThatIsOftenRightChangesNoAnswer) {
  for (const char* name : {"engine-delta-mtp.gguf", "engine-sinks-mtp", "engine-heads-mtp"}) {
    Config config = tiny_config();
    config.model = golden_folder() + "/models/" + name;
    const std::unique_ptr<Engine> plain = start_engine(config);
    ASSERT_NE(plain, nullptr) << name;
    const std::vector<ValidRequest> requests = varied_requests(plain->model().vocab_size, 12);
    const std::vector<Collected> expected = run_alone(*plain, requests);
    config.speculative_config =
        R"({"method": "mtp", "num_speculative_tokens": 3, "adaptive": false})";
    for (const bool overlap : {false, true}) {
      config.overlap = overlap;
      config.max_num_batched_tokens = overlap ? 40 : 256;
      config.debug_preempt_every = overlap ? 5 : 0;
      const std::unique_ptr<Engine> engine = start_engine(config);
      ASSERT_NE(engine, nullptr) << name;
      for (const char* pass : {"cold", "cached"}) {
        expect_same(expected, run_together(*engine, requests), std::string(name) + ", " + pass);
        if (HasFatalFailure()) return;
      }
      settle(*engine);
      const DraftStats drafts = engine->stats().drafts;
      const uint64_t drafted = sum(drafts.num_draft_tokens);
      const uint64_t accepted = sum(drafts.num_accepted_tokens);
      std::printf("%s: %llu of %llu drafts accepted\n",
                  name,
                  static_cast<unsigned long long>(accepted),
                  static_cast<unsigned long long>(drafted));
      EXPECT_GT(accepted, drafted / 10) << name;
      EXPECT_LT(accepted, drafted) << name;
    }
  }
}

// A head that names no layers needs a deeper target than the tiny one.
TEST(ModelSpeculation, AHeadForAnotherTargetIsRefusedByName) {
  const std::string folder = golden_folder() + "/eagle/";
  Config config = tiny_config();
  config.speculative_config = drafting_by_head(folder + "midlayer");
  const auto shallow = create_engine(config);
  ASSERT_FALSE(shallow.has_value());
  EXPECT_NE(shallow.error().message.find("at least 7, found 3"), std::string::npos);
  config.speculative_config = drafting_by_head(kHead);
  config.model = other_model();
  const auto wider = create_engine(config);
  ASSERT_FALSE(wider.has_value());
  EXPECT_NE(wider.error().message.find("hidden size of the target: found 64, the target has 256"),
            std::string::npos)
      << wider.error().message;
}

TEST(ModelSpeculation, TensorParallelRanksAgreeWithOne) {
  const std::unique_ptr<Engine> plain = start_engine(tiny_config());
  ASSERT_NE(plain, nullptr);
  const std::vector<ValidRequest> requests = varied_requests(plain->model().vocab_size, 12);
  const std::vector<Collected> expected = run_alone(*plain, requests);
  Config config = tiny_config();
  config.tensor_parallel_size = 2;
  config.speculative_config = drafting_with(kTiny);
  const std::unique_ptr<Engine> engine = start_engine(config);
  ASSERT_NE(engine, nullptr);
  expect_same(expected, run_together(*engine, requests), "two ranks");
  settle(*engine);
  const DraftStats drafts = engine->stats().drafts;
  EXPECT_GT(sum(drafts.num_drafts), 0U);
  EXPECT_EQ(sum(drafts.num_accepted_tokens) + drafts.num_padded_rows, sum(drafts.num_draft_tokens));
}

// Writes the tiny model with each token's text under the next id.
void write_rotated_vocabulary(const std::string& path) {
  std::ifstream in(kTiny, std::ios::binary);
  std::string file{std::istreambuf_iterator<char>(in), {}};
  const std::string key = "tokenizer.ggml.tokens";
  const size_t count_at = file.find(key) + key.size() + 8;
  uint64_t count = 0;
  std::memcpy(&count, file.data() + count_at, sizeof count);
  const size_t begin = count_at + sizeof count;
  size_t last = begin;
  size_t end = begin;
  for (uint64_t i = 0; i < count; ++i) {
    uint64_t length = 0;
    std::memcpy(&length, file.data() + end, sizeof length);
    last = end;
    end += sizeof length + length;
  }
  using Offset = std::string::difference_type;
  std::rotate(file.begin() + static_cast<Offset>(begin),
              file.begin() + static_cast<Offset>(last),
              file.begin() + static_cast<Offset>(end));
  std::ofstream(path, std::ios::binary) << file;
}

TEST(ModelSpeculation, AModelWithAnotherVocabularyIsRefusedAtTheStart) {
  Config config = tiny_config();
  const testing::TemporaryFolder folder;
  const std::string path = folder.at("rotated.gguf");
  write_rotated_vocabulary(path);
  config.speculative_config = drafting_with(path);
  const auto engine = create_engine(config);
  ASSERT_FALSE(engine.has_value());
  EXPECT_NE(engine.error().message.find(path + ": found 0 of the target's 487"), std::string::npos)
      << engine.error().message;
}

}  // namespace
}  // namespace sluice
