// SPDX-License-Identifier: Apache-2.0
// Two workers' handoffs in one process, over real data planes: bytes arrive in the cache as they
// were, and whatever goes wrong the request goes on and nothing stays held. Caches are the host's,
// a device's that is the host's memory under another name, or, where the program has one
// (tests/engine/cuda), one of CUDA's.
#include "engine/handoff/handoff.h"

#include <gtest/gtest.h>

#include <chrono>
#include <deque>
#include <memory>
#include <optional>
#include <ostream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "kernels/device.h"
#include "tests/support/fake_kv_peers.h"
#include "tests/support/fake_nccl.h"

namespace sluice {
namespace {

using Clock = Handoff::Clock;
using testing::FakeKvPeers;

constexpr int32_t kBlockSize = 16;
constexpr int32_t kNumBlocks = 64;
constexpr RequestId kPrefill{100};
constexpr RequestId kDecode{200};

std::vector<KvGroupSpec> groups() {
  KvGroupSpec group{.num_blocks = kNumBlocks, .num_layers = 3};
  group.planes.assign(2, {.num_heads = 2, .width = 8, .dtype = DType::kF16});
  return {group};
}

std::vector<std::byte> content(const std::vector<TokenId>& tokens, int32_t block, size_t bytes) {
  std::vector<std::byte> made(bytes);
  for (size_t i = 0; i < bytes; ++i) {
    const auto token = static_cast<size_t>(tokens[static_cast<size_t>(block * kBlockSize)]);
    made[i] = static_cast<std::byte>(i * 7 + token * 31 + static_cast<size_t>(block));
  }
  return made;
}

std::vector<TokenId> prompt(int32_t num_tokens, TokenId first) {
  std::vector<TokenId> tokens(static_cast<size_t>(num_tokens));
  for (int32_t i = 0; i < num_tokens; ++i) tokens[static_cast<size_t>(i)] = first + i % 50;
  return tokens;
}

HandoffSpec offer_spec(HandoffDoor door, const KvTransferId& transfer = {}) {
  HandoffSpec spec;
  spec.kind = HandoffKind::kOffer;
  spec.door = door;
  spec.transfer = transfer;
  return spec;
}

HandoffSpec fetch_spec(HandoffDoor door,
                       const KvTransferId& transfer,
                       const std::string& peer = "p:1",
                       uint64_t epoch = 0) {
  HandoffSpec spec = offer_spec(door, transfer);
  spec.kind = HandoffKind::kFetch;
  spec.peer = peer;
  spec.peer_epoch = epoch;
  return spec;
}

enum class Cache : uint8_t { kHost, kFakeDevice, kCuda, kSecondCuda };

// How two workers' KV travels.
struct Way {
  const char* name;
  const char* transport;
  Cache prefill = Cache::kHost;
  Cache decode = Cache::kHost;
  const char* decode_transport = nullptr;             // null: the same
  KvTransportKind claimed = KvTransportKind::kNone;  // by what it goes; none: not looked at
};

void PrintTo(const Way& way, std::ostream* out) { *out << way.name; }

// A cache's memory.
class Memory {
 public:
  explicit Memory(Cache cache) {
    if (cache == Cache::kFakeDevice) fake_ = std::make_unique<testing::FakeNcclDevice>();
    if (cache != Cache::kCuda && cache != Cache::kSecondCuda) return;
    const int32_t number = cache == Cache::kCuda ? 0 : 1;
    auto device =
        kernels::Device::create({.type = DeviceType::kCuda, .threads = 1, .number = number});
    if (device) device_ = std::move(*device);
    is_missing_ = !device;
  }

  [[nodiscard]] bool is_missing() const { return is_missing_; }

  [[nodiscard]] kernels::DeviceMemory& get() const {
    if (device_ != nullptr) return device_->memory();
    return fake_ == nullptr ? kernels::host_memory() : *fake_;
  }

