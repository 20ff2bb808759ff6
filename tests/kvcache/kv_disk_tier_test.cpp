// SPDX-License-Identifier: Apache-2.0
#include "kvcache/store/kv_disk_tier.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <numeric>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include "engine/core/hex.h"
#include "kernels/attention.h"
#include "kvcache/store/kv_host_tier.h"
#include "kvcache/store/kv_storage.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/tier.h"

namespace sluice {
namespace {

constexpr int32_t kBlockSize = 4;
constexpr int64_t kPayload = 1000;

TEST(KvFile, OnlyTheSealedBlockOfThisNameIsTaken) {
  const std::vector<TokenId> tokens = {1, 2, 3, 4};
  const KvKey parent = kv_root_key("test", {});
  const KvFileName name{kv_next_key(parent, tokens), parent, tokens};
  std::vector<std::byte> file(static_cast<size_t>(kv_file_header_bytes(kBlockSize)) + 100);
  for (size_t i = 0; i < file.size(); ++i) file[i] = static_cast<std::byte>(i);
  seal_kv_file(name, file);
  EXPECT_TRUE(check_kv_file(name, file));
  for (size_t i = 0; i < file.size(); ++i) {
    for (const int bit : {0, 7}) {
      std::vector<std::byte> broken = file;
      broken[i] ^= static_cast<std::byte>(1 << bit);
      EXPECT_FALSE(check_kv_file(name, broken)) << "byte " << i;
    }
  }
  for (size_t size = 0; size < file.size(); ++size) {
    EXPECT_FALSE(check_kv_file(name, std::span(file).first(size))) << size;
  }
  const std::vector<TokenId> others = {1, 2, 3, 5};
  EXPECT_FALSE(check_kv_file({name.key, name.parent, others}, file));
  EXPECT_FALSE(check_kv_file({name.parent, name.parent, tokens}, file));
  EXPECT_FALSE(check_kv_file({name.key, name.key, tokens}, file));
}

KvGroupSpec attention(int32_t num_layers,
                      int32_t num_heads,
                      int32_t head_dim,
                      DType dtype,
                      int32_t num_blocks) {
  const KvPlane plane = {.num_heads = num_heads, .width = head_dim, .dtype = dtype};
  return {.num_blocks = num_blocks, .num_layers = num_layers, .planes = {plane, plane}};
}

TEST(KvStorage, ABlockIsAsLargeAsItsCodesAndScales) {
  EXPECT_EQ(kv_block_bytes(attention(3, 2, 64, DType::kBF16, 1), 16), 3 * 2 * 2 * 16 * 64 * 2);
  EXPECT_EQ(kv_block_bytes(attention(3, 2, 64, DType::kI8, 1), 16), 3 * 2 * 2 * 16 * (64 + 4));
  EXPECT_EQ(kv_block_bytes(attention(3, 2, 64, DType::kF8E4M3, 1), 16), 3 * 2 * 2 * 16 * (64 + 4));
}

// A latent of all heads at once, and a state of 64 tokens beside a plane of tokens.
TEST(KvStorage, ABlockIsAsLargeAsThePlanesOfItsGroup) {
  const KvGroupSpec latent = {.kind = KvGroupKind::kLatent,
                              .num_blocks = 2,
                              .num_layers = 5,
                              .planes = {{.width = 576}}};
  EXPECT_EQ(kv_block_bytes(latent, 16), 5 * 16 * 576 * 2);
  const KvGroupSpec state = {
      .kind = KvGroupKind::kState,
      .interval = 64,
      .num_blocks = 2,
      .num_layers = 3,
      .planes = {{.num_heads = 4,
                  .width = 128,
                  .dtype = DType::kF32,
                  .per = KvPlane::Per::kEntry},
                 {.width = 32}}};
  EXPECT_EQ(kv_block_bytes(state, 16), 3 * (4 * 128 * 4 + 64 * 32 * 2));
  auto storage = KvStorage::create({latent, state}, 16);
  ASSERT_TRUE(storage) << storage.error().message;
  EXPECT_EQ(storage->block_bytes(), kv_block_bytes(latent, 16) + kv_block_bytes(state, 16));
}

TEST(KvStorage, ABlockComesBackWhereItIsPutAndNowhereElse) {
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kI8, DType::kF8E4M3}) {
    auto storage =
        KvStorage::create({attention(3, 2, 20, dtype, 5), attention(1, 1, 16, dtype, 3)}, 8);
    ASSERT_TRUE(storage) << storage.error().message;
    const std::span<std::byte> all = storage->bytes();
    for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<std::byte>(i * 7 + i / 251);
    const std::vector<std::byte> before(all.begin(), all.end());
    std::vector<std::byte> kept(static_cast<size_t>(storage->block_bytes()));
    const KvPiece from[] = {storage->whole(0, BlockId(4)), storage->whole(1, BlockId(0))};
    const KvPiece to[] = {storage->whole(0, BlockId(1)), storage->whole(1, BlockId(2))};
    const auto half_of = [&](std::vector<std::byte>& bytes, int32_t group) {
      const auto first = static_cast<size_t>(storage->block_bytes(0));
      return group == 0 ? std::span(bytes).first(first) : std::span(bytes).subspan(first);
    };
    const auto copy_out = [&](const KvPiece (&pieces)[2], std::vector<std::byte>& bytes) {
      for (const KvPiece& piece : pieces) storage->copy_out(piece, half_of(bytes, piece.group));
      storage->wait();
    };
    copy_out(from, kept);
    EXPECT_TRUE(std::ranges::equal(all, before));
    // Copying in uses the bytes copied out, and changes at most a block's bytes.
    for (const KvPiece& piece : to) storage->copy_in(piece, half_of(kept, piece.group));
    storage->wait();
    std::vector<std::byte> again(kept.size());
    copy_out(to, again);
    EXPECT_EQ(again, kept);
    copy_out(from, again);
    EXPECT_EQ(again, kept);
    size_t changed = 0;
    for (size_t i = 0; i < all.size(); ++i) changed += all[i] != before[i];
    EXPECT_LE(changed, kept.size());
    EXPECT_GT(changed, kept.size() / 2);
    // K of block 1 in layer 2 of group 0, by the layout that the kernels read.
    const std::vector<KvPlaneView> planes = storage->planes(0, 2);
    ASSERT_EQ(planes.size(), 2U);
    const std::byte* const k = planes[0].data;
    const std::byte* const v = planes[1].data;
    const auto half = static_cast<size_t>(2 * kernels::kv_head_bytes(dtype, 20, 8));
    EXPECT_EQ(std::memcmp(k + half, k + 4 * half, half), 0);
    EXPECT_EQ(std::memcmp(v + half, v + 4 * half, half), 0);
    EXPECT_EQ(std::memcmp(k + half, kept.data() + 4 * half, half), 0);
  }
}

