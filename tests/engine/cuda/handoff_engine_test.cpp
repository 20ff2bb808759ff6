// SPDX-License-Identifier: Apache-2.0
// A prefill and a decode engine on devices: what the second answers is what one engine alone does,
// bit for bit. The shim's queues are lazy and its memory is closed to the host, so that KV which is
// gathered before its step, sent before it is gathered, or read before it is scattered is not what
// it should be.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "engine/core/config.h"
#include "engine/engine.h"
#include "tests/engine/cuda/tiny_model.h"
#include "tests/support/fake_kv_peers.h"
#include "tests/support/golden_folder.h"
#include "tests/support/same_bits.h"
#include "tests/support/tier.h"

namespace sluice {
namespace {

using testing::Collected;
using testing::FakeKvPeers;
using testing::TinyModel;
using testing::TinyWeights;

std::unique_ptr<Engine> start(FakeKvPeers& peers, const std::string& name, Config config) {
  config.kv_listen = "127.0.0.1:0";
  Expected<std::unique_ptr<Engine>> made = create_worker_engine(config, peers.opener(name));
  EXPECT_TRUE(made) << (made ? "" : made.error().message);
  return made ? std::move(*made) : nullptr;
}

std::vector<ValidRequest> requests() {
  std::vector<ValidRequest> made(testing::is_short() ? 1 : 3);
  for (size_t i = 0; i < made.size(); ++i) {
    made[i].prompt = testing::tiny_prompt(40 + 37 * i, i);
    SamplingParams& params = made[i].sampling;
    params.max_tokens = 4;
    params.ignore_eos = true;
    params.temperature = 0.8F;
    params.seed = 7 + i;
    params.num_logprobs = 0;
  }
  return made;
}

std::vector<ValidRequest> offers_of(const std::vector<ValidRequest>& whole) {
  std::vector<ValidRequest> offers = whole;
  for (ValidRequest& offer : offers) {
    offer.sampling.max_tokens = 1;
    offer.handoff.emplace();
    offer.handoff->kind = HandoffKind::kOffer;
    offer.handoff->mode = HandoffMode::kSerial;
  }
  return offers;
}

std::vector<ValidRequest> fetches_of(const std::vector<ValidRequest>& whole,
                                     const std::vector<Collected>& prefilled) {
  std::vector<ValidRequest> fetches = whole;
  for (size_t i = 0; i < fetches.size(); ++i) {
    EXPECT_NE(prefilled[i].offer, nullptr);
    HandoffSpec& spec = fetches[i].handoff.emplace();
    spec.kind = HandoffKind::kFetch;
    spec.mode = HandoffMode::kSerial;
    spec.peer = "p:1";
    spec.transfer = prefilled[i].offer->transfer;
    spec.peer_epoch = prefilled[i].offer->epoch;
    spec.result = prefilled[i].offer->result;
  }
  return fetches;
}

// Both workers' answers are those of one engine, and the second computes no whole block.
void expect_bits_of_one_engine(const Config& config, const std::vector<ValidRequest>& whole) {
  const std::unique_ptr<Engine> alone = testing::start_engine(config);
  ASSERT_NE(alone, nullptr);
  const std::vector<Collected> expected = testing::run_together(*alone, whole);
  FakeKvPeers peers;
  const std::unique_ptr<Engine> p = start(peers, "p", config);
  const std::unique_ptr<Engine> d = start(peers, "d", config);
  ASSERT_TRUE(p != nullptr && d != nullptr);
  EXPECT_EQ(d->model().backend.substr(0, 5), "cuda:");
  const auto prefilled = testing::run_together(*p, offers_of(whole));
  const auto actual = testing::run_together(*d, fetches_of(whole, prefilled));
  testing::expect_same(expected, actual, "fetched");
  for (size_t i = 0; i < actual.size(); ++i) {
    const auto num_tokens = static_cast<int32_t>(whole[i].prompt.size());
    EXPECT_EQ(actual[i].num_cached_tokens, (num_tokens - 1) / 16 * 16) << i;
  }
  EXPECT_EQ(peers.sent["Release"], static_cast<int>(whole.size()));
  EXPECT_EQ(d->stats().num_blocks_used + p->stats().num_blocks_used, 0);
  d->stop();
  p->stop();
}

// Caches of floats and of codes with scales, through the host's memory and without.
TEST(CudaHandoff, AFetchedPromptGetsTheBitsOfOneEngine) {
  struct Way {
    const char* dtype;
    const char* transport;
  };

  for (const auto& [dtype, transport] : {Way{"auto", "cuda_ipc"}, Way{"int8", "tcp"}}) {
    SCOPED_TRACE(transport);
    const TinyModel model(TinyWeights::kInt8, dtype);
    Config config = model.config("cuda");
    config.kv_transport = transport;
    expect_bits_of_one_engine(config, requests());
    if (testing::is_short()) return;
  }
}

// States at the last whole block of each prompt: of short convolutions; in the long tier also of
// delta rules, of Mamba-2, and of delta rules beside latents.
TEST(CudaHandoff, FetchedStatesGiveTheBitsOfOneEngine) {
  if (testing::is_short()) GTEST_SKIP() << "minutes under a sanitizer";
  std::vector<const char*> names = {"conv"};
  if (testing::is_full()) names.insert(names.end(), {"delta", "mamba", "channels"});
  std::vector<ValidRequest> whole = requests();
  for (ValidRequest& request : whole) {
    for (TokenId& token : request.prompt) token %= 250;
  }
  for (const char* const name : names) {
    SCOPED_TRACE(name);
    Config config = testing::tiny_config(
        "cuda", golden_folder() + "/models/engine-" + name + ".gguf", "float32");
    config.kv_cache_memory = int64_t{8} << 20;
    config.kv_transport = name == names.front() ? "cuda_ipc" : "tcp";
    expect_bits_of_one_engine(config, whole);
  }
}

// What a CPU computes is not what a GPU does: its KV is not taken, and the prompt computed here.
TEST(CudaHandoff, AWorkerOfAnotherBackendIsRefused) {
  const TinyModel model(TinyWeights::kInt8, "float32");
  std::vector<ValidRequest> whole = requests();
  whole.resize(1);
  FakeKvPeers peers;
  const std::unique_ptr<Engine> p = start(peers, "p", model.config("cpu"));
  const std::unique_ptr<Engine> d = start(peers, "d", model.config("cuda"));
  ASSERT_TRUE(p != nullptr && d != nullptr);
  const std::vector<Collected> expected = testing::run_together(*d, whole);
  d->flush_prefix_cache([](bool) {});
  const auto prefilled = testing::run_together(*p, offers_of(whole));
  const auto actual = testing::run_together(*d, fetches_of(whole, prefilled));
  testing::expect_same(expected, actual, "computed here");
  EXPECT_EQ(actual[0].num_cached_tokens, 0);
  EXPECT_EQ(peers.sent["Credit"], 0);
  d->stop();
  p->stop();
}

}  // namespace
}  // namespace sluice
