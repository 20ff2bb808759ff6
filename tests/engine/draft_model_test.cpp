// SPDX-License-Identifier: Apache-2.0
// Drafts of a second model against the target's choices. If both are the same model, every draft is
// accepted at any temperature, because the noise is the same.
#include "engine/draft/draft_model.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/engine.h"
#include "engine/inspect.h"
#include "engine/plan/model_plan.h"
#include "tests/support/byte_tokenizer.h"
#include "tests/support/collecting_sink.h"
#include "tests/support/golden_folder.h"
#include "tests/support/random_model.h"
#include "tests/support/same_bits.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/varied_requests.h"

namespace sluice {
namespace {

using testing::Collected;

const std::string kTiny = golden_folder() + "/tiny/tiny-llama.gguf";

Config tiny_config() {
  Config config;
  config.model = kTiny;
  config.threads = 2;
  config.max_num_seqs = 16;
  config.kv_cache_memory = int64_t{16} << 20;
  return config;
}

std::string drafting_with(const std::string& path, const std::string& more = "") {
  return R"({"method": "draft_model", "model": ")" + path + R"(", "num_speculative_tokens": 4)" +
         more + "}";
}

// A request with the target's answer, and its progress here.
struct Replayed {
  RequestId id;
  SamplingParams params;
  std::vector<TokenId> all;  // prompt and answer
  size_t num_prompt = 0;
  size_t num_known = 0;
  std::vector<BlockId> blocks;
  int32_t num_cached = 0;

  [[nodiscard]] bool is_over() const { return num_known >= all.size(); }

  [[nodiscard]] DraftTask task(int32_t max = 4) const {
    return {.id = id,
            .known = std::span(all).first(num_known),
            .blocks = blocks,
            .num_prompt_tokens = static_cast<int32_t>(num_prompt),
            .num_cached_tokens = num_cached,
            .max = max};
  }

  // The number of the draft's leading tokens that match the answer.
  [[nodiscard]] int32_t num_right(const Draft& draft) const {
    int32_t right = 0;
    for (size_t at = num_known; at < all.size() && right < draft.size; ++at, ++right) {
      if (draft.guessed()[static_cast<size_t>(right)] != all[at]) break;
    }
    return right;
  }
};

// A draft model without its target, whose answers are known.
class Rig {
 public:
  explicit Rig(Config config, const std::string& spec = drafting_with(kTiny))
      : config_(std::move(config)) {
    config_.speculative_config = spec;
    auto device = kernels::Device::create({.threads = config_.threads});
    auto planned = plan_model(config_, {.num_threads = config_.threads});
    EXPECT_TRUE(planned.has_value()) << planned.error().message;
    if (!device || !planned) return;
    device_ = std::move(*device);
    plan_ = planned->plan;
    auto model = DraftModel::create(*device_,
                                    nullptr,
                                    std::move(*planned->draft),
                                    *plan_.draft,
                                    placement_of(config_),
                                    config_);
    EXPECT_TRUE(model.has_value()) << model.error().message;
    if (model) model_ = std::move(*model);
  }

  DraftModel& model() { return *model_; }

  [[nodiscard]] const MemoryPlan& plan() const { return plan_; }

  // Returns drafts for requests, beginning new ones.
  std::vector<Draft> drafts_of(const std::vector<const Replayed*>& requests, int32_t max = 4) {
    std::vector<DraftTask> tasks;
    for (const Replayed* request : requests) {
      model_->begin(request->id, request->params);
      tasks.push_back(request->task(max));
    }
    std::vector<Draft> drafts(tasks.size());
    model_->propose(tasks, drafts);
    return drafts;
  }

  // Adds blocks for all of these tokens but the last, as between two steps.
  void grow(std::vector<BlockId>& blocks, size_t num_known) {
    const auto wanted =
        static_cast<size_t>(ceil_div(static_cast<int64_t>(num_known) - 1, plan_.block_size));
    while (blocks.size() < wanted) blocks.emplace_back(next_block_++);
  }