class KvDisk : public ::testing::Test {
 protected:
  void open(int64_t max_blocks = 1000) {
    tier_.reset();
    const KvTierOptions options = {.max_bytes = max_blocks * file_bytes(),
                                   .block_size = kBlockSize,
                                   .payload_bytes = kPayload};
    auto tier = create_kv_disk_tier(options, folder_, [this] { wake(); });
    ASSERT_TRUE(tier) << tier.error().message;
    tier_ = std::move(*tier);
  }

  void wake() {
    const std::scoped_lock lock(mutex_);
    ++num_wakes_;
    woken_.notify_all();
  }

  static int64_t file_bytes() { return kv_file_header_bytes(kBlockSize) + kPayload; }

  static std::vector<TokenId> tokens(int i) { return {i, i + 1, i + 2, i + 3}; }

  // Block i of one chain.
  static KvFileName name(int i, const std::vector<TokenId>& ids) {
    KvKey parent = kv_root_key("test", {});
    for (int before = 0; before < i; ++before) parent = kv_next_key(parent, tokens(before));
    return {kv_next_key(parent, ids), parent, ids};
  }

  static KvKey key(int i) { return name(i, tokens(i)).key; }

  std::string path(int i) const {
    const std::vector<TokenId> ids = tokens(i);
    const KvFileName n = name(i, ids);
    return folder_ + "/" + to_hex(n.key) + "-" + to_hex(n.parent) + ".kv";
  }

