// SPDX-License-Identifier: Apache-2.0
// A model over processes of one shim device each, which a library with NCCL's interface connects:
// the bits and the key of one device, whatever the settings, and how each process ends when another
// one does.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/plan/model_plan.h"
#include "engine/rank/model_rank.h"
#include "tests/engine/cuda/draft_requests.h"
#include "tests/engine/cuda/node_process.h"
#include "tests/engine/cuda/shim_ranks.h"
#include "tests/engine/cuda/tiny_model.h"
#include "tests/support/collecting_sink.h"
#include "tests/support/same_bits.h"
#include "tests/support/shared_model.h"
#include "tests/support/tier.h"

namespace sluice {
namespace {

using testing::Collected;
using testing::expect_same;
using testing::FakeNodeFaults;
using testing::NodeProcesses;
using testing::TinyModel;
using testing::TinyWeights;
using Clock = std::chrono::steady_clock;

TEST(NcclNodes, DISABLED_Node) { testing::run_node_process(); }

struct Ran {
  std::vector<Collected> results;
  std::string key;
};

Ran run_on_one(Config config, const std::vector<ValidRequest>& requests) {
  config.max_num_batched_tokens = std::min(config.max_num_batched_tokens, 64);
  const auto engine = create_engine(config);
  EXPECT_TRUE(engine.has_value()) << engine.error().message;
  if (!engine) return {};
  return {.results = testing::run_together(**engine, requests),
          .key = (*engine)->model().system_fingerprint};
}

// Runs the requests twice, the second time after what the prefix cache has of them.
void expect_same_on(const Config& config,
                    int32_t size,
                    const Ran& expected,
                    const std::vector<ValidRequest>& requests,
                    const std::string& what) {
  NodeProcesses nodes(config, size);
  {
    const std::unique_ptr<Engine> engine = nodes.start();
    ASSERT_NE(engine, nullptr) << what;
    EXPECT_EQ(engine->model().system_fingerprint, expected.key) << what;
    for (const char* const pass : {"cold", "cached"}) {
      expect_same(expected.results, testing::run_together(*engine, requests), what + pass);
    }
  }
  nodes.expect_in_order();
}

TEST(NcclNodes, RecordedStepsGiveTheBitsAndTheKeyOfOneDevice) {
  const TinyModel model(TinyWeights::kInt8);
  const std::vector<ValidRequest> requests = testing::tiny_requests();
  const Ran expected = run_on_one(model.config("cuda"), requests);
  ASSERT_EQ(expected.results.size(), requests.size());
  const int64_t replays = simt::num_device_replays();
  expect_same_on(model.config("cuda"), 2, expected, requests, "recorded, ");
  EXPECT_GT(simt::num_device_replays(), replays);
}

// Chunks without recorded steps, preemption, and no thread that decides the next step early: all of
// them, and in the long tier one by one.
TEST(NcclNodes, SettingsOfAStepChangeNothing) {
  const TinyModel model(TinyWeights::kInt8);
  const std::vector<ValidRequest> requests = testing::tiny_requests();
  const Ran expected = run_on_one(model.config("cuda"), requests);
  ASSERT_EQ(expected.results.size(), requests.size());
  std::vector<Config> settings(4, model.config("cuda"));
  for (const size_t i : {0, 1}) {
    settings[i].enforce_eager = true;
    settings[i].max_num_batched_tokens = 16;
  }
  for (const size_t i : {0, 2}) settings[i].debug_preempt_every = 3;
  for (const size_t i : {0, 3}) settings[i].overlap = false;
  for (size_t i = 0; i < testing::sample_of(size_t{1}, settings.size()); ++i) {
    expect_same_on(settings[i], 2, expected, requests, "setting " + std::to_string(i) + ", ");
    if (HasFailure()) return;
  }
}

TEST(NcclNodes, FourProcessesGiveTheBitsOfOneDevice) {
  if (!testing::is_full()) GTEST_SKIP() << "only with SLUICE_FULL=1";
  const testing::TemporaryFolder folder;
  testing::write_model(folder, "models/qwen3", {});
  Config config = testing::tiny_config("cuda", folder.path());
  config.load_format = "dummy";
  std::vector<ValidRequest> requests = testing::tiny_requests();
  requests.erase(requests.begin(), requests.begin() + 2);
  requests.resize(2);
  for (ValidRequest& request : requests) request.sampling.max_tokens = 3;
  const Ran expected = run_on_one(config, requests);
  ASSERT_EQ(expected.results.size(), requests.size());
  expect_same_on(config, 4, expected, requests, "four, ");
}

// Node 0 judges them; all nodes run their rows.
TEST(NcclNodes, DraftsChangeNoAnswerAndAbortsEndOnce) {
  std::vector<ValidRequest> requests = testing::draft_requests(testing::sample_of(4, 6));
  const Ran expected = run_on_one(testing::drafting_config(""), requests);
  ASSERT_EQ(expected.results.size(), requests.size());
  testing::predict(requests, expected.results);
  NodeProcesses nodes(testing::drafting_config(testing::replay_spec("0.3")), 2);
  {
    const std::unique_ptr<Engine> engine = nodes.start();
    ASSERT_NE(engine, nullptr);
    testing::expect_aborts_end_once(*engine, requests, expected.results, 2);
    EXPECT_GT(testing::sum(engine->stats().drafts.num_accepted_tokens), 0U);
  }
  nodes.expect_in_order();
}

// A model drafts on node 0's device alone, also a head: the states that it reads are all there.
TEST(NcclNodes, DraftsOfAModelChangeNoAnswer) {
  const std::vector<ValidRequest> requests = testing::draft_requests(3);
  const Ran expected = run_on_one(testing::drafting_config(""), requests);
  ASSERT_EQ(expected.results.size(), requests.size());
  std::vector<std::string> specs = {testing::spec_of("draft_model", testing::kTinyLlama)};
  if (testing::is_full()) {
    specs.push_back(testing::spec_of("eagle3", testing::eagle_head("mapped")));
    specs.push_back(testing::spec_of("ngram"));
  }
  for (const std::string& spec : specs) {
    NodeProcesses nodes(testing::drafting_config(spec), 2);
    {
      const std::unique_ptr<Engine> engine = nodes.start();
      ASSERT_NE(engine, nullptr) << spec;
      expect_same(expected.results, testing::run_together(*engine, requests), spec);
      EXPECT_GT(testing::sum(engine->stats().drafts.num_draft_tokens), 0U) << spec;
    }
    nodes.expect_in_order();
    if (HasFailure()) return;
  }
}

// Starts one long request on two nodes of which rank 1 has these faults, and returns how it ended
// and what node 0 and node 1 say.
struct Lost {
  FinishReason reason = FinishReason::kStop;
  std::string at_first;
  std::string at_other;
};

Lost lose(const FakeNodeFaults& faults) {
  const TinyModel model(TinyWeights::kInt8);
  Config config = model.config("cuda");
  config.enforce_eager = true;
  NodeProcesses nodes(config, 2, faults);
  Lost lost;
  {
    const std::unique_ptr<Engine> engine = nodes.start();
    if (engine == nullptr) return lost;
    testing::CollectingSink sink;
    ValidRequest request = testing::tiny_requests()[0];
    request.sampling.max_tokens = 100;
    const auto id = engine->submit(std::move(request), sink);
    EXPECT_TRUE(id.has_value());
    lost.reason = sink.wait(*id).finish_reason;
    lost.at_first = engine->failure();
  }
  if (faults.stops > 0) nodes.other(1).signal(SIGCONT);
  lost.at_other = nodes.ends().front();
  return lost;
}

void expect_words(const std::string& text, const std::string& words) {
  EXPECT_NE(text.find(words), std::string::npos) << text;
}

// Gathers of the first steps; a start has some, too.
constexpr int32_t kGather = 12;

TEST(NcclNodes, AProcessThatIsKilledInAGatherEndsTheOtherWithItsName) {
  const auto begun = Clock::now();
  const Lost lost = lose({.rank = 1, .kills = kGather});
  EXPECT_EQ(lost.reason, FinishReason::kAbort);
  expect_words(lost.at_first, "rank 1 at 127.0.0.1:");
  EXPECT_EQ(lost.at_other, "");
  EXPECT_LT(Clock::now() - begun, std::chrono::seconds(90));
}

TEST(NcclNodes, Node0ThatIsKilledInAGatherEndsTheOthersWithItsName) {
  const TinyModel model(TinyWeights::kInt8);
  Config config = model.config("cuda");
  config.enforce_eager = true;
  config.max_num_batched_tokens = 64;
  config.master_port = testing::free_port();
  config.nnodes = config.tensor_parallel_size = 2;
  Config other = config;
  other.node_rank = 1;
  testing::NodeProcess first(config, {.rank = 0, .kills = kGather});
  testing::NodeProcess second(other);
  EXPECT_EQ(first.end(), "");
  expect_words(second.end(), "rank 0 at 127.0.0.1:");
}

// Nothing on its device moves, and it says nothing.
TEST(NcclNodes, AProcessThatStopsInAGatherEndsTheOtherWithItsName) {
  const Lost lost = lose({.rank = 1, .stops = kGather});
  EXPECT_EQ(lost.reason, FinishReason::kAbort);
  expect_words(lost.at_first, "rank 1 at 127.0.0.1:");
  expect_words(lost.at_first, "silent for 5 s");
  expect_words(lost.at_other, "silent for 5 s");
}

TEST(NcclNodes, AnErrorOfNcclItselfEndsBothWithItsWords) {
  for (const FakeNodeFaults& faults : {FakeNodeFaults{.rank = 1, .bad_gather = kGather},
                                       FakeNodeFaults{.rank = 1, .bad_call = kGather}}) {
    const Lost lost = lose(faults);
    EXPECT_EQ(lost.reason, FinishReason::kAbort);
    expect_words(lost.at_first, "rank 1: NCCL: internal error: of this test");
    expect_words(lost.at_other, "rank 1: NCCL: internal error: of this test");
  }
}

// nccl_node_test.cpp has the same with threads for processes.
TEST(NcclNodes, ARankThatNcclDoesNotReachIsNamedAfterTheTimeForIt) {
  if (!testing::is_full()) GTEST_SKIP() << "only with SLUICE_FULL=1";
  const TinyModel model(TinyWeights::kInt8);
  Config config = model.config("cuda");
  config.rank_init_timeout_s = 8;
  NodeProcesses nodes(config, 2, {.rank = 1, .stays_away = 1});
  const auto engine = nodes.try_start();
  ASSERT_FALSE(engine.has_value());
  const std::string words =
      "rank 0: NCCL has not connected the GPUs within 8 s "
      "(--rank-init-timeout); it still connects rank 0, rank 1 at 127.0.0.1:";
  expect_words(engine.error().message, words);
  expect_words(nodes.ends().front(), words);
}

TEST(NcclNodes, ARankThatCannotRecordEndsAllWithItsReason) {
  const TinyModel model(TinyWeights::kInt8);
  const testing::ShimDevices devices(1, /*fails_to_record=*/0);
  NodeProcesses nodes(model.config("cuda"), 2);
  const auto engine = nodes.try_start();
  ASSERT_FALSE(engine.has_value());
  expect_words(engine.error().message, "rank 0: the shim records nothing");
  expect_words(nodes.ends().front(), "rank 0: the shim records nothing");
}

TEST(NcclNodes, SettingsOfRecordedStepsMustBeEqual) {
  const TinyModel model(TinyWeights::kInt8);
  Config lead = model.config("cuda");
  lead.nnodes = lead.tensor_parallel_size = 2;
  for (const char* const name : {"enforce-eager", "cuda-graph-sizes", "device"}) {
    lead.master_port = testing::free_port();
    Config other = lead;
    other.node_rank = 1;
    other.enforce_eager = std::string(name) == "enforce-eager";
    if (std::string(name) == "cuda-graph-sizes") other.cuda_graph_sizes = {4};
    if (std::string(name) == "device") other.device = "auto";
    testing::NodeProcess node(other);
    const auto engine = create_engine(lead, testing::node_groups(lead));
    ASSERT_FALSE(engine.has_value());
    expect_words(engine.error().message, "--" + std::string(name) + ": found ");
    expect_words(node.end(), "--" + std::string(name) + ": found ");
  }
}

TEST(NcclNodes, WhatRanksOnGpusDoNotHaveIsRefusedByName) {
  const TinyModel model(TinyWeights::kInt8);
  Config config = model.config("cuda");
  config.nnodes = config.tensor_parallel_size = 2;
  const auto refusal = [&] {
    const auto planned = plan_on_devices(config);
    return planned ? "" : planned.error().message;
  };
  EXPECT_EQ(refusal(), "");
  for (const char* const transport : {"shm", "tcp", "cuda_ipc"}) {
    config.kv_transport = transport;
    EXPECT_EQ(refusal(),
              "--nnodes: found more than 1 with --kv-transport: ranks on GPUs take auto or nccl");
  }
  config.kv_transport = "auto";
  config.tensor_parallel_size = 1;
  config.pipeline_parallel_size = 2;
  EXPECT_EQ(refusal(),
            "--pipeline-parallel-size: found more than 1 with --device: stages are on CPUs");
}

TEST(NcclNodes, WhereGpusAreNotAskedForRanksAreOnCpus) {
  const TinyModel model(TinyWeights::kInt8);
  Config config = model.config("auto");
  config.nnodes = config.tensor_parallel_size = 2;
  const auto on_device = [&]() -> std::string {
    const auto planned = plan_on_devices(config);
    if (!planned) return planned.error().message;
    return planned->model.plan.on_device ? "GPU" : "CPU";
  };
  EXPECT_EQ(on_device(), "CPU");
  config.kv_transport = "tcp";
  EXPECT_EQ(on_device(), "CPU");
  config.tensor_parallel_size = 1;
  config.pipeline_parallel_size = 2;
  EXPECT_EQ(on_device(), "CPU");
  config.kv_transport = "auto";
  EXPECT_EQ(on_device(), "CPU");
}

// The first of a process's GPUs has as much to itself as one of several in one process.
TEST(NcclNodes, AProcessPlansItsPartAndTheExchange) {
  const TinyModel model(TinyWeights::kInt8);
  const testing::ShimDevices devices(2);
  Config config = model.config("cuda");
  config.tensor_parallel_size = 2;
  const auto together = plan_on_devices(config);
  const int64_t window = ModelRank::window_bytes(config);  // of GPUs of one process alone
  config.nnodes = 2;
  config.node_rank = 1;
  const auto apart = plan_on_devices(config);
  ASSERT_TRUE(together.has_value() && apart.has_value());
  EXPECT_EQ(apart->devices.size(), 1U);
  EXPECT_EQ(apart->model.plan.available_bytes, together->model.plan.available_bytes);
  EXPECT_GT(window, 0);
  EXPECT_EQ(apart->model.plan.arena_bytes + window, together->model.plan.arena_bytes);
  EXPECT_EQ(apart->model.plan.weight_bytes, together->model.plan.weight_bytes);
}

}  // namespace
}  // namespace sluice
