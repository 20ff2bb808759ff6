// SPDX-License-Identifier: Apache-2.0
// Ranks on shim devices that write each other's memory: engines whose small exchanges all go that
// way give the bits of one device; other exchanges, and ranks that do not reach each other, use the
// library; and a rank that does not come ends the exchanges of all.
#include "engine/parallel/peer_ranks.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "engine/core/config.h"
#include "engine/engine.h"
#include "engine/parallel/nccl.h"
#include "kernels/device.h"
#include "kernels/peer_rows.h"
#include "tests/engine/cuda/shim_ranks.h"
#include "tests/engine/cuda/tiny_model.h"
#include "tests/support/collecting_sink.h"
#include "tests/support/same_bits.h"
#include "tests/support/shared_model.h"
#include "tests/support/simt/memory.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/tier.h"

namespace sluice {
namespace {

using testing::ShimDevices;
using testing::TinyModel;
using testing::TinyWeights;

// The library fails in rank 0's `num_calls`-th gather; 0: never.
RankGroups peer_groups(int num_calls) {
  RankGroups groups = testing::shim_groups(num_calls > 0 ? 0 : -1, num_calls);
  groups.on_devices = [library = groups.on_devices] {
    return library().map([](ConnectRanks made) { return with_peers(std::move(made)); });
  };
  return groups;
}

struct RanPeers {
  std::vector<testing::Collected> results;
  std::string key;
};

// `num_calls` as above.
RanPeers run_peers(Config config,
                   int32_t ranks,
                   const std::vector<ValidRequest>& requests,
                   int num_calls) {
  config.tensor_parallel_size = ranks;
  config.max_num_batched_tokens = 64;
  const auto engine = create_engine(config, peer_groups(num_calls));
  EXPECT_TRUE(engine.has_value()) << engine.error().message;
  if (!engine) return {};
  return {.results = testing::run_together(**engine, requests),
          .key = (*engine)->model().system_fingerprint};
}

std::vector<ValidRequest> few_requests() {
  std::vector<ValidRequest> requests = testing::tiny_requests();
  if (testing::is_short()) requests.resize(2);
  return requests;
}

// The library would end the start with its first gather.
void expect_same_without_library(Config config,
                                 int32_t ranks,
                                 const std::vector<ValidRequest>& requests,
                                 const std::string& what) {
  const ShimDevices devices(ranks);
  const RanPeers expected = run_peers(config, 1, requests, 0);
  for (const bool eager : {false, true}) {
    config.enforce_eager = eager;
    const RanPeers ran = run_peers(config, ranks, requests, 1);
    ASSERT_EQ(ran.results.size(), requests.size()) << what;
    testing::expect_same(expected.results, ran.results, what + (eager ? " eager" : " recorded"));
    EXPECT_EQ(ran.key, expected.key) << what;
    if (!testing::is_full()) return;
  }
}

// INT8 sums and magnitudes of rows, and floats; recorded steps and others.
TEST(CudaPeerRanks, GiveTheBitsOfOneDeviceWithoutTheLibrary) {
  const TinyModel int8(TinyWeights::kInt8);
  expect_same_without_library(int8.config("cuda"), 2, few_requests(), "INT8");
  if (testing::is_short()) return;
  const TinyModel bf16(TinyWeights::kBF16);
  expect_same_without_library(bf16.config("cuda"), 2, few_requests(), "BF16");
}

TEST(CudaPeerRanks, FourGiveTheBitsOfOneDevice) {
  if (!testing::is_full()) GTEST_SKIP() << "SLUICE_FULL=1 runs it";
  const testing::TemporaryFolder folder;
  testing::write_model(folder, "models/llama", {});
  Config config = testing::tiny_config("cuda", folder.path());
  config.load_format = "dummy";
  std::vector<ValidRequest> requests = testing::tiny_requests();
  requests = {requests[2], requests[3]};
  for (ValidRequest& request : requests) request.sampling.max_tokens = 3;
  expect_same_without_library(config, 4, requests, "four");
}

TEST(CudaPeerRanks, ThatDoNotReachEachOtherUseTheLibrary) {
  const TinyModel model(TinyWeights::kInt8);
  const ShimDevices devices(2);
  simt::set_device_options({.count = 2, .reaches_peers = false});
  const std::vector<ValidRequest> requests = few_requests();
  const RanPeers expected = run_peers(model.config("cuda"), 1, requests, 0);
  const RanPeers ran = run_peers(model.config("cuda"), 2, requests, 0);
  testing::expect_same(expected.results, ran.results, "by the library");
  EXPECT_EQ(ran.key, expected.key);
}

// Two ranks without an engine.
class TwoRanks {
 public:
  // `number`: of the exchange that rank 1's window says was the latest.
  explicit TwoRanks(std::chrono::milliseconds limit,
                    uint32_t number = 0,
                    const ConnectRanks& library = *testing::shim_groups().on_devices()) {
    std::vector<DeviceRank> ends;
    for (int32_t rank = 0; rank < 2; ++rank) {
      devices_.push_back(std::move(
          *kernels::Device::create({.type = DeviceType::kCuda, .threads = 1, .number = rank})));
      kernels::DeviceMemory& memory = devices_.back()->memory();
      buffers_.push_back(room(memory, kernels::kPeerWindowBytes));
      buffers_.push_back(room(memory, 2 * kMostBytes));
      buffers_.push_back(room(memory, kMostBytes));
      ends.push_back({.device = rank,
                      .received = buffer(rank, 1),
                      .stream = devices_.back()->context().stream,
                      .name = devices_.back()->name(),
                      .memory = &memory,
                      .window = buffer(rank, 0)});
      if (rank == 1 && number > 0) {
        memory.upload(buffer(1, 0).data(), reinterpret_cast<const std::byte*>(&number), 4);
      }
      memory.wait();
    }
    const ConnectRanks counting = [&](std::span<const DeviceRank> ranks) {
      return counted(library, ranks);
    };
    connected_ = std::move(*with_peers(counting, limit)(ends));
  }