  bool save(int i) {
    const int32_t buffer = tier_->take_buffer();
    if (buffer == KvTier::kNone) return false;
    std::ranges::fill(tier_->payload(buffer), static_cast<std::byte>(i + 1));
    const std::vector<TokenId> ids = tokens(i);
    return tier_->save(name(i, ids), buffer);
  }

  // Whether the block came back as it was saved.
  bool load(int i) {
    const int32_t buffer = tier_->take_buffer();
    EXPECT_NE(buffer, KvTier::kNone);
    const std::vector<TokenId> ids = tokens(i);
    tier_->load(name(i, ids), buffer, static_cast<uint64_t>(i));
    std::vector<KvTier::Loaded> loaded;
    while (loaded.empty()) {
      {
        std::unique_lock lock(mutex_);
        woken_.wait(lock, [this] { return num_wakes_ > 0; });
        num_wakes_ = 0;
      }
      tier_->collect(loaded);
    }
    EXPECT_EQ(loaded.size(), 1U);
    EXPECT_EQ(loaded[0].ticket, static_cast<uint64_t>(i));
    const std::span<const std::byte> payload = tier_->payload(buffer);
    const bool same = std::ranges::all_of(
        payload, [i](std::byte byte) { return byte == static_cast<std::byte>(i + 1); });
    tier_->give_back(buffer);
    EXPECT_TRUE(!loaded[0].ok || same);
    return loaded[0].ok;
  }

  const testing::TemporaryFolder temporary_;
  const std::string folder_ = temporary_.at("tier");
  std::mutex mutex_;
  std::condition_variable woken_;
  int num_wakes_ = 0;
  std::unique_ptr<KvTier> tier_;  // its thread wakes and writes until it is destroyed
};

TEST_F(KvDisk, BlocksComeBackAlsoAfterARestart) {
  open();
  for (int i = 0; i < 10; ++i) ASSERT_TRUE(save(i));
  for (int i = 9; i >= 0; --i) EXPECT_TRUE(load(i)) << i;
  EXPECT_FALSE(tier_->contains(key(10)));
  EXPECT_FALSE(load(10));
  open();
  EXPECT_EQ(tier_->num_blocks(), 10);
  for (int i = 0; i < 10; ++i) EXPECT_TRUE(load(i)) << i;
}

TEST_F(KvDisk, WhatIsTruncatedCorruptOrAnothersIsNotThere) {
  open();
  for (int i = 0; i < 6; ++i) ASSERT_TRUE(save(i));
  ASSERT_TRUE(load(5));
  open();
  std::filesystem::resize_file(path(0), static_cast<uintmax_t>(file_bytes() - 1));
  {
    std::fstream file(path(1), std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(file_bytes() - 10);
    file.put('x');
  }
  std::filesystem::copy_file(path(3), path(2), std::filesystem::copy_options::overwrite_existing);
  std::filesystem::remove(path(4));
  for (const int i : {0, 1, 2, 4}) {
    EXPECT_TRUE(tier_->contains(key(i)));
    EXPECT_FALSE(load(i)) << i;
    EXPECT_FALSE(tier_->contains(key(i)));
  }
  EXPECT_TRUE(load(3));
  EXPECT_TRUE(load(5));
  // Written again, they are there again; a wrong size is seen at the start already.
  open();
  EXPECT_FALSE(tier_->contains(key(0)));
  for (const int i : {0, 1, 2, 4}) ASSERT_TRUE(save(i));
  for (const int i : {0, 1, 2, 4}) EXPECT_TRUE(load(i)) << i;
}

TEST_F(KvDisk, StrangeNamesInTheFolderAreLeftAlone) {
  std::filesystem::create_directories(folder_ + "/sub.kv");
  std::ofstream(folder_ + "/notes.txt") << "mine";
  std::ofstream(folder_ + "/" + std::string(32, '0') + "-" + std::string(32, '1') + ".kv")
      << "short";
  open();
  EXPECT_EQ(tier_->num_blocks(), 0);
  tier_.reset();
  EXPECT_TRUE(std::filesystem::exists(folder_ + "/notes.txt"));
  EXPECT_TRUE(std::filesystem::exists(folder_ + "/sub.kv"));
}

TEST_F(KvDisk, HoldsNoMoreThanItsSizeAndKeepsTheBeginning) {
  open(5);
  for (int i = 0; i < 6; ++i) EXPECT_EQ(save(i), i < 5) << i;
  EXPECT_EQ(tier_->num_blocks(), 5);
  for (int i = 0; i < 5; ++i) EXPECT_TRUE(load(i)) << i;
  // Another chain takes the place of what was used longest ago, from its end.
  const std::vector<TokenId> other = {90, 91, 92, 93};
  const KvKey root = kv_root_key("other", {});
  EXPECT_TRUE(tier_->save({kv_next_key(root, other), root, other}, tier_->take_buffer()));
  EXPECT_FALSE(tier_->contains(key(4)));
  EXPECT_TRUE(load(3));  // and everything before it is written and removed
  int64_t num_files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder_)) {
    num_files += entry.path().extension() == ".kv";
  }
  EXPECT_EQ(num_files, 5);
  open(2);
  EXPECT_EQ(tier_->num_blocks(), 2);
}

