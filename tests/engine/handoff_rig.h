// SPDX-License-Identifier: Apache-2.0
// The fixture HandoffTest: two workers' handoffs in one process, over real data planes. Caches are
// the host's, a device's that is the host's memory under another name, or, where the program has
// one (tests/engine/cuda), one of CUDA's.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <ostream>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include "engine/handoff/handoff.h"
#include "kernels/device.h"
#include "tests/support/fake_kv_peers.h"
#include "tests/support/fake_nccl.h"
#include "tests/support/new_request.h"

namespace sluice::testing {

using Clock = Handoff::Clock;

inline constexpr int32_t kBlockSize = 16;
inline constexpr int32_t kNumBlocks = 64;
inline constexpr RequestId kPrefill{100};
inline constexpr RequestId kDecode{200};

inline std::vector<KvGroupSpec> groups() {
  KvGroupSpec group{.num_blocks = kNumBlocks, .num_layers = 3};
  group.planes.assign(2, {.num_heads = 2, .width = 8, .dtype = DType::kF16});
  return {group};
}

inline std::vector<std::byte> content(const std::vector<TokenId>& tokens,
                                      int32_t block,
                                      size_t bytes) {
  std::vector<std::byte> made(bytes);
  for (size_t i = 0; i < bytes; ++i) {
    const auto token = static_cast<size_t>(tokens[static_cast<size_t>(block * kBlockSize)]);
    made[i] = static_cast<std::byte>(i * 7 + token * 31 + static_cast<size_t>(block));
  }
  return made;
}

inline std::vector<TokenId> prompt(int32_t num_tokens, TokenId first) {
  std::vector<TokenId> tokens(static_cast<size_t>(num_tokens));
  for (int32_t i = 0; i < num_tokens; ++i) tokens[static_cast<size_t>(i)] = first + i % 50;
  return tokens;
}

inline HandoffSpec offer_spec(HandoffMode mode, const KvTransferId& transfer = {}) {
  HandoffSpec spec;
  spec.kind = HandoffKind::kOffer;
  spec.mode = mode;
  spec.transfer = transfer;
  return spec;
}

inline HandoffSpec fetch_spec(HandoffMode mode,
                              const KvTransferId& transfer,
                              const std::string& peer = "p:1",
                              uint64_t epoch = 0) {
  HandoffSpec spec = offer_spec(mode, transfer);
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

inline void PrintTo(const Way& way, std::ostream* out) { *out << way.name; }

// A cache's memory.
class Memory {
 public:
  explicit Memory(Cache cache) {
    if (cache == Cache::kFakeDevice) fake_ = std::make_unique<FakeNcclDevice>();
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
inline constexpr const char* kNccl = kernels::kNcclLibrary;
#else
inline constexpr const char* kNccl = SLUICE_FAKE_NCCL;
#endif

inline KvMover::Backend backend_of(Cache cache) {
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
         const std::string& fingerprint = "model",
         const std::vector<KvGroupSpec>& specs = groups())
      : memory_(cache),
        storage_(
            *KvStorage::create(specs, kBlockSize, AlignedBuffer::Pages::kSmall, memory_.get())),
        kv_({.block_size = kBlockSize, .max_num_seqs = 8, .max_model_len = 1024}, specs) {
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

  static Request request(RequestId id, const std::vector<TokenId>& tokens) {
    return testing::new_request(id.value, tokens, 1);
  }

  // Blocks up to `num_tokens` tokens are computed and findable.
  void compute(RequestId id, const std::vector<TokenId>& tokens, int32_t num_tokens) {
    ASSERT_TRUE(kv_.allocate_slots(id, num_tokens));
    const std::span<const BlockId> table = kv_.block_table(id, 0);
    for (int32_t block = 0; block < num_tokens / kBlockSize; ++block) {
      const KvPiece piece = storage_.whole(0, table[static_cast<size_t>(block)]);
      // No wait is needed: who reads the block does so behind what is called here.
      computed_.push_back(content(tokens, block, bytes()));
      storage_.copy_in(piece, computed_.back());
    }
    kv_.cache_blocks(id, tokens, num_tokens);
  }

  // How many of the prompt's tokens are cached, proven or not, all with the right bytes.
  int32_t cached(const std::vector<TokenId>& tokens) {
    const RequestId id(999);
    kv_.expect_proof(id);
    const int32_t found = kv_.acquire_prefix(id, tokens, {}, PrefixUse::kTransfer);
    for (int32_t block = 0; block < found / kBlockSize; ++block) {
      std::vector<std::byte> there(bytes());
      storage_.copy_out(storage_.whole(0, kv_.block_table(id, 0)[static_cast<size_t>(block)]),
                        there);
      storage_.wait();
      EXPECT_EQ(there, content(tokens, block, bytes())) << block;
    }
    kv_.free(id);
    kv_.withdraw(id, {});
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
  std::shared_ptr<const HandoffOffer> prefill(HandoffMode mode, int32_t num_computed = -1) {
    Request request = Worker::request(kPrefill, tokens_);
    HandoffSpec spec = offer_spec(mode);
    if (mode == HandoffMode::kConcurrent) spec.transfer.fill(9);
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
    Request request = Worker::request(kDecode, tokens_);
    HandoffSpec spec = fetch_spec(HandoffMode::kConcurrent, {});
    spec.transfer.fill(9);
    if (offer != nullptr) {
      spec.mode = HandoffMode::kSerial;
      spec.transfer = offer->transfer;
      spec.peer_epoch = offer->epoch;
      spec.result = offer->result;
    }
    return d_.handoff->hold(request, spec, now_, decode_trace_);
  }

  // Both engines' loops, once.
  void turn() {
    p_.handoff->advance(now_, load_, ready_);
    d_.handoff->advance(now_, load_, ready_);
  }

  // Until D's request is ready; the clock runs when nothing moves.
  void run_until_ready(int most = 3000) {
    for (int i = 0; i < most && ready_.empty(); ++i) {
      turn();
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      now_ += std::chrono::milliseconds(i < 200 ? 1 : 100);
    }
  }

  // Their threads have seconds, where they get less of a core than this one.
  void settle(int most = 1000) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    for (int i = 0; i < most || std::chrono::steady_clock::now() < end; ++i) {
      const bool rests = p_.handoff->prefill().num_live() + d_.handoff->decode().num_live() == 0;
      if (rests) return;
      turn();
      std::this_thread::sleep_for(std::chrono::milliseconds(i < 100 || i >= most ? 1 : 0));
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
    EXPECT_EQ(ready_[0].id, kDecode);
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
  Handoff::Load load_;                      // nothing else runs
  std::optional<KvTransportKind> claimed_;  // by the last claim, unless a test looks at messages
  TraceContext prefill_trace_;
  TraceContext decode_trace_;
  std::vector<TokenId> tokens_ = prompt(150, 3);  // 9 whole blocks travel
  std::vector<DecodeSide::Released> ready_;
};

}  // namespace sluice::testing