 private:
  bool is_missing_ = false;
  std::unique_ptr<kernels::DeviceMemory> fake_;
  std::unique_ptr<kernels::Device> device_;
};

#ifdef SLUICE_TESTS_ON_GPU
constexpr const char* kNccl = kernels::kNcclLibrary;
#else
constexpr const char* kNccl = SLUICE_FAKE_NCCL;
#endif

KvMover::Backend backend_of(Cache cache) {
  const bool is_cuda = cache == Cache::kCuda || cache == Cache::kSecondCuda;
  return {.type = is_cuda ? DeviceType::kCuda : DeviceType::kCpu, .nccl_library = kNccl};
}

// Storage, manager and handoffs of one worker, and what an engine would do with them.
class Worker {
 public:
  Worker(FakeKvPeers& peers,
         const std::string& name,
         const std::string& transport,
         Cache cache,
         const std::string& fingerprint = "model")
      : memory_(cache),
        storage_(
            *KvStorage::create(groups(), kBlockSize, AlignedBuffer::Pages::kSmall, memory_.get())),
        kv_({.block_size = kBlockSize, .max_num_seqs = 8, .max_model_len = 1024}, groups()) {
    Config config;
    config.block_size = kBlockSize;
    config.kv_listen = "127.0.0.1:0";
    config.kv_transport = transport;
    config.kv_transfer_buffer = int64_t{8} << 20;
    auto made = Handoff::create(config,
                                HandoffRole::kBoth,
                                fingerprint,
                                KvRanks(storage_),
                                kv_,
                                peers.opener(name),
                                [] {},
                                backend_of(cache));
    EXPECT_TRUE(made || memory_.is_missing()) << made.error().message;
    if (made) handoff = std::move(*made);
  }

  [[nodiscard]] bool has_device() const { return !memory_.is_missing() && handoff != nullptr; }

  static NewRequest request(RequestId id, const std::vector<TokenId>& tokens) {
    NewRequest made;
    made.id = id;
    made.tokens = tokens;
    return made;
  }

  // Blocks up to `num_tokens` tokens are computed and findable.
  void compute(RequestId id, const std::vector<TokenId>& tokens, int32_t num_tokens) {
    ASSERT_TRUE(kv_.allocate_slots(id, num_tokens));
    const std::span<const BlockId> table = kv_.block_table(id, 0);
    for (int32_t block = 0; block < num_tokens / kBlockSize; ++block) {
      const KvPiece piece = storage_.whole(0, table[static_cast<size_t>(block)]);
      // Nobody waits for it: who reads the block does so behind what is called here.
      computed_.push_back(content(tokens, block, bytes()));
      storage_.copy_in(piece, computed_.back());
    }
    kv_.cache_blocks(id, tokens, num_tokens);
  }

  // How many of the prompt's tokens are cached, all with the right bytes.
  int32_t cached(const std::vector<TokenId>& tokens) {
    const RequestId id(999);
    const int32_t found = kv_.acquire_prefix(id, tokens, {}, PrefixUse::kTransfer);
    for (int32_t block = 0; block < found / kBlockSize; ++block) {
      std::vector<std::byte> there(bytes());
      storage_.copy_out(storage_.whole(0, kv_.block_table(id, 0)[static_cast<size_t>(block)]),
                        there);
      storage_.wait();
      EXPECT_EQ(there, content(tokens, block, bytes())) << block;
    }
    kv_.free(id);
    return found;
  }

  void expect_at_rest() {
    EXPECT_EQ(kv_.check_integrity(), "");
    const KvUsage usage = kv_.usage();
    EXPECT_EQ(usage.num_free + usage.num_cached, usage.num_blocks);
    EXPECT_EQ(handoff->prefill().num_live(), 0U);
    EXPECT_EQ(handoff->prefill().num_pinned(), 0);
    EXPECT_EQ(handoff->decode().num_live(), 0U);
    EXPECT_EQ(handoff->decode().num_posted(), 0);
  }

  [[nodiscard]] size_t bytes() const { return static_cast<size_t>(storage_.block_bytes(0)); }

  KvCacheManager& kv() { return kv_; }

 private:
  Memory memory_;
  std::deque<std::vector<std::byte>> computed_;
  KvStorage storage_;
  KvCacheManager kv_;

 public:
  std::unique_ptr<Handoff> handoff;  // goes before what it moves
};

class HandoffTest : public ::testing::TestWithParam<Way> {
 protected:
  HandoffTest()
      : p_(peers_, "p", GetParam().transport, GetParam().prefill),
        d_(peers_,
           "d",
           GetParam().decode_transport == nullptr ? GetParam().transport
                                                  : GetParam().decode_transport,
           GetParam().decode) {
    peers_.change = [this](KvMessage& message) {
      if (const auto* claim = std::get_if<KvClaim>(&message)) claimed_ = claim->transport;
    };
  }

  void SetUp() override {
    if (!p_.has_device() || !d_.has_device()) GTEST_SKIP() << "a second GPU is needed";
  }