TEST_F(KvDisk, MemoryOfTheHostDoesTheSameWithoutARestart) {
  const KvTierOptions options = {
      .max_bytes = 5 * file_bytes() + 100, .block_size = kBlockSize, .payload_bytes = kPayload};
  auto tier = create_kv_host_tier(options, [this] { wake(); });
  ASSERT_TRUE(tier) << tier.error().message;
  tier_ = std::move(*tier);
  for (int i = 0; i < 6; ++i) EXPECT_EQ(save(i), i < 5) << i;
  for (int i = 4; i >= 0; --i) EXPECT_TRUE(load(i)) << i;
  EXPECT_FALSE(load(5));
  for (int chain = 0; chain < 3; ++chain) {
    const std::vector<TokenId> other = {90, 91, 92, chain};
    const KvKey root = kv_root_key("other", {});
    EXPECT_TRUE(tier_->save({kv_next_key(root, other), root, other}, tier_->take_buffer()));
  }
  for (int i = 0; i < 5; ++i) EXPECT_EQ(load(i), i < 2) << i;
  EXPECT_FALSE(create_kv_host_tier(
      {.max_bytes = 10, .block_size = kBlockSize, .payload_bytes = kPayload}, [] {}));
}

TEST_F(KvDisk, TellsWhatHasBeenWrittenAndWhatIsGone) {
  open(5);
  std::vector<std::pair<KvKey, bool>> told;
  tier_->set_listener(
      [&told](const KvKey& changed, bool is_there) { told.emplace_back(changed, is_there); });
  for (int i = 0; i < 5; ++i) ASSERT_TRUE(save(i));
  EXPECT_TRUE(told.empty());  // not written yet, or not known to be
  ASSERT_TRUE(load(0));       // after all of them
  ASSERT_EQ(told.size(), 5U);
  for (int i = 0; i < 5; ++i) {
    EXPECT_EQ(told[static_cast<size_t>(i)], std::pair(key(i), true));
  }
  told.clear();
  const std::vector<TokenId> other = {90, 91, 92, 93};
  const KvKey root = kv_root_key("other", {});
  ASSERT_TRUE(tier_->save({kv_next_key(root, other), root, other}, tier_->take_buffer()));
  ASSERT_TRUE(load(3));
  ASSERT_EQ(told.size(), 2U);
  EXPECT_EQ(told[0], std::pair(key(4), false));
  EXPECT_EQ(told[1], std::pair(kv_next_key(root, other), true));
  told.clear();
  std::filesystem::resize_file(path(3), 10);
  EXPECT_FALSE(load(3));
  ASSERT_EQ(told.size(), 1U);
  EXPECT_EQ(told[0], std::pair(key(3), false));
}