  // Each rank exchanges bytes of its own; returns whether each got both's.
  bool exchange(size_t bytes) {
    bool are_right = true;
    std::mutex mutex;
    std::vector<std::thread> threads;
    for (int32_t rank = 0; rank < 2; ++rank) {
      threads.emplace_back([&, rank] {
        kernels::DeviceMemory& memory = devices_[static_cast<size_t>(rank)]->memory();
        const std::vector<std::byte> own(bytes, static_cast<std::byte>(rank + 1));
        const std::span<std::byte> part = buffer(rank, 2).first(bytes);
        memory.upload(part.data(), own.data(), static_cast<int64_t>(bytes));
        const bool has_all = !connected_[static_cast<size_t>(rank)]->all_gather(part).empty();
        std::vector<std::byte> found(2 * bytes);
        memory.download(found.data(), buffer(rank, 1).data(), static_cast<int64_t>(found.size()));
        memory.wait();
        std::vector<std::byte> want(bytes, std::byte{1});
        want.resize(2 * bytes, std::byte{2});
        const std::scoped_lock lock(mutex);
        are_right = are_right && has_all && found == want;
      });
    }
    for (std::thread& thread : threads) thread.join();
    return are_right;
  }

  Communicator& rank(size_t number) { return *connected_[number]; }

  kernels::DeviceMemory& memory(size_t number) { return devices_[number]->memory(); }

  std::span<std::byte> buffer(int32_t rank, size_t which) {
    return buffers_[3 * static_cast<size_t>(rank) + which].span();
  }

  [[nodiscard]] int num_library_gathers() const { return num_gathers_; }

 private:
  static constexpr int64_t kMostBytes = kernels::most_peer_bytes(2) + 4096;

  class Counted final : public Communicator {
   public:
    Counted(std::unique_ptr<Communicator> of, std::atomic<int>& count)
        : of_(std::move(of)), count_(count) {}

    [[nodiscard]] int32_t rank() const override { return of_->rank(); }

    [[nodiscard]] int32_t size() const override { return of_->size(); }

    std::span<const std::byte* const> all_gather(std::span<const std::byte> part) override {
      ++count_;
      return of_->all_gather(part);
    }

    void fail() override { of_->fail(); }

    [[nodiscard]] bool has_failed() const override { return of_->has_failed(); }

    void watch_failure(std::function<void()> on_failure) override {
      of_->watch_failure(std::move(on_failure));
    }

   private:
    const std::unique_ptr<Communicator> of_;
    std::atomic<int>& count_;
  };

  Expected<std::vector<std::unique_ptr<Communicator>>> counted(const ConnectRanks& connect,
                                                               std::span<const DeviceRank> ranks) {
    return connect(ranks).map([this](auto connected) {
      for (auto& rank : connected) rank = std::make_unique<Counted>(std::move(rank), num_gathers_);
      return connected;
    });
  }

  static kernels::DeviceBuffer room(kernels::DeviceMemory& memory, int64_t bytes) {
    return std::move(*kernels::DeviceBuffer::allocate(memory, bytes, "test"));
  }

