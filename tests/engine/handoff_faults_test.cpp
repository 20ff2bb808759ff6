// SPDX-License-Identifier: Apache-2.0
// Two engines between which everything goes wrong, by a seed: messages of the control channel and
// the bytes of the data plane are lost, late, repeated, out of order, cut and changed. What the
// decode engine answers is what one engine alone does, bit for bit, and nothing stays taken.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "engine/core/config.h"
#include "engine/engine.h"
#include "tests/support/fake_kv_peers.h"
#include "tests/support/fault_proxy.h"
#include "tests/support/frame_editor.h"
#include "tests/support/golden_folder.h"
#include "tests/support/random_model.h"
#include "tests/support/same_bits.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/tier.h"

namespace sluice {
namespace {

using test::Fault;
using test::FaultProxy;
using test::FrameEditor;
using testing::Collected;
using testing::FakeKvPeers;

// One in `odds` is true. Any thread.
class Dice {
 public:
  explicit Dice(uint64_t seed) : random_(seed) {}

  uint64_t below(uint64_t bound) {
    const std::scoped_lock lock(mutex_);
    return random_() % bound;
  }

  bool one_in(uint64_t odds) { return below(odds) == 0; }

 private:
  std::mutex mutex_;
  std::mt19937_64 random_;
};

// What the network does to both channels. Quiet: nothing.
class BadNetwork {
 public:
  explicit BadNetwork(FakeKvPeers& peers) : peers_(peers) {
    peers_.pass = [this](bool to_prefill, KvMessage message) {
      return pass(to_prefill, std::move(message));
    };
    peers_.introduce = [this](KvHello& hello) { introduce(hello); };
  }

  void begin(uint64_t seed) {
    const std::scoped_lock lock(mutex_);
    dice_ = std::make_unique<Dice>(seed);
    // Some runs have one kind of trouble, others all of them.
    control_odds_ = dice_->one_in(3) ? 0 : 3 + dice_->below(12);
    frame_odds_ = dice_->one_in(3) ? 0 : 2 + dice_->below(12);
    byte_odds_ = dice_->one_in(2) ? 0 : 1 + dice_->below(3);
    late_.clear();
  }

  void rest() {
    const std::scoped_lock lock(mutex_);
    control_odds_ = frame_odds_ = byte_odds_ = 0;
    late_.clear();
  }

  [[nodiscard]] uint64_t num_faults() const { return num_faults_; }

 private:
  bool strikes(uint64_t odds) {
    if (odds == 0 || !dice_->one_in(odds)) return false;
    ++num_faults_;
    return true;
  }

  std::vector<KvMessage> pass(bool to_prefill, KvMessage message) {
    const std::scoped_lock lock(mutex_);
    std::vector<KvMessage> arriving;
    if (strikes(control_odds_)) {
      switch (dice_->below(3)) {
        case 0:  // lost
          break;
        case 1:  // behind later ones, or never
          late_.emplace_back(to_prefill, std::move(message));
          break;
        default:
          arriving = {message, message};
          break;
      }
    } else {
      arriving.push_back(std::move(message));
    }
    if (!late_.empty() && late_.front().first == to_prefill && dice_->one_in(2)) {
      arriving.push_back(std::move(late_.front().second));
      late_.pop_front();
    }
    return arriving;
  }

  // The data plane of a prefill worker is behind a proxy, one for each process.
  void introduce(KvHello& hello) {
    for (KvTransportOffer& offer : hello.transports) {
      if (offer.kind == KvTransportKind::kTcp) offer.address = proxy_of(offer.address);
    }
  }

  std::string proxy_of(const std::string& target) {
    for (const auto& [known, proxy] : proxies_) {
      if (known == target) return proxy->address();
    }
    constexpr size_t kMostProxies = 4;  // of processes that may still have connections
    if (proxies_.size() == kMostProxies) proxies_.pop_front();
    FrameEditor editor([this](bool, FrameEditor::Frame frame) { return edit(std::move(frame)); });
    auto proxy = std::make_unique<FaultProxy>(
        target, [this](size_t) { return plan(); }, std::move(editor));
    return proxies_.emplace_back(target, std::move(proxy)).second->address();
  }