TEST_F(KvDisk, WhatIsBrokenTakesNoRoom) {
  open();
  ASSERT_TRUE(save(0));
  ASSERT_TRUE(save(1));
  ASSERT_TRUE(load(1));
  std::filesystem::resize_file(path(1), static_cast<uintmax_t>(file_bytes() - 1));
  EXPECT_FALSE(load(1));
  EXPECT_TRUE(load(0));  // and everything before it is done
  EXPECT_FALSE(std::filesystem::exists(path(1)));
}

TEST_F(KvDisk, FoldersOfOthersAreRemovedUnlessAProcessUsesThem) {
  const auto make = [](const std::string& folder) {
    auto tier = create_kv_disk_tier(
        {.max_bytes = 1 << 20, .block_size = kBlockSize, .payload_bytes = kPayload},
        folder,
        [] {});
    EXPECT_TRUE(tier) << tier.error().message;
    const int32_t buffer = (*tier)->take_buffer();
    const std::vector<TokenId> ids = tokens(0);
    EXPECT_TRUE((*tier)->save(name(0, ids), buffer));
    return std::move(*tier);
  };
  const std::string unused = temporary_.at("unused");
  const std::string strange = temporary_.at("strange");
  const std::string foreign = temporary_.at("foreign");
  make(unused);
  std::ofstream(unused + "/0-1.kv.2.tmp") << "a part";
  make(strange);
  std::ofstream(strange + "/notes.txt") << "mine";
  std::filesystem::create_directories(foreign);
  std::ofstream(foreign + "/model.kv") << "no tier made it";
  open();
  ASSERT_TRUE(save(0));
  ASSERT_TRUE(load(0));
  std::filesystem::create_directory_symlink(folder_, temporary_.at("link"));
  remove_unused_kv_folders(temporary_.path());
  EXPECT_FALSE(std::filesystem::exists(unused));
  EXPECT_FALSE(std::filesystem::exists(strange + "/in-use.lock"));
  EXPECT_TRUE(std::filesystem::exists(strange + "/notes.txt"));
  EXPECT_TRUE(std::filesystem::exists(foreign + "/model.kv"));
  EXPECT_TRUE(std::filesystem::exists(path(0)));
  EXPECT_TRUE(load(0));
  open();  // the earlier use ends behind the next one's begin
  EXPECT_TRUE(load(0));
  tier_.reset();
  remove_unused_kv_folders(temporary_.path());
  EXPECT_FALSE(std::filesystem::exists(folder_));
  remove_unused_kv_folders(temporary_.at("nowhere"));
}

TEST_F(KvDisk, FoldersWithoutALockGoAfterAMonthIfATierMadeAllInThem) {
  const auto age = [](const std::string& path, int days) {
    const auto now = std::filesystem::file_time_type::clock::now();
    std::filesystem::last_write_time(path, now - std::chrono::hours(24) * days);
  };
  const auto make = [&](const char* name, const std::vector<std::string>& files) {
    const std::string folder = temporary_.at(name);
    std::filesystem::create_directories(folder);
    for (const std::string& file : files) {
      std::ofstream(folder + "/" + file) << "bytes";
      age(folder + "/" + file, 31);
    }
    age(folder, 31);
    return folder;
  };
  const std::string block = std::string(32, 'a') + "-" + std::string(32, '0') + ".kv";
  const std::string old = make("old", {block, block + ".1.tmp"});
  const std::string foreign = make("foreign", {block, "model.kv"});
  const std::string read = make("read", {block});
  const std::string opened = make("opened", {block});
  const std::string empty = make("empty", {});
  age(read + "/" + block, 1);
  age(opened, 29);
  remove_unused_kv_folders(temporary_.path());
  EXPECT_FALSE(std::filesystem::exists(old));
  for (const std::string& folder : {foreign, read, opened}) {
    EXPECT_TRUE(std::filesystem::exists(folder + "/" + block)) << folder;
  }
  EXPECT_TRUE(std::filesystem::exists(empty));
}