  const ShimDevices shim_{2};
  std::vector<std::unique_ptr<kernels::Device>> devices_;
  std::vector<kernels::DeviceBuffer> buffers_;  // by rank: window, received, part
  std::atomic<int> num_gathers_ = 0;
  std::vector<std::unique_ptr<Communicator>> connected_;
};

TEST(CudaPeerRanks, TakeTheLibraryWhereAPartIsTooLargeOrNotOfWords) {
  TwoRanks ranks(std::chrono::minutes(1));
  constexpr auto kMost = static_cast<size_t>(kernels::most_peer_bytes(2));
  EXPECT_TRUE(ranks.exchange(4));
  EXPECT_TRUE(ranks.exchange(kMost));
  EXPECT_EQ(ranks.num_library_gathers(), 0);
  EXPECT_NE(ranks.rank(0).begin_exchange(kMost), nullptr);
  EXPECT_EQ(ranks.rank(0).begin_exchange(kMost + 4), nullptr);
  EXPECT_TRUE(ranks.exchange(kMost + 4));
  EXPECT_TRUE(ranks.exchange(7));
  EXPECT_EQ(ranks.num_library_gathers(), 4);
  EXPECT_TRUE(ranks.exchange(64));
  EXPECT_EQ(ranks.num_library_gathers(), 4);
}

// Rank 1 writes to the half that rank 0 does not read, as a link would that brings other words.
TEST(CudaPeerRanks, AProbeThatFindsOtherWordsLeavesAllToTheLibrary) {
  TwoRanks ranks(std::chrono::seconds(1), 7);
  EXPECT_TRUE(ranks.exchange(4));
  EXPECT_EQ(ranks.num_library_gathers(), 2);
  EXPECT_FALSE(ranks.rank(0).has_failed());
}

// Returns an exchange by rank, recorded.
std::vector<std::unique_ptr<kernels::RecordedWork>> record_exchange(TwoRanks& ranks) {
  std::vector<std::unique_ptr<kernels::RecordedWork>> recorded(2);
  std::vector<std::thread> threads;
  for (int32_t rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      const auto i = static_cast<size_t>(rank);
      ranks.memory(i).begin_recording();
      EXPECT_FALSE(ranks.rank(i).all_gather(ranks.buffer(rank, 2).first(64)).empty());
      recorded[i] = std::move(*ranks.memory(i).end_recording());
    });
  }
  for (std::thread& thread : threads) thread.join();
  return recorded;
}

// Rank 1 replays nothing, which no host notices.
TEST(CudaPeerRanks, ARankThatDoesNotComeEndsTheExchangesOfAll) {
  TwoRanks ranks(std::chrono::seconds(2));  // the probe ends by then
  const auto recorded = record_exchange(ranks);
  recorded[0]->run();
  EXPECT_FALSE(ranks.rank(0).has_failed());
  ranks.memory(0).wait();
  EXPECT_TRUE(ranks.rank(0).has_failed());
  EXPECT_TRUE(ranks.rank(1).has_failed());
  EXPECT_FALSE(ranks.exchange(4));
  EXPECT_FALSE(ranks.exchange(7));
}

// Rank 1 replays nothing, and its library finds an error by itself: no host calls fail().
TEST(CudaPeerRanks, AnErrorThatTheLibraryFindsEndsTheWaitOfAnotherAtOnce) {
  const auto begun = std::chrono::steady_clock::now();
  {
    TwoRanks ranks(std::chrono::seconds(40), 0, *open_nccl(SLUICE_FAKE_NCCL));
    const auto recorded = record_exchange(ranks);
    recorded[0]->run();
    std::thread other([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));  // less would test less
      constexpr size_t kErrorThatIsFoundLater = 14;
      const auto part = ranks.buffer(1, 2).first(kErrorThatIsFoundLater);
      EXPECT_TRUE(ranks.rank(1).all_gather(part).empty());
    });
    ranks.memory(0).wait();
    EXPECT_TRUE(ranks.rank(0).has_failed());
    other.join();
  }
  EXPECT_LT(std::chrono::steady_clock::now() - begun, std::chrono::seconds(30));
}

TEST(CudaPeerRanks, ARankThatFailsEndsTheWaitOfAnother) {
  TwoRanks ranks(std::chrono::minutes(10));
  std::thread other([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    ranks.rank(1).fail();
  });
  EXPECT_TRUE(ranks.rank(0).all_gather(ranks.buffer(0, 2).first(64)).empty());
  ranks.memory(0).wait();
  EXPECT_TRUE(ranks.rank(0).has_failed());
  other.join();
}

}  // namespace
}  // namespace sluice