  Fault plan() {
    const std::scoped_lock lock(mutex_);
    Fault fault;
    if (!strikes(byte_odds_)) return fault;
    constexpr Fault::Kind kKinds[] = {
        Fault::Kind::kFlip, Fault::Kind::kCut, Fault::Kind::kHalfClose, Fault::Kind::kStall};
    fault.kind = kKinds[dice_->below(4)];
    fault.is_answer = !dice_->one_in(4);
    fault.at = dice_->below(20'000);
    fault.ms = static_cast<int>(1 + dice_->below(100));
    return fault;
  }

  std::vector<FrameEditor::Frame> edit(FrameEditor::Frame frame) {
    const std::scoped_lock lock(mutex_);
    std::vector<FrameEditor::Frame> out;
    if (!strikes(frame_odds_)) {
      out.push_back(std::move(frame));
    } else {
      switch (dice_->below(4)) {
        case 0:
          break;
        case 1:
          kept_.push_back(std::move(frame));
          break;
        case 2:
          out = {frame, frame};
          break;
        default:
          frame[dice_->below(frame.size())] ^= std::byte{0x40};
          out.push_back(std::move(frame));
          break;
      }
    }
    if (!kept_.empty() && dice_->one_in(2)) {  // of any connection
      out.push_back(std::move(kept_.front()));
      kept_.pop_front();
    }
    return out;
  }

  FakeKvPeers& peers_;
  std::mutex mutex_;
  std::unique_ptr<Dice> dice_ = std::make_unique<Dice>(0);
  uint64_t control_odds_ = 0;
  uint64_t frame_odds_ = 0;
  uint64_t byte_odds_ = 0;
  std::deque<std::pair<bool, KvMessage>> late_;
  std::deque<FrameEditor::Frame> kept_;
  std::atomic<uint64_t> num_faults_ = 0;
  // Go first: their threads use the rest.
  std::deque<std::pair<std::string, std::unique_ptr<FaultProxy>>> proxies_;
};

Config small_config(const char* transport) {
  Config config;
  config.model = golden_folder() + "/tiny/tiny-llama.gguf";
  config.max_model_len = 1024;
  config.kv_cache_memory = int64_t{4} << 20;
  config.max_num_batched_tokens = 128;
  config.kv_transport = transport;
  config.kv_transfer_buffer = int64_t{8} << 20;
  return config;
}

std::unique_ptr<Engine> start_worker(Config config, FakeKvPeers& peers, const std::string& name) {
  config.kv_listen = "127.0.0.1:0";
  Expected<std::unique_ptr<Engine>> made = create_worker_engine(config, peers.opener(name));
  EXPECT_TRUE(made) << (made ? "" : made.error().message);
  return made ? std::move(*made) : nullptr;
}

ValidRequest request(uint64_t number) {
  ValidRequest made;
  std::mt19937_64 random(number);
  const size_t length = 17 + random() % 400;
  for (size_t i = 0; i < length; ++i) made.prompt.push_back(static_cast<TokenId>(random() % 250));
  made.sampling.max_tokens = 4;
  made.sampling.ignore_eos = true;
  made.sampling.temperature = 0.7F;
  made.sampling.seed = number;
  made.sampling.num_logprobs = 0;
  return made;
}

ValidRequest offer(uint64_t number) {
  ValidRequest made = request(number);
  made.sampling.max_tokens = 1;
  made.handoff.emplace();
  made.handoff->kind = HandoffKind::kOffer;
  made.handoff->mode = HandoffMode::kConcurrent;
  for (size_t i = 0; i < 8; ++i) {
    made.handoff->transfer[i] = static_cast<uint8_t>(number >> (8 * i));
  }
  return made;
}

ValidRequest fetch(uint64_t number) {
  ValidRequest made = request(number);
  made.handoff = offer(number).handoff;
  made.handoff->kind = HandoffKind::kFetch;
  made.handoff->peer = "p:1";
  return made;
}

bool is_free(const Engine& engine) {
  const EngineStats stats = engine.stats();
  return stats.num_blocks_used == 0 && stats.handoff->num_posted_slots == 0 &&
         stats.handoff->num_reserved_blocks == 0 && stats.handoff->num_pinned_blocks == 0;
}

void expect_free(const Engine& engine, uint64_t run) {
  for (int i = 0; i < 2000 && !is_free(engine); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  EXPECT_TRUE(is_free(engine)) << "after run " << run;
}

uint64_t num_runs() { return testing::sample_of<uint64_t>(200, 10'000); }

class HandoffFaults : public ::testing::TestWithParam<const char*> {};

TEST_P(HandoffFaults, AnswersAreThoseOfOneEngineAndNothingStaysTaken) {
  constexpr uint64_t kRequests = 4;
  Config config = small_config(GetParam());
  const std::unique_ptr<Engine> alone = testing::start_engine(config);
  config.kv_transfer_timeout_ms = 60;
  FakeKvPeers peers;
  BadNetwork network(peers);
  std::unique_ptr<Engine> p = start_worker(config, peers, "p");
  const std::unique_ptr<Engine> d = start_worker(config, peers, "d");
  ASSERT_TRUE(p != nullptr && d != nullptr);
  const uint64_t runs = num_runs() / 2;  // by each transport
  for (uint64_t run = 0; run < runs; ++run) {
    std::vector<ValidRequest> whole;
    std::vector<ValidRequest> offers;
    std::vector<ValidRequest> fetches;
    for (uint64_t i = 0; i < kRequests; ++i) {
      const uint64_t number = 1 + run * kRequests + i;
      whole.push_back(request(number));
      offers.push_back(offer(number));
      fetches.push_back(fetch(number));
    }
    network.begin(run);
    std::thread prefills([&] { testing::run_together(*p, offers); });
    const std::vector<Collected> actual = testing::run_together(*d, fetches);
    prefills.join();
    testing::expect_same(
        testing::run_together(*alone, whole), actual, "run " + std::to_string(run));
    if (::testing::Test::HasFatalFailure()) return;
    network.rest();
    if (run % 8 == 3) peers.cut();
    if (run % 16 == 15) {
      expect_free(*d, run);
      expect_free(*p, run);
    }
    if (run % 32 == 31) {  // another process is there now
      p->stop();
      p.reset();
      p = start_worker(config, peers, "p");
      ASSERT_NE(p, nullptr);
    }
  }
  expect_free(*d, runs);
  expect_free(*p, runs);
  const HandoffStats stats = *d->stats().handoff;
  EXPECT_GT(network.num_faults(), runs / 4);
  EXPECT_GT(stats.num_in, runs * kRequests / 4);
  d->stop();
  p->stop();
}

INSTANTIATE_TEST_SUITE_P(Transports, HandoffFaults, ::testing::Values("tcp", "shm"));

// Wrong bytes under a sum that is theirs.
void spoil(FrameEditor::Frame& frame) {
  for (size_t i = kKvFrameBytes; i < frame.size(); i += 64) frame[i] ^= std::byte{0x21};
  FrameEditor::sum(frame);
}

// Puts a proxy in front of each worker: `edit` gets the frames that have a payload, and returns
// whether they go on.
void edit_payloads(FakeKvPeers& peers,
                   std::unique_ptr<FaultProxy>& proxy,
                   const std::function<bool(FrameEditor::Frame&)>& edit) {
  peers.introduce = [&proxy, edit](KvHello& hello) {
    const auto change = [edit](bool is_answer, FrameEditor::Frame frame) {
      std::vector<FrameEditor::Frame> frames;
      const bool has_payload = is_answer && frame.size() > kKvFrameBytes;
      if (!has_payload || edit(frame)) frames.push_back(std::move(frame));
      return frames;
    };
    proxy = std::make_unique<FaultProxy>(
        hello.transports[0].address, [](size_t) { return Fault{}; }, FrameEditor(change));
    hello.transports[0].address = proxy->address();
  };
}

// Bytes that were changed where no sum sees it, as by a memory or a bug.
TEST(HandoffFaultsOfContent, AWrongBlockUnderAValidSumIsSeenByTheFirstRowOfLogits) {
  const Config config = small_config("tcp");
  const std::unique_ptr<Engine> alone = testing::start_engine(config);
  std::atomic<int> num_changed = 0;
  std::unique_ptr<FaultProxy> proxy;
  FakeKvPeers peers;
  edit_payloads(peers, proxy, [&](FrameEditor::Frame& frame) {
    spoil(frame);
    ++num_changed;
    return true;
  });
  const std::unique_ptr<Engine> p = start_worker(config, peers, "p");
  const std::unique_ptr<Engine> d = start_worker(config, peers, "d");
  ASSERT_TRUE(p != nullptr && d != nullptr);
  for (uint64_t number = 1; number < 6; ++number) {
    std::thread prefill([&] { testing::run_together(*p, {offer(number)}); });
    const std::vector<Collected> actual = testing::run_together(*d, {fetch(number)});
    prefill.join();
    const std::vector<Collected> expected = testing::run_together(*alone, {request(number)});
    testing::expect_same(expected, actual, "wrong blocks");
    testing::expect_same(expected, testing::run_together(*d, {request(number)}), "cached");
  }
  const HandoffStats stats = *d->stats().handoff;
  EXPECT_GT(num_changed, 0);
  EXPECT_EQ(stats.frames_spoiled, 0U);
  EXPECT_EQ(stats.num_in, 5U);
  EXPECT_EQ(stats.fallbacks[static_cast<size_t>(HandoffFallback::kFirstToken)], 5U);
  expect_free(*d, 0);
  expect_free(*p, 0);
  d->stop();
  p->stop();
}

// A prompt whose KV takes several landing slots: its beginning alone arrives, with wrong bytes. The
// rest is computed after it, in several steps, before the first row of logits.
TEST(HandoffFaultsOfContent, WrongBlocksAreNotSavedBelowTheCache) {
  const testing::TemporaryFolder folder;
  Config config = small_config("tcp");
  config.model = folder.at("random.gguf");
  config.kv_cache_memory = int64_t{64} << 20;
  const std::vector<WeightFormat> formats(32, WeightFormat::kQ8_0);  // as many layers
  ASSERT_TRUE(testing::write_random_model(golden_folder() + "/tiny/tiny-llama.gguf",
                                          config.model,
                                          formats,
                                          WeightFormat::kQ8_0));
  ValidRequest whole = request(1);
  whole.prompt.clear();
  for (int i = 0; i < 1000; ++i) whole.prompt.push_back(static_cast<TokenId>((i * i * 31) % 250));
  const std::vector<Collected> expected =
      testing::run_together(*testing::start_engine(config), {whole});
  std::atomic<int> num_lost = 0;
  std::unique_ptr<FaultProxy> proxy;
  FakeKvPeers peers;
  edit_payloads(peers, proxy, [&](FrameEditor::Frame& frame) {
    if (decode_kv_frame(std::span(frame).first<kKvFrameBytes>())->first_block > 0) {
      ++num_lost;
      return false;
    }
    spoil(frame);
    return true;
  });
  std::unique_ptr<Engine> p = start_worker(config, peers, "p");
  config.kv_disk_path = folder.at("kv");
  std::unique_ptr<Engine> d = start_worker(config, peers, "d");
  ASSERT_TRUE(p != nullptr && d != nullptr);
  ValidRequest offered = whole;
  offered.sampling.max_tokens = 1;
  offered.handoff.emplace();
  offered.handoff->kind = HandoffKind::kOffer;
  offered.handoff->mode = HandoffMode::kSerial;
  const auto kept = testing::run_together(*p, {offered}).front().offer;
  ASSERT_NE(kept, nullptr);
  ValidRequest fetched = whole;
  fetched.handoff = offered.handoff;
  fetched.handoff->kind = HandoffKind::kFetch;
  fetched.handoff->peer = "p:1";
  fetched.handoff->transfer = kept->transfer;
  fetched.handoff->peer_epoch = kept->epoch;
  fetched.handoff->result = kept->result;
  testing::CollectingSink sink;
  const auto id = d->submit(fetched, sink);
  ASSERT_TRUE(id);
  for (int i = 0; i < 2000 && (num_lost == 0 || d->stats().handoff->blocks_in == 0); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  ASSERT_GT(num_lost, 0);
  peers.cut();
  testing::expect_same(expected, {sink.wait(*id)}, "wrong blocks");
  EXPECT_EQ(d->stats().handoff->fallbacks[static_cast<size_t>(HandoffFallback::kFirstToken)], 1U);
  d.reset();
  p.reset();
  const std::unique_ptr<Engine> next = testing::start_engine(config);
  testing::expect_same(expected, testing::run_together(*next, {whole}), "from the disk");
  EXPECT_GT(next->stats().kv_tier_hits, 0U);
}

// A request begins like one whose wrong blocks have landed, and starts before it: an ordinary one,
// or one that fetches the rest of its own prompt.
class HandoffWrongBlocks : public ::testing::TestWithParam<bool> {};

TEST_P(HandoffWrongBlocks, ReachNoOtherAnswer) {
  const bool fetches = GetParam();
  Config config = small_config("tcp");
  const std::unique_ptr<Engine> alone = testing::start_engine(config);
  std::unique_ptr<FaultProxy> proxy;
  FakeKvPeers peers;
  edit_payloads(peers, proxy, [](FrameEditor::Frame& frame) {
    spoil(frame);
    return true;
  });
  const std::unique_ptr<Engine> p = start_worker(config, peers, "p");
  config.max_num_seqs = 1;
  config.overlap = false;  // the first one starts when the second has ended
  const std::unique_ptr<Engine> d = start_worker(config, peers, "d");
  ASSERT_TRUE(p != nullptr && d != nullptr);
  const auto sized = [](uint64_t number, size_t num_tokens) {
    ValidRequest made = request(number);
    made.prompt.resize(num_tokens, static_cast<TokenId>(number));
    return made;
  };
  const ValidRequest first = sized(1, 200);
  ValidRequest second = sized(2, 300);
  std::copy_n(first.prompt.begin(), 128, second.prompt.begin());
  const auto fetched = [&](ValidRequest whole) {
    ValidRequest offered = whole;
    offered.sampling.max_tokens = 1;
    offered.handoff = offer(1).handoff;
    offered.handoff->mode = HandoffMode::kSerial;
    offered.handoff->transfer = {};
    const auto made = testing::run_together(*p, {offered}).front().offer;
    EXPECT_NE(made, nullptr);
    if (made == nullptr) return whole;
    whole.handoff = fetch(1).handoff;
    whole.handoff->mode = HandoffMode::kSerial;
    whole.handoff->transfer = made->transfer;
    whole.handoff->peer_epoch = made->epoch;
    whole.handoff->result = made->result;
    return whole;
  };
  const ValidRequest landing = fetched(first);
  ValidRequest asked = fetches ? fetched(second) : second;
  asked.priority = -1;
  ValidRequest stream = sized(3, 20);
  stream.sampling.max_tokens = 900;
  testing::CollectingSink sink;
  const auto submit = [&](const ValidRequest& one) { return *d->submit(one, sink); };
  const RequestId running = submit(stream);
  sink.wait_tokens(running, 1);
  const auto await_landed = [&d](uint64_t num_in) {
    for (int i = 0; i < 2000 && d->stats().handoff->num_in < num_in; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    EXPECT_EQ(d->stats().handoff->num_in, num_in);
  };
  const RequestId late = submit(landing);
  await_landed(1);
  const RequestId early = submit(asked);
  if (fetches) await_landed(2);
  EXPECT_TRUE(sink.ends().empty());
  d->abort(running);
  const std::vector<Collected> actual = {sink.wait(late), sink.wait(early)};
  EXPECT_EQ(sink.ends(), (std::vector<RequestId>{running, early, late}));
  testing::expect_same(testing::run_together(*alone, {first, second}), actual, "wrong blocks");
  expect_free(*d, 0);
  expect_free(*p, 0);
  d->stop();
  p->stop();
}

INSTANTIATE_TEST_SUITE_P(Others, HandoffWrongBlocks, ::testing::Bool());

// A frame of other layers and blocks than were asked for, with as many bytes: of no part.
TEST(HandoffFaultsOfContent, AFrameOfOtherLayersIsNotTakenIn) {
  Config config = small_config("tcp");
  config.kv_transfer_timeout_ms = 1'500;
  const std::unique_ptr<Engine> alone = testing::start_engine(config);
  std::atomic<int> num_to_change = 2;  // of the first attempt and of the next one
  std::unique_ptr<FaultProxy> proxy;
  FakeKvPeers peers;
  edit_payloads(peers, proxy, [&](FrameEditor::Frame& frame) {
    if (num_to_change == 0) return true;
    --num_to_change;
    const auto header = std::span(frame).first<kKvFrameBytes>();
    KvFrame changed = *decode_kv_frame(header);
    changed.num_blocks *= std::exchange(changed.num_layers, uint16_t{1});
    encode_kv_frame(changed, header);
    return true;
  });
  const std::unique_ptr<Engine> p = start_worker(config, peers, "p");
  const std::unique_ptr<Engine> d = start_worker(config, peers, "d");
  ASSERT_TRUE(p != nullptr && d != nullptr);
  std::thread prefill([&] { testing::run_together(*p, {offer(1)}); });
  const std::vector<Collected> actual = testing::run_together(*d, {fetch(1)});
  prefill.join();
  testing::expect_same(testing::run_together(*alone, {request(1)}), actual, "answer");
  EXPECT_EQ(num_to_change, 0);
  const HandoffStats stats = *d->stats().handoff;
  EXPECT_EQ(stats.num_in, 0U);
  EXPECT_EQ(stats.blocks_in, 0U);
  EXPECT_EQ(stats.fallbacks[static_cast<size_t>(HandoffFallback::kSpoiled)], 1U);
  expect_free(*d, 0);
  expect_free(*p, 0);
  d->stop();
  p->stop();
}

}  // namespace
}  // namespace sluice