// While some begin to use a folder, others remove it: whoever uses it keeps what is written.
TEST_F(KvDisk, AFolderThatIsRemovedWhileItsUseBeginsIsMadeAgain) {
  const int num_rounds = testing::sample_of(200, 5'000);
  const auto remove = [this](const std::stop_token& stop) {
    while (!stop.stop_requested()) remove_unused_kv_folders(temporary_.path());
  };
  const std::jthread remover(remove);
  const std::jthread another(remove);
  for (int i = 0; i < num_rounds && !HasFailure(); ++i) {
    ASSERT_NO_FATAL_FAILURE(open());
    ASSERT_TRUE(save(0));
    EXPECT_TRUE(load(0));
    EXPECT_TRUE(std::filesystem::exists(path(0)));
    tier_.reset();
  }
}

TEST_F(KvDisk, AFolderThatWasTakenAwayIsMadeAgain) {
  ASSERT_NO_FATAL_FAILURE(open());
  ASSERT_TRUE(save(0));
  ASSERT_TRUE(load(0));
  std::filesystem::remove_all(folder_);
  EXPECT_FALSE(load(0));
  ASSERT_TRUE(save(1));
  EXPECT_TRUE(load(1));
  EXPECT_TRUE(std::filesystem::exists(folder_ + "/in-use.lock"));
}

TEST_F(KvDisk, RemovalStopsBetweenTwoFiles) {
  ASSERT_NO_FATAL_FAILURE(open());
  ASSERT_TRUE(save(0));
  tier_.reset();
  std::stop_source stop;
  stop.request_stop();
  remove_unused_kv_folders(temporary_.path(), stop.get_token());
  EXPECT_TRUE(std::filesystem::exists(path(0)));
  remove_unused_kv_folders(temporary_.path());
  EXPECT_FALSE(std::filesystem::exists(folder_));
}

// Two tiers of equal process ids, as of two containers on one volume.
TEST_F(KvDisk, TwoThatWriteTheSameBlocksAtOnceBothSucceed) {
  constexpr int kNumBlocks = 30;
  const auto write = [this](uint64_t& num_written) {
    auto tier = create_kv_disk_tier({.max_bytes = int64_t{64} << 20,
                                     .block_size = kBlockSize,
                                     .payload_bytes = int64_t{1} << 20,
                                     .least_buffers = kNumBlocks},
                                    folder_,
                                    [] {});
    ASSERT_TRUE(tier) << tier.error().message;
    const size_t num_buffers = (*tier)->num_free_buffers();
    for (int i = 0; i < kNumBlocks; ++i) {
      const std::vector<TokenId> ids = tokens(i);
      ASSERT_TRUE((*tier)->save(name(i, ids), (*tier)->take_buffer()));
    }
    std::vector<KvTier::Loaded> loaded;
    while ((*tier)->num_free_buffers() < num_buffers) {
      (*tier)->collect(loaded);
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    num_written = (*tier)->num_written();
  };
  uint64_t first = 0;
  uint64_t second = 0;
  std::thread beside([&] { write(first); });
  write(second);
  beside.join();
  EXPECT_EQ(first, kNumBlocks);
  EXPECT_EQ(second, kNumBlocks);
}

TEST_F(KvDisk, AFolderThatCannotBeUsedIsRefused) {
  std::ofstream(folder_) << "a file";
  const auto tier = create_kv_disk_tier(
      {.max_bytes = 1 << 20, .block_size = kBlockSize, .payload_bytes = kPayload},
      folder_ + "/sub",
      [] {});
  ASSERT_FALSE(tier);
  EXPECT_EQ(tier.error().param, "kv-disk-path");
  const auto small = create_kv_disk_tier(
      {.max_bytes = 10, .block_size = kBlockSize, .payload_bytes = kPayload}, folder_, [] {});
  ASSERT_FALSE(small);
  EXPECT_EQ(small.error().param, "kv-disk-size");
}

}  // namespace
}  // namespace sluice
