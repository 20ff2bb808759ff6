// SPDX-License-Identifier: Apache-2.0
// Two workers' handoffs in one process: bytes arrive in the cache as they were.
#include "engine/handoff/handoff.h"

#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/engine/handoff_rig.h"

namespace sluice::testing {
namespace {

TEST_P(HandoffTest, AWholePromptTravels) {
  const auto offer = prefill(HandoffMode::kSerial);
  ASSERT_NE(offer, nullptr);
  EXPECT_EQ(offer->result.num_blocks, 9);
  ASSERT_TRUE(fetch(offer));
  run_until_ready();
  EXPECT_EQ(d_.cached(tokens_), 144);
  EXPECT_EQ(d_.handoff->stats().num_in, 1U);
  EXPECT_EQ(d_.handoff->stats().blocks_in, 9U);
  EXPECT_EQ(d_.handoff->stats().bytes_in, 9 * d_.bytes());
  finish();
  EXPECT_LE(peers_.sent["Claim"] + peers_.sent["Accept"] + peers_.sent["Credit"] +
                peers_.sent["Final"] + peers_.sent["Release"] + peers_.sent["Released"],
            6);
}

// Both requests come at once: parts travel while the prompt is computed.
TEST_P(HandoffTest, PartsTravelWhileThePromptIsComputed) {
  tokens_ = prompt(1000, 3);
  ASSERT_TRUE(fetch(nullptr));
  turn();
  prefill(HandoffMode::kConcurrent);
  run_until_ready();
  EXPECT_EQ(d_.handoff->stats().num_in, 1U);
  EXPECT_EQ(d_.cached(tokens_), 992);
  finish();
}

// A trace's first byte tells them apart.
TraceContext trace_of(char digit) {
  std::string text = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
  text[3] = digit;
  return parse_trace_context(text, "vendor=1");
}

TEST_P(HandoffTest, BothEndsReportTheTransferOfATracedRequest) {
  prefill_trace_ = trace_of('1');
  decode_trace_ = trace_of('2');
  ASSERT_TRUE(fetch(prefill(HandoffMode::kSerial)));
  run_until_ready();
  finish();
  for (Worker* worker : {&p_, &d_}) {
    const auto reports = reports_of(*worker);
    ASSERT_EQ(reports.size(), 1U);
    const KvTransferReport& report = reports[0];
    EXPECT_EQ(report.is_out, worker == &p_);
    EXPECT_EQ(report.outcome, kTransferDone);
    ASSERT_TRUE(claimed_);
    EXPECT_EQ(report.transport, to_string(*claimed_));
    EXPECT_EQ(report.num_blocks, 9);
    EXPECT_EQ(report.num_bytes, 9 * d_.bytes());
    EXPECT_LE(report.begin, report.end);
    // The claim has brought the context to P.
    EXPECT_EQ(traceparent(report.trace), traceparent(decode_trace_));
    EXPECT_TRUE(reports_of(*worker).empty());
  }
}

TEST_P(HandoffTest, AnEndWithoutATraceReportsNothingAndTheOtherItsOwn) {
  prefill_trace_ = trace_of('1');
  decode_trace_ = trace_of('2');
  decode_trace_.is_sampled = false;
  ASSERT_TRUE(fetch(prefill(HandoffMode::kSerial)));
  run_until_ready();
  finish();
  EXPECT_TRUE(reports_of(d_).empty());
  const auto reports = reports_of(p_);
  ASSERT_EQ(reports.size(), 1U);
  EXPECT_EQ(traceparent(reports[0].trace), traceparent(prefill_trace_));
}

TEST_P(HandoffTest, ReportsSayWhyNothingCame) {
  decode_trace_ = trace_of('2');
  const auto outcome_of = [&](Worker& worker) {
    const auto reports = reports_of(worker);
    return reports.size() == 1 ? reports[0].outcome : "not one report";
  };
  // Its client leaves while P computes.
  prefill(HandoffMode::kConcurrent, 64);
  ASSERT_TRUE(fetch(nullptr));
  for (int i = 0; i < 20; ++i) turn();
  EXPECT_TRUE(d_.handoff->abort(kDecode, now_));
  for (int i = 0; i < 20; ++i) turn();
  EXPECT_EQ(outcome_of(d_), "cancelled");
  EXPECT_EQ(outcome_of(p_), "cancelled");
  p_.handoff->end(kPrefill, now_);
  p_.kv().free(kPrefill);
  settle();
  // A prompt of another process.
  HandoffOffer stale = *prefill(HandoffMode::kSerial);
  stale.epoch ^= 1;
  ASSERT_TRUE(fetch(std::make_shared<const HandoffOffer>(stale)));
  run_until_ready();
  EXPECT_EQ(outcome_of(d_), to_string(HandoffFallback::kRefused));
  finish();
  EXPECT_TRUE(reports_of(p_).empty());  // it has not served
}

// Some parts have landed when P dies. Where a group keeps all tokens, they are a prefix.
TEST(HandoffPartsTest, WholeBlocksAtTheFrontAreKept) {
  for (const KvGroupKind kind : {KvGroupKind::kFull, KvGroupKind::kLatent}) {
    KvGroupSpec spec{.kind = kind, .num_blocks = kNumBlocks, .num_layers = 1};
    spec.planes = {{.width = 32'768, .dtype = DType::kF16}};  // two blocks fill a landing slot
    FakeKvPeers peers;
    Worker p(peers, "p", "tcp", Cache::kHost, "model", {spec});
    Worker d(peers, "d", "tcp", Cache::kHost, "model", {spec});
    const std::vector<TokenId> tokens = prompt(150, 3);
    const Clock::time_point now = Clock::now();
    const KvTransferId transfer{9};
    Request offered = Worker::request(kPrefill, tokens);
    ASSERT_FALSE(
        p.handoff->hold(offered, offer_spec(HandoffMode::kConcurrent, transfer), now));
    p.kv().acquire_prefix(kPrefill, tokens, {});
    p.compute(kPrefill, tokens, 96);
    p.handoff->computed(kPrefill, 96, now);
    Request fetched = Worker::request(kDecode, tokens);
    ASSERT_TRUE(d.handoff->hold(fetched, fetch_spec(HandoffMode::kConcurrent, transfer), now));
    std::vector<DecodeSide::Released> ready;
    const auto turn_until = [&](const auto& is_there) {
      for (int i = 0; i < 5000 && !is_there(); ++i) {
        p.handoff->advance(now, {}, ready);
        d.handoff->advance(now, {}, ready);
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
      ASSERT_TRUE(is_there());
    };
    turn_until([&] { return d.handoff->stats().blocks_in == 6; });
    peers.cut();
    turn_until([&] { return !ready.empty(); });
    ASSERT_EQ(ready.size(), 1U);
    EXPECT_EQ(ready[0].fallback, HandoffFallback::kPeerGone);
    EXPECT_EQ(d.cached(tokens), 96) << static_cast<int>(kind);
    p.kv().free(kPrefill);
    p.handoff->end(kPrefill, now);
    d.handoff->end(kDecode, now);
  }
}

// What D has already does not travel.
TEST_P(HandoffTest, AnyHitsOnTheDecodeSideAreNotAskedFor) {
  const auto offer = prefill(HandoffMode::kSerial);
  const std::vector<TokenId> begin(tokens_.begin(), tokens_.begin() + 80);
  d_.kv().acquire_prefix(RequestId(1), begin, {});
  d_.compute(RequestId(1), begin, 64);
  d_.kv().free(RequestId(1));
  ASSERT_TRUE(fetch(offer));
  run_until_ready();
  EXPECT_EQ(d_.cached(tokens_), 144);
  EXPECT_EQ(d_.handoff->stats().blocks_in, 5U);
  finish();
}

TEST_P(HandoffTest, NothingIsAskedForThatIsHereAlready) {
  const auto offer = prefill(HandoffMode::kSerial);
  d_.kv().acquire_prefix(kDecode, tokens_, {});
  d_.compute(kDecode, tokens_, 150);
  d_.kv().free(kDecode);
  EXPECT_FALSE(fetch(offer));
}

TEST_P(HandoffTest, EvictedBlocksAreSaidAndComputed) {
  const auto offer = prefill(HandoffMode::kSerial);
  for (int i = 0; i < 40 && p_.handoff->prefill().num_live() > 0; ++i) {
    now_ += std::chrono::seconds(1);  // the lease ends
    turn();
  }
  p_.kv().reset_prefix_cache();
  ASSERT_TRUE(fetch(offer));
  run_until_ready();
  EXPECT_EQ(d_.cached(tokens_), 0);
  EXPECT_EQ(d_.handoff->stats().fallbacks[static_cast<size_t>(HandoffFallback::kRefused)],
            1U);
  finish();
}

// The lease is over and the blocks are not.
TEST_P(HandoffTest, CachedBlocksAreServedLate) {
  const auto offer = prefill(HandoffMode::kSerial);
  now_ += std::chrono::seconds(40);
  turn();
  EXPECT_EQ(p_.handoff->prefill().num_live(), 0U);
  ASSERT_TRUE(fetch(offer));
  run_until_ready();
  EXPECT_EQ(d_.cached(tokens_), 144);
  finish();
}

TEST_P(HandoffTest, AnotherRowOfLogitsDropsTheBlocks) {
  ASSERT_TRUE(fetch(prefill(HandoffMode::kSerial)));
  run_until_ready();
  ASSERT_EQ(ready_.size(), 1U);
  d_.kv().acquire_prefix(kDecode, tokens_, {});
  EXPECT_FALSE(d_.handoff->compare(kDecode, 98, now_));
  d_.kv().free(kDecode);
  EXPECT_EQ(d_.cached(tokens_), 0);
  finish();
}

const auto kNameOf = [](const ::testing::TestParamInfo<Way>& way) {
  return std::string(way.param.name);
};

#ifdef SLUICE_HANDOFF_ON_DEVICES
INSTANTIATE_TEST_SUITE_P(
    Devices,
    HandoffTest,
    ::testing::Values(
        Way{"device", "tcp", Cache::kCuda, Cache::kCuda},
        Way{"from_device", "shm", Cache::kCuda, Cache::kHost},
        Way{"to_device", "tcp", Cache::kHost, Cache::kCuda},
        Way{"ipc", "cuda_ipc", Cache::kCuda, Cache::kCuda, nullptr, KvTransportKind::kCudaIpc},
        Way{"auto", "auto", Cache::kCuda, Cache::kCuda, nullptr, KvTransportKind::kSharedMemory},
        Way{"auto_to_host", "auto", Cache::kCuda, Cache::kHost, nullptr, KvTransportKind::kTcp},
        Way{"auto_to_tcp", "auto", Cache::kCuda, Cache::kCuda, "tcp", KvTransportKind::kTcp},
        Way{"auto_from_shm",
            "shm",
            Cache::kCuda,
            Cache::kCuda,
            "auto",
            KvTransportKind::kSharedMemory}),
    kNameOf);
#ifdef SLUICE_TESTS_ON_GPU  // NCCL connects two GPUs, and never one with itself
INSTANTIATE_TEST_SUITE_P(TwoDevices,
                         HandoffTest,
                         ::testing::Values(Way{"nccl", "nccl", Cache::kCuda, Cache::kSecondCuda}),
                         kNameOf);
#endif
#else
INSTANTIATE_TEST_SUITE_P(
    Transports,
    HandoffTest,
    ::testing::Values(Way{"tcp", "tcp"},
                      Way{"shm", "shm"},
                      Way{"staged", "tcp", Cache::kFakeDevice, Cache::kFakeDevice},
                      Way{"nccl", "nccl", Cache::kFakeDevice, Cache::kFakeDevice}),
    kNameOf);

// A worker that is killed takes lent memory with it, perhaps from under the other one's GPU.
TEST(HandoffDevices, AutoReadsNoMemoryOfAnotherProcess) {
  for (const bool on_device : {false, true}) {
    const auto kinds = kv_transport_kinds_of("auto", on_device);
    ASSERT_FALSE(kinds.empty());
    EXPECT_EQ(kinds.back(), KvTransportKind::kTcp);  // which all workers have
    for (const KvTransportKind kind : kinds) {
      EXPECT_FALSE(is_kv_device_transport(to_string(kind))) << to_string(kind);
    }
  }
}

// What travels by NCCL is a GPU's.
TEST(HandoffDevices, ATransportOfGpusIsRefusedToACpu) {
  FakeKvPeers peers;
  auto storage = KvStorage::create(groups(), kBlockSize);
  ASSERT_TRUE(storage);
  KvCacheManager kv({.block_size = kBlockSize, .max_num_seqs = 8, .max_model_len = 1024}, groups());
  Config config;
  config.block_size = kBlockSize;
  config.kv_listen = "127.0.0.1:0";
  config.kv_transport = "nccl";
  const auto made = Handoff::create(
      config, HandoffRole::kBoth, "model", KvRanks(*storage), kv, peers.opener("p"), [] {}, {});
  ASSERT_FALSE(made.has_value());
  EXPECT_EQ(made.error().code, ErrorCode::kUnsupported);
  EXPECT_NE(made.error().message.find("--kv-transport nccl"), std::string::npos);
}
#endif

}  // namespace
}  // namespace sluice::testing