  // A prompt's request at P, computed whole: what its answer would carry.
  std::shared_ptr<const HandoffOffer> prefill(HandoffDoor door, int32_t num_computed = -1) {
    NewRequest request = Worker::request(kPrefill, tokens_);
    HandoffSpec spec = offer_spec(door);
    if (door == HandoffDoor::kConcurrent) spec.transfer.fill(9);
    EXPECT_FALSE(p_.handoff->hold(request, spec, now_, prefill_trace_));
    p_.kv().acquire_prefix(kPrefill, tokens_, {});
    const auto all = static_cast<int32_t>(tokens_.size());
    for (int32_t at = 32; at < all && (num_computed < 0 || at < num_computed); at += 32) {
      p_.compute(kPrefill, tokens_, at);
      p_.handoff->computed(kPrefill, at, now_);
      turn();
    }
    if (num_computed >= 0) return nullptr;
    p_.compute(kPrefill, tokens_, all);
    auto offer = p_.handoff->choose(kPrefill, 17, 5, 99);
    p_.kv().free(kPrefill);
    p_.handoff->retire(now_);
    return offer;
  }

  bool fetch(const std::shared_ptr<const HandoffOffer>& offer) {
    NewRequest request = Worker::request(kDecode, tokens_);
    HandoffSpec spec = fetch_spec(HandoffDoor::kConcurrent, {});
    spec.transfer.fill(9);
    if (offer != nullptr) {
      spec.door = HandoffDoor::kSerial;
      spec.transfer = offer->transfer;
      spec.peer_epoch = offer->epoch;
      spec.result = offer->result;
    }
    return d_.handoff->hold(request, spec, now_, decode_trace_);
  }

  // Both engines' loops, once.
  void turn() {
    p_.handoff->advance(now_, is_idle_, ready_);
    d_.handoff->advance(now_, is_idle_, ready_);
  }

  // Runs until D's request is ready; the clock runs when nothing moves.
  void run_until_ready(int most = 3000) {
    for (int i = 0; i < most && ready_.empty(); ++i) {
      turn();
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      now_ += std::chrono::milliseconds(i < 200 ? 1 : 100);
    }
  }

  void settle(int most = 1000) {
    for (int i = 0; i < most; ++i) {
      const bool rests = p_.handoff->prefill().num_live() + d_.handoff->decode().num_live() == 0;
      if (rests) return;
      turn();
      std::this_thread::sleep_for(std::chrono::milliseconds(i < 100 ? 1 : 0));
      now_ += std::chrono::milliseconds(100);
    }
  }

  static std::vector<KvTransferReport> reports_of(Worker& worker) {
    std::vector<KvTransferReport> reports;
    worker.handoff->take_reports(reports);
    return reports;
  }

  // D's request goes on here: its first token, and its end.
  void finish() {
    ASSERT_EQ(ready_.size(), 1U);
    EXPECT_EQ(ready_[0].request.id, kDecode);
    EXPECT_EQ(ready_[0].request.tokens, tokens_);
    if (claimed_ && GetParam().claimed != KvTransportKind::kNone) {
      EXPECT_EQ(*claimed_, GetParam().claimed);
    }
    d_.handoff->compare(kDecode, 99, now_);
    d_.handoff->end(kDecode, now_);
    settle();
    p_.expect_at_rest();
    d_.expect_at_rest();
  }