 private:
  Config config_;
  std::unique_ptr<kernels::Device> device_;
  MemoryPlan plan_;
  std::unique_ptr<DraftModel> model_;
  int32_t next_block_ = 0;
};

std::vector<Replayed> replayed(const std::vector<ValidRequest>& requests,
                               const std::vector<Collected>& answers) {
  std::vector<Replayed> list;
  for (size_t i = 0; i < requests.size(); ++i) {
    Replayed one;
    one.id = RequestId(i + 1);
    one.params = requests[i].sampling;
    one.all = requests[i].prompt;
    one.num_prompt = one.all.size();
    one.num_known = one.num_prompt + 1;
    one.all.insert(one.all.end(), answers[i].tokens.begin(), answers[i].tokens.end());
    list.push_back(std::move(one));
  }
  return list;
}

struct Score {
  int64_t drafted = 0;
  int64_t accepted = 0;

  [[nodiscard]] double rate() const {
    return drafted == 0 ? 0 : static_cast<double>(accepted) / static_cast<double>(drafted);
  }
};

// Runs all requests together to their ends, as steps with drafts would.
Score run(Rig& rig, std::vector<Replayed> requests) {
  Score score;
  for (int step = 0; step < 1000; ++step) {
    std::vector<const Replayed*> running;
    for (Replayed& request : requests) {
      if (request.is_over()) continue;
      rig.grow(request.blocks, request.num_known);
      running.push_back(&request);
    }
    if (running.empty()) break;
    const std::vector<Draft> drafts = rig.drafts_of(running);
    for (size_t i = 0; i < drafts.size(); ++i) {
      Replayed& request = requests[running[i]->id.value - 1];
      const int32_t right = request.num_right(drafts[i]);
      const auto left = static_cast<int32_t>(request.all.size() - request.num_known);
      score.drafted += std::min(drafts[i].size, left);
      score.accepted += right;
      request.num_known += static_cast<size_t>(right) + 1;
      if (request.is_over()) rig.model().end(request.id);
    }
  }
  return score;
}

std::vector<ValidRequest> at_temperature(float temperature, size_t count, int32_t num_tokens) {
  std::vector<ValidRequest> requests = testing::seeded_requests(static_cast<int32_t>(count));
  for (ValidRequest& request : requests) {
    request.prompt.resize(std::min<size_t>(request.prompt.size(), 90));
    request.sampling.temperature = temperature;
    request.sampling.max_tokens = num_tokens;
    request.sampling.seed += 1000;
  }
  return requests;
}

std::vector<Replayed> answered(const std::vector<ValidRequest>& requests) {
  const auto engine = testing::start_engine(tiny_config());
  return replayed(requests, testing::run_together(*engine, requests));
}

std::string other_model() {
  static const testing::TemporaryFolder folder;
  std::string path = folder.at("other.gguf");
  const std::vector<WeightFormat> formats(14, WeightFormat::kBF16);
  EXPECT_TRUE(testing::write_random_model(kTiny, path, formats, WeightFormat::kBF16));
  return path;
}

TEST(DraftModel, TheTargetItselfIsAlwaysRightAtEveryTemperature) {
  for (const float temperature : {0.0F, 0.7F, 1.3F}) {
    Rig rig(tiny_config());
    const Score score = run(rig, answered(at_temperature(temperature, 6, 40)));
    EXPECT_GE(score.drafted, 6 * 30) << temperature;
    EXPECT_EQ(score.accepted, score.drafted) << temperature;
  }
}

TEST(DraftModel, ItIsRightWithPenaltiesBiasesAndFiltersToo) {
  std::vector<ValidRequest> requests = testing::varied_requests(480, 16);
  for (ValidRequest& request : requests) {
    request.sampling.max_tokens += 8;
    request.sampling.stop_token_ids.clear();
    request.sampling.num_prompt_logprobs = -1;
  }
  requests[1].sampling.top_k = 5;
  requests[3].sampling.top_p = 0.6F;
  requests[5].sampling.logit_bias = {{.token = 9, .bias = 3}};
  const auto engine = testing::start_engine(tiny_config());
  const auto answers = testing::run_together(*engine, requests);
  Rig rig(tiny_config());
  rig.model().use_end_tokens(engine->tokenizer().end_tokens());
  const Score score = run(rig, replayed(requests, answers));
  EXPECT_GE(score.drafted, 100);
  EXPECT_EQ(score.accepted, score.drafted);
}

// A mutation that changes no answer: noise of another seed.
TEST(DraftModel, NoiseOfAnotherSeedIsRightLessOften) {
  std::vector<Replayed> requests = answered(at_temperature(1.3F, 6, 40));
  for (Replayed& request : requests) ++request.params.seed;
  Rig rig(tiny_config());
  EXPECT_LT(run(rig, requests).rate(), 0.5);
}

TEST(DraftModel, AnotherModelSharesTheNoise) {
  const std::vector<Replayed> requests = answered(at_temperature(1.0F, 6, 40));
  const std::string path = other_model();
  Rig shared(tiny_config(), drafting_with(path));
  const Score with_noise = run(shared, requests);
  std::vector<Replayed> others = requests;
  for (Replayed& request : others) request.params.seed += 77;
  Rig apart(tiny_config(), drafting_with(path));
  const Score without = run(apart, others);
  std::printf(
      "another model: shared noise %.3f, other noise %.3f\n", with_noise.rate(), without.rate());
  EXPECT_GT(with_noise.rate(), without.rate());
  EXPECT_GT(with_noise.drafted, 0);
}

TEST(DraftModel, ContextEndsBeforeTarget) {
  std::vector<Replayed> requests = answered(at_temperature(0, 1, 60));
  Replayed& request = requests[0];
  Rig rig(tiny_config(), drafting_with(kTiny, R"(, "max_model_len": 48)"));
  EXPECT_EQ(rig.plan().draft->max_model_len, 48);
  while (!request.is_over()) {
    rig.grow(request.blocks, request.num_known);
    const Draft draft = rig.drafts_of({&request})[0];
    const int32_t room = 48 - static_cast<int32_t>(request.num_known) + 1;
    EXPECT_EQ(draft.size, std::clamp(room, 0, 4)) << request.num_known;
    ++request.num_known;
  }
}

TEST(DraftModel, FollowsARequestIntoOtherBlocks) {
  std::vector<Replayed> requests = answered(at_temperature(0.7F, 2, 40));
  Replayed& request = requests[1];
  Rig rig(tiny_config());
  rig.grow(request.blocks, request.num_known);
  EXPECT_EQ(request.num_right(rig.drafts_of({&request})[0]), 4);
  // After a preemption another request has its blocks, and it returns with others.
  requests[0].blocks = std::exchange(request.blocks, {});
  requests[0].num_known = std::min<size_t>(requests[0].num_known, 40);
  ASSERT_GE(requests[0].blocks.size() * 16 + 1, requests[0].num_known);
  rig.drafts_of({&requests[0]});
  rig.grow(request.blocks, request.num_known + 3);
  request.num_known += 3;
  EXPECT_EQ(request.num_right(rig.drafts_of({&request})[0]), 4);
  // It has its old blocks again, whose contents are no longer its own.
  request.blocks = requests[0].blocks;
  request.blocks.emplace_back(100);
  EXPECT_EQ(request.num_right(rig.drafts_of({&request})[0]), 4);
}

TEST(DraftModel, UsesWhatAnotherRequestHasComputedOfAPrefix) {
  std::vector<Replayed> requests = answered(at_temperature(0.7F, 3, 40));
  Replayed first = requests[2];
  Rig rig(tiny_config());
  rig.grow(first.blocks, first.num_known);
  EXPECT_EQ(first.num_right(rig.drafts_of({&first})[0]), 4);
  Replayed second = first;
  second.id = RequestId(50);
  second.num_cached = static_cast<int32_t>(second.num_prompt - 1) / 16 * 16;
  second.blocks.resize(static_cast<size_t>(second.num_cached) / 16);
  rig.grow(second.blocks, second.num_known);
  EXPECT_EQ(second.num_right(rig.drafts_of({&second})[0]), 4);
}

// Both have blocks without draft KV: one of them computes it in the first call.
TEST(DraftModel, TwoRequestsWithOnePrefixDoNotComputeItAtOnce) {
  const std::vector<Replayed> requests = answered(at_temperature(0.7F, 3, 40));
  Replayed first = requests[2];
  Rig rig(tiny_config());
  rig.grow(first.blocks, first.num_known);
  Replayed second = first;
  second.id = RequestId(50);
  second.blocks.pop_back();
  rig.grow(second.blocks, second.num_known);
  const std::vector<Draft> at_once = rig.drafts_of({&first, &second});
  EXPECT_EQ(first.num_right(at_once[0]), 4);
  EXPECT_EQ(at_once[1].size, 0);
  EXPECT_EQ(second.num_right(rig.drafts_of({&second})[0]), 4);
}

TEST(DraftModel, CatchesUpWithALongPromptInSeveralCallsBesideOthers) {
  std::vector<ValidRequest> list = at_temperature(0.7F, 2, 40);
  list[1].prompt.clear();
  for (TokenId i = 0; i < 700; ++i) list[1].prompt.push_back((i * i * 7 + i) % 250);
  std::vector<Replayed> requests = answered(list);
  Config config = tiny_config();
  Rig rig(config);
  for (Replayed& request : requests) rig.grow(request.blocks, request.num_known);
  ASSERT_GT(requests[1].num_known, 512U);
  std::vector<Draft> drafts = rig.drafts_of({&requests[1], &requests[0]});
  EXPECT_EQ(drafts[0].size, 0);
  EXPECT_EQ(requests[0].num_right(drafts[1]), 4);
  drafts = rig.drafts_of({&requests[1], &requests[0]});
  EXPECT_EQ(requests[1].num_right(drafts[0]), 4);
  EXPECT_EQ(requests[0].num_right(drafts[1]), 4);
}

// Behind a cache hit without draft KV the model sees only the last tokens: the draft is that of a
// sequence which begins there.
TEST(DraftModel, BehindALongHitItComputesTheLastTokensAlone) {
  std::vector<ValidRequest> list = at_temperature(0, 1, 20);
  list[0].prompt.clear();
  for (TokenId i = 0; i < 800; ++i) list[0].prompt.push_back((i * i * 7 + i) % 250);
  Replayed request = answered(list)[0];
  request.num_cached = 784;
  Rig rig(tiny_config());
  rig.grow(request.blocks, request.num_known);
  // It begins at 784 - 512 = 272: 529 tokens are left, more than one call computes.
  EXPECT_EQ(rig.drafts_of({&request})[0].size, 0);
  const Draft draft = rig.drafts_of({&request})[0];
  EXPECT_EQ(draft.size, 4);

  Replayed cut = request;
  cut.id = RequestId(7);
  cut.all.erase(cut.all.begin(), cut.all.begin() + 272);
  cut.num_known -= 272;
  cut.num_prompt -= 272;
  cut.num_cached = 0;
  cut.blocks.clear();
  rig.grow(cut.blocks, cut.num_known);
  EXPECT_EQ(rig.drafts_of({&cut})[0].size, 0);
  const Draft same = rig.drafts_of({&cut})[0];
  ASSERT_EQ(same.size, 4);
  // Rotations by other positions change the last bits, but rarely the likeliest token.
  EXPECT_EQ(draft.tokens[0], same.tokens[0]);
}

TEST(DraftModel, WithoutBlocksForItsTokensARequestHasNoDraft) {
  std::vector<Replayed> requests = answered(at_temperature(0, 2, 10));
  Replayed& request = requests[1];
  Rig rig(tiny_config());
  EXPECT_EQ(rig.drafts_of({&request})[0].size, 0);
  rig.grow(request.blocks, request.num_known);
  EXPECT_EQ(rig.drafts_of({&request}, 0)[0].size, 0);  // computed, and not drafted
  EXPECT_EQ(rig.drafts_of({&request}, 1)[0].size, 1);
}

TEST(DraftModel, SureTokensAreInHigherBins) {
  std::vector<Replayed> requests = answered(at_temperature(0, 6, 30));
  Rig rig(tiny_config());
  Replayed& request = requests[0];
  rig.grow(request.blocks, request.num_known);
  const Draft greedy = rig.drafts_of({&request})[0];
  for (const uint8_t bin : greedy.confidence()) EXPECT_LT(bin, 8);
  request.id = RequestId(99);
  request.params.temperature = 1;
  const Draft sampled = rig.drafts_of({&request})[0];
  for (const uint8_t bin : sampled.confidence()) {
    EXPECT_GE(bin, 8);
    EXPECT_LT(bin, kNumConfidenceBins);
  }
}

// --- What is planned and what is refused -----------------------------------------------------

Expected<PlannedModel> planned_with(Config config, const std::string& spec) {
  config.speculative_config = spec;
  return plan_model(config, {.num_threads = 2});
}

TEST(MemoryPlan, DraftRowsSumUp) {
  const Config config = tiny_config();
  const auto off = plan_model(config, {.num_threads = 2});
  const auto on = planned_with(config, drafting_with(kTiny));
  ASSERT_TRUE(off.has_value() && on.has_value());
  const DraftPlan& draft = *on->plan.draft;
  EXPECT_FALSE(off->plan.draft.has_value());
  EXPECT_GT(draft.weight_bytes, 0);
  EXPECT_GT(draft.arena_bytes, 0);
  // With the same model drafting, a block costs twice as much, so there are half as many.
  const int32_t blocks_off = off->plan.kv_groups[0].num_blocks;
  const int32_t blocks_on = on->plan.kv_groups[0].num_blocks;
  EXPECT_EQ(blocks_on, blocks_off / 2);
  EXPECT_EQ(draft.kv_groups[0].num_blocks, blocks_on + draft.num_own_blocks);
  EXPECT_EQ(draft.num_own_blocks, 16);
  EXPECT_EQ(draft.kv_bytes,
            kv_block_bytes(draft.kv_groups[0], 16) * draft.kv_groups[0].num_blocks);
  const MemoryPlan& plan = on->plan;
  EXPECT_EQ(plan.total_bytes(),
            plan.weight_bytes + plan.rope_bytes + plan.arena_bytes + plan.logits_bytes +
                plan.kv_bytes + plan.incoming_bytes + draft.weight_bytes + draft.arena_bytes +
                draft.kv_bytes);
  // --kv-cache-memory bounds the blocks with all their contents.
  const int64_t in_blocks = draft.kv_bytes / draft.kv_groups[0].num_blocks * blocks_on;
  EXPECT_LE(plan.kv_bytes + in_blocks, config.kv_cache_memory);
  EXPECT_GT(plan.kv_bytes + in_blocks, config.kv_cache_memory - (int64_t{64} << 10));
  const std::string text = on->plan.describe();
  for (const char* row : {"draft weights", "draft activations", "draft KV"}) {
    EXPECT_NE(text.find(row), std::string::npos) << text;
  }
  EXPECT_EQ(off->plan.describe().find("draft"), std::string::npos);
}

// The sum holds what clients may have sent and the server has not taken.
TEST(MemoryPlan, IncompleteRequestsHaveARow) {
  Config config = tiny_config();
  const auto bytes = [&config] {
    const auto planned = plan_model(config, {.num_threads = 2});
    EXPECT_TRUE(planned.has_value());
    EXPECT_NE(planned->plan.describe().find("incomplete requests"), std::string::npos);
    const MemoryPlan& plan = planned->plan;
    EXPECT_EQ(plan.total_bytes() - plan.incoming_bytes,
              plan.weight_bytes + plan.rope_bytes + plan.arena_bytes + plan.logits_bytes +
                  plan.kv_bytes);
    return plan.incoming_bytes;
  };
  config.max_body_bytes = 1 << 20;
  EXPECT_EQ(bytes(), 4 << 20);
  config.grpc_port = 0;
  EXPECT_EQ(bytes(), (4 + 4 + 32) << 20);
  config.worker_listen = "127.0.0.1:0";
  EXPECT_EQ(bytes(), (4 + 2 * (4 + 32)) << 20);
  config.max_body_bytes = 2 << 20;
  EXPECT_EQ(bytes(), (8 + 2 * (8 + 32)) << 20);
}

// Token-based proposers use host memory and have their own row.
TEST(MemoryPlan, ProposersHaveARow) {
  Config config = tiny_config();
  const auto off = plan_model(config, {.num_threads = 2});
  int64_t least = 0;
  for (const char* method : {"ngram", "suffix"}) {
    config.speculative_config = R"({"method":")" + std::string(method) + "\"}";
    const auto on = plan_model(config, {.num_threads = 2});
    ASSERT_TRUE(off.has_value() && on.has_value());
    EXPECT_GT(on->plan.proposer_bytes, least);
    least = on->plan.proposer_bytes;
    const MemoryPlan& plan = on->plan;
    EXPECT_EQ(plan.total_bytes(),
              plan.weight_bytes + plan.rope_bytes + plan.arena_bytes + plan.logits_bytes +
                  plan.kv_bytes + plan.proposer_bytes + plan.incoming_bytes);
    EXPECT_NE(plan.describe().find("proposers of drafts"), std::string::npos);
  }
  EXPECT_EQ(off->plan.proposer_bytes, 0);
}

// The last size is the first that holds the rows of a step with all drafts.
TEST(PlanText, NamesTheSizesOfStepsThatAreTimedWhereDraftsAdapt) {
  Config config = tiny_config();
  config.max_num_seqs = 3;
  const auto text = [&](const std::string& spec) {
    config.speculative_config = spec;
    const Expected<std::string> made = plan_text(config);
    return made ? *made : made.error().message;
  };
  const std::string adaptive = text(R"({"method":"ngram","num_speculative_tokens":4})");
  EXPECT_NE(adaptive.find("for up to 1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16 rows\n"),
            std::string::npos)
      << adaptive;
  const std::string fixed =
      text(R"({"method":"ngram","num_speculative_tokens":4,"adaptive":false})");
  EXPECT_EQ(fixed.find("row_times"), std::string::npos) << fixed;
  EXPECT_EQ(text("").find("row_times"), std::string::npos);
}

TEST(MemoryPlan, DraftKvHasItsOwnDtype) {
  const auto bf16 = planned_with(tiny_config(), drafting_with(kTiny));
  const auto f32 =
      planned_with(tiny_config(), drafting_with(kTiny, R"(, "kv_cache_dtype": "float32")"));
  ASSERT_TRUE(bf16.has_value() && f32.has_value());
  EXPECT_LT(f32->plan.kv_groups[0].num_blocks, bf16->plan.kv_groups[0].num_blocks);
  EXPECT_EQ(f32->plan.kv_dtype, DType::kBF16);
  EXPECT_EQ(f32->plan.draft->kv_dtype, DType::kF32);
}

TEST(DraftPlan, WhatCannotDraftIsRefusedByName) {
  const auto refusal = [](Config config, const std::string& spec) {
    const auto planned = planned_with(std::move(config), spec);
    return planned ? std::string() : planned.error().message;
  };
  EXPECT_NE(refusal(tiny_config(), drafting_with("/no/such/draft")).find("/no/such/draft"),
            std::string::npos);
  EXPECT_NE(refusal(tiny_config(), drafting_with(kTiny, R"(, "max_model_len": 1000000)"))
                .find("max_model_len: found 1000000"),
            std::string::npos);
  EXPECT_NE(
      refusal(tiny_config(), drafting_with(kTiny, R"(, "kv_cache_dtype": "int3")")).find("int3"),
      std::string::npos);
  Config tight = tiny_config();
  tight.kv_cache_memory = 4000;
  EXPECT_NE(refusal(tight, drafting_with(kTiny)).find("the model that drafts"), std::string::npos);
}

TEST(DraftPlan, VocabularyMismatchIsRefused) {
  const auto tiny = load_tokenizer(kTiny);
  ASSERT_TRUE(tiny.has_value()) << tiny.error().message;
  EXPECT_TRUE(check_draft_vocabulary(**tiny, **tiny, "d").has_value());
  const auto refused = check_draft_vocabulary(**tiny, ByteTokenizer(), "some/draft");
  ASSERT_FALSE(refused.has_value());
  EXPECT_NE(refused.error().message.find("some/draft: found"), std::string::npos);
  EXPECT_NE(refused.error().message.find("of the target's 487"), std::string::npos);
}

}  // namespace
}  // namespace sluice