  FakeKvPeers peers_;
  Worker p_;
  Worker d_;
  Clock::time_point now_ = Clock::now();
  bool is_idle_ = true;                     // nothing else runs at D
  std::optional<KvTransportKind> claimed_;  // by the last claim, unless a test looks at messages
  TraceContext prefill_trace_;
  TraceContext decode_trace_;
  std::vector<TokenId> tokens_ = prompt(150, 3);  // 9 whole blocks travel
  std::vector<DecodeSide::Released> ready_;
};

TEST_P(HandoffTest, AWholePromptTravels) {
  const auto offer = prefill(HandoffDoor::kSerial);
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
  prefill(HandoffDoor::kConcurrent);
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
  ASSERT_TRUE(fetch(prefill(HandoffDoor::kSerial)));
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
  ASSERT_TRUE(fetch(prefill(HandoffDoor::kSerial)));
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
  prefill(HandoffDoor::kConcurrent, 64);
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
  HandoffOffer stale = *prefill(HandoffDoor::kSerial);
  stale.epoch ^= 1;
  ASSERT_TRUE(fetch(std::make_shared<const HandoffOffer>(stale)));
  run_until_ready();
  EXPECT_EQ(outcome_of(d_), to_string(HandoffFallback::kRefused));
  finish();
  EXPECT_TRUE(reports_of(p_).empty());  // it has not served
}

// What D has already does not travel.
TEST_P(HandoffTest, AnyHitsOnTheDecodeSideAreNotAskedFor) {
  const auto offer = prefill(HandoffDoor::kSerial);
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
  const auto offer = prefill(HandoffDoor::kSerial);
  d_.kv().acquire_prefix(kDecode, tokens_, {});
  d_.compute(kDecode, tokens_, 150);
  d_.kv().free(kDecode);
  EXPECT_FALSE(fetch(offer));
}

TEST_P(HandoffTest, EvictedBlocksAreSaidAndComputed) {
  const auto offer = prefill(HandoffDoor::kSerial);
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

TEST_P(HandoffTest, AWorkerThatEndsWaitsNotLongForAClaim) {
  const auto offer = prefill(HandoffDoor::kSerial);
  p_.handoff->drain(now_);
  now_ += std::chrono::seconds(1);
  turn();
  EXPECT_EQ(p_.handoff->prefill().num_live(), 1U);
  now_ += std::chrono::seconds(2);
  turn();
  EXPECT_EQ(p_.handoff->prefill().num_live(), 0U);
  EXPECT_EQ(p_.handoff->prefill().num_pinned(), 0);
}

// The lease is over and the blocks are not.
TEST_P(HandoffTest, CachedBlocksAreServedLate) {
  const auto offer = prefill(HandoffDoor::kSerial);
  now_ += std::chrono::seconds(40);
  turn();
  EXPECT_EQ(p_.handoff->prefill().num_live(), 0U);
  ASSERT_TRUE(fetch(offer));
  run_until_ready();
  EXPECT_EQ(d_.cached(tokens_), 144);
  finish();
}

TEST_P(HandoffTest, AReusedIdWithAnotherPromptIsRefused) {
  auto offer = prefill(HandoffDoor::kSerial);
  tokens_ = prompt(150, 70);
  HandoffOffer forged = *offer;
  forged.result = {};
  NewRequest request = Worker::request(kDecode, tokens_);
  const HandoffSpec spec = fetch_spec(HandoffDoor::kSerial, offer->transfer, "p:1", offer->epoch);
  ASSERT_TRUE(d_.handoff->hold(request, spec, now_));
  run_until_ready();
  EXPECT_EQ(d_.cached(tokens_), 0);
  EXPECT_EQ(d_.handoff->stats().bytes_in, 0U);
  finish();
}

TEST_P(HandoffTest, AnOfferOfAnEarlierProcessIsRefused) {
  auto offer = prefill(HandoffDoor::kSerial);
  HandoffOffer stale = *offer;
  stale.epoch ^= 1;
  ASSERT_TRUE(fetch(std::make_shared<const HandoffOffer>(stale)));
  run_until_ready();
  EXPECT_EQ(d_.cached(tokens_), 0);
  finish();
}

TEST_P(HandoffTest, AnotherModelIsRefused) {
  Worker other(peers_, "o", GetParam().transport, GetParam().prefill, "another model");
  prefill(HandoffDoor::kSerial);
  NewRequest request = Worker::request(kDecode, tokens_);
  const HandoffSpec spec = fetch_spec(HandoffDoor::kConcurrent, {1}, "o:1");
  ASSERT_TRUE(d_.handoff->hold(request, spec, now_));
  run_until_ready();
  finish();
}

TEST_P(HandoffTest, APeerThatIsNotAllowedIsNotAsked) {
  NewRequest request = Worker::request(kDecode, tokens_);
  const HandoffSpec spec = fetch_spec(HandoffDoor::kSerial, {1}, "nobody:1");
  EXPECT_TRUE(d_.handoff->hold(request, spec, now_));
  turn();
  ASSERT_EQ(ready_.size(), 1U);
  EXPECT_EQ(ready_[0].request.tokens, tokens_);
  EXPECT_EQ(ready_[0].fallback, HandoffFallback::kPeerGone);
  d_.expect_at_rest();
}

// Each message lost, the first time and always: right bytes or none, and nothing stays held.
TEST_P(HandoffTest, LostMessagesDelayAndHarmNothing) {
  if (GetParam().prefill != Cache::kHost || GetParam().decode != Cache::kHost) {
    GTEST_SKIP() << "what is lost is of the control channel";
  }
  for (const bool is_always : {false, true}) {
    for (size_t index = 0; index < std::variant_size_v<KvMessage>; ++index) {
      SCOPED_TRACE(index);
      bool was_lost = false;
      peers_.drop = [&](const KvMessage& message) {
        if (message.index() != index || (was_lost && !is_always)) return false;
        return was_lost = true;
      };
      p_.kv().reset_prefix_cache();
      d_.kv().reset_prefix_cache();
      ready_.clear();
      const auto offer = prefill(HandoffDoor::kSerial);
      ASSERT_TRUE(fetch(offer));
      run_until_ready();
      d_.cached(tokens_);
      finish();
    }
  }
}

TEST_P(HandoffTest, ADeadPeerUnpinsAndFallsBack) {
  for (int turns = 0; turns < 12; ++turns) {
    SCOPED_TRACE(turns);
    p_.kv().reset_prefix_cache();
    d_.kv().reset_prefix_cache();
    ready_.clear();
    const auto offer = prefill(HandoffDoor::kSerial);
    ASSERT_TRUE(fetch(offer));
    for (int i = 0; i < turns && ready_.empty(); ++i) turn();
    peers_.cut();
    run_until_ready(400);
    d_.cached(tokens_);
    finish();
  }
}

TEST_P(HandoffTest, EveryEndOfARequestReleasesBothSides) {
  for (int turns = 0; turns < 16; ++turns) {
    SCOPED_TRACE(turns);
    p_.kv().reset_prefix_cache();
    d_.kv().reset_prefix_cache();
    ready_.clear();
    const auto offer = prefill(HandoffDoor::kSerial);
    ASSERT_TRUE(fetch(offer));
    for (int i = 0; i < turns && ready_.empty(); ++i) turn();
    const bool was_held = ready_.empty();
    EXPECT_EQ(d_.handoff->abort(kDecode, now_), was_held);
    d_.handoff->end(kDecode, now_);
    settle();
    p_.expect_at_rest();
    d_.expect_at_rest();
  }
}

TEST_P(HandoffTest, AFailedPrefillIsComputedHere) {
  ASSERT_TRUE(fetch(nullptr));
  turn();
  prefill(HandoffDoor::kConcurrent, 100);
  for (int i = 0; i < 20; ++i) {
    turn();
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  p_.kv().free(kPrefill);
  p_.handoff->end(kPrefill, now_);
  run_until_ready();
  EXPECT_EQ(
      d_.handoff->stats().fallbacks[static_cast<size_t>(HandoffFallback::kPrefillFailed)],
      1U);
  d_.cached(tokens_);
  finish();
}

TEST_P(HandoffTest, RoomIsWaitedForAndGivenBack) {
  const auto offer = prefill(HandoffDoor::kSerial);
  const std::vector<TokenId> other = prompt(1000, 90);
  d_.kv().acquire_prefix(RequestId(1), other, {});
  ASSERT_TRUE(d_.kv().allocate_slots(RequestId(1), 1000));  // 63 of 64 blocks
  ASSERT_TRUE(fetch(offer));
  for (int i = 0; i < 20; ++i) turn();
  EXPECT_TRUE(ready_.empty());
  EXPECT_FALSE(d_.handoff->give_back_room(now_));
  d_.kv().free(RequestId(1));
  turn();
  EXPECT_TRUE(!ready_.empty() || d_.handoff->give_back_room(now_));
  run_until_ready();
  d_.cached(tokens_);
  finish();
}

// The claim has left out what was here then.
TEST_P(HandoffTest, WhatIsEvictedBeforeThereIsRoomIsComputedHere) {
  d_.kv().acquire_prefix(RequestId(1), tokens_, {});
  d_.compute(RequestId(1), tokens_, 48);
  d_.kv().free(RequestId(1));
  ASSERT_EQ(d_.cached(tokens_), 48);
  ASSERT_TRUE(fetch(prefill(HandoffDoor::kSerial)));
  d_.kv().reset_prefix_cache();
  run_until_ready();
  EXPECT_EQ(d_.handoff->stats().blocks_in, 6U);
  EXPECT_EQ(d_.cached(tokens_), 0);
  finish();
}

// One after the other, so that they do not keep others from their steps.
TEST_P(HandoffTest, PromptsToComputeHereComeOneAtATimeWhereOthersRun) {
  is_idle_ = false;
  for (uint64_t id = 201; id < 205; ++id) {
    NewRequest request = Worker::request(RequestId(id), prompt(150, static_cast<TokenId>(id)));
    KvTransferId transfer{};
    transfer[0] = static_cast<uint8_t>(id);
    HandoffSpec spec = fetch_spec(HandoffDoor::kConcurrent, transfer, "nobody:1");
    ASSERT_TRUE(d_.handoff->hold(request, spec, now_));
  }
  turn();
  ASSERT_EQ(ready_.size(), 1U);
  EXPECT_TRUE(ready_[0].request.is_fallback);
  EXPECT_EQ(ready_[0].fallback, HandoffFallback::kPeerGone);
  turn();
  EXPECT_EQ(ready_.size(), 1U);
  EXPECT_TRUE(d_.handoff->compare(RequestId(201), 1, now_));  // it has its first token
  turn();
  ASSERT_EQ(ready_.size(), 2U);
  EXPECT_TRUE(d_.handoff->abort(RequestId(203), now_));
  d_.handoff->end(RequestId(202), now_);
  turn();
  ASSERT_EQ(ready_.size(), 3U);
  EXPECT_EQ(ready_[2].request.id, RequestId(204));
}

TEST_P(HandoffTest, ADuplicateRoomIsAnOrdinaryRequest) {
  ASSERT_TRUE(fetch(nullptr));
  NewRequest request = Worker::request(RequestId(201), tokens_);
  HandoffSpec spec = fetch_spec(HandoffDoor::kConcurrent, {});
  spec.transfer.fill(9);
  EXPECT_FALSE(d_.handoff->hold(request, spec, now_));
  prefill(HandoffDoor::kConcurrent);
  NewRequest again = Worker::request(RequestId(101), tokens_);
  EXPECT_FALSE(p_.handoff->hold(again, offer_spec(HandoffDoor::kConcurrent, spec.transfer), now_));
  p_.handoff->end(RequestId(101), now_);
  run_until_ready();
  EXPECT_EQ(d_.cached(tokens_), 144);
  finish();
}

TEST_P(HandoffTest, TimersFireInAnIdleEngine) {
  peers_.drop = [](const KvMessage& message) { return std::holds_alternative<KvClaim>(message); };
  ASSERT_TRUE(fetch(nullptr));
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(ready_.empty());
    ASSERT_TRUE(d_.handoff->next_timer().has_value());
    now_ = *d_.handoff->next_timer();
    turn();
  }
  ASSERT_EQ(ready_.size(), 1U);
  finish();
}

TEST_P(HandoffTest, AnotherRowOfLogitsDropsTheBlocks) {
  ASSERT_TRUE(fetch(prefill(HandoffDoor::kSerial)));
  run_until_ready();
  ASSERT_EQ(ready_.size(), 1U);
  d_.kv().acquire_prefix(kDecode, tokens_, {});
  EXPECT_FALSE(d_.handoff->compare(kDecode, 98, now_));
  d_.kv().free(kDecode);
  EXPECT_EQ(d_.cached(tokens_), 0);
  finish();
}

// Messages that no peer of ours sends.
TEST_P(HandoffTest, NonsenseReachesNoCheck) {
  peers_.change = [](KvMessage& message) {
    if (auto* claim = std::get_if<KvClaim>(&message)) claim->first_blocks = {7, 7, 4'000'000'000U};
    if (auto* credit = std::get_if<KvCredit>(&message)) credit->slots[0].bytes = 1;
  };
  ASSERT_TRUE(fetch(prefill(HandoffDoor::kSerial)));
  run_until_ready();
  d_.cached(tokens_);
  finish();
  peers_.change = [](KvMessage& message) {
    if (auto* credit = std::get_if<KvCredit>(&message)) {
      credit->slots[0] = {
          .slot = 4'000'000'000U, .generation = 4'000'000'000U, .bytes = UINT32_MAX};
    }
    if (auto* final = std::get_if<KvFinal>(&message)) final->num_blocks = UINT32_MAX;
  };
  ready_.clear();
  p_.kv().reset_prefix_cache();
  ASSERT_TRUE(fetch(prefill(HandoffDoor::kSerial)));
  run_until_ready();
  d_.cached(tokens_);
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
        Way{"ipc", "auto", Cache::kCuda, Cache::kCuda, nullptr, KvTransportKind::kCudaIpc},
        Way{"auto_to_host", "auto", Cache::kCuda, Cache::kHost, nullptr, KvTransportKind::kTcp},
        Way{"auto_to_tcp", "auto", Cache::kCuda, Cache::kCuda, "tcp", KvTransportKind::kTcp},
        Way{"auto_from_ipc",
            "cuda_ipc",
            Cache::kCuda,
            Cache::kCuda,
            "auto",
            KvTransportKind::kCudaIpc}),
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
}  // namespace sluice
