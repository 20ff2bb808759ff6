// SPDX-License-Identifier: Apache-2.0
#include "engine/weights/packed_cache.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/temporary_folder.h"

namespace sluice {
namespace {

constexpr size_t kSection = size_t{8} << 20;

std::vector<std::byte> read_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::vector<char> text((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

void write_file(const std::string& path, std::span<const std::byte> bytes) {
  std::ofstream out(path, std::ios::binary);
  out.write(reinterpret_cast<const char*>(bytes.data()),
            static_cast<std::streamsize>(bytes.size()));
}

class PackedFile : public ::testing::Test {
 protected:
  void SetUp() override {
    arena_.resize(2 * kSection + 4160);  // three sections
    for (size_t i = 0; i < arena_.size(); ++i) arena_[i] = static_cast<std::byte>(i * 31 + i / 977);
    contents_ = {.key = {.build = 1,
                         .source = 2,
                         .layout = {.hash = 3, .num_matrices = 3, .bytes = arena_.size()}},
                 .content_hashes = {100, 200, 300},
                 .arena = arena_};
  }

  Expected<void> write() {
    const std::atomic<bool> stop = false;
    return write_packed_cache(path_, contents_, stop);
  }

  std::string refusal(const PackedKey& key) {
    const Expected<PackedCache> cache = PackedCache::open(path_, key);
    return cache ? "" : cache.error().message;
  }

  // Lists the names in the folder.
  std::vector<std::string> names() const {
    std::vector<std::string> found;
    std::error_code error;
    for (const auto& entry : std::filesystem::directory_iterator(folder_, error)) {
      found.push_back(entry.path().filename().string());
    }
    return found;
  }

  const testing::TemporaryFolder temporary_;
  const std::string folder_ = temporary_.at("packed");  // made by the first write
  std::string path_ = folder_ + "/model.packed";
  std::vector<std::byte> arena_;
  PackedContents contents_;
};

TEST_F(PackedFile, HoldsWhatWasWritten) {
  EXPECT_EQ(PackedCache::open(path_, contents_.key).error().code, ErrorCode::kNotFound);
  ASSERT_TRUE(write().has_value());
  EXPECT_EQ(names(), std::vector<std::string>{"model.packed"});
  const Expected<PackedCache> cache = PackedCache::open(path_, contents_.key);
  ASSERT_TRUE(cache.has_value()) << cache.error().message;
  EXPECT_TRUE(std::ranges::equal(cache->arena(), arena_));
  EXPECT_EQ(reinterpret_cast<uintptr_t>(cache->arena().data()) % 64, 0U);
  for (size_t i = 0; i < 3; ++i) EXPECT_EQ(cache->content_hash(i), contents_.content_hashes[i]);
}

TEST_F(PackedFile, ASmallArenaTakesNoHugePage) {
  contents_.arena = contents_.arena.first(128);
  contents_.key.layout.bytes = 128;
  ASSERT_TRUE(write().has_value());
  EXPECT_EQ(std::filesystem::file_size(path_), 4096U + 128U);
  EXPECT_EQ(refusal(contents_.key), "");
}

TEST_F(PackedFile, ThatOfAnythingElseIsRefusedByName) {
  ASSERT_TRUE(write().has_value());
  PackedKey key = contents_.key;
  key.build = 9;
  EXPECT_EQ(refusal(key), "written by another build");
  key = contents_.key;
  key.source = 9;
  EXPECT_EQ(refusal(key), "the model's files have changed");
  key = contents_.key;
  key.layout.hash = 9;
  EXPECT_EQ(refusal(key), "another layout");
  // Impossible sizes, including ones whose sum does not fit 64 bits.
  for (const uint64_t number : {uint64_t{0}, uint64_t{4}, uint64_t{1} << 61, ~uint64_t{0}}) {
    key = contents_.key;
    key.layout.num_matrices = number;
    EXPECT_EQ(refusal(key), "another layout") << number;
    key = contents_.key;
    key.layout.bytes = number;
    EXPECT_EQ(refusal(key), "another layout") << number;
  }
}

// The file has matching impossible sizes, as an attacker would write them.
TEST_F(PackedFile, SizesThatAgreeButDoNotFitAreRefused) {
  std::vector<std::byte> file(8192);
  std::memcpy(file.data(), "SLUIPW01", 8);
  for (const uint64_t number : {uint64_t{1} << 40, uint64_t{1} << 61, ~uint64_t{0}}) {
    const PackedKey key{.layout = {.num_matrices = number, .bytes = number}};
    std::memcpy(&file[32], &number, 8);
    std::memcpy(&file[40], &number, 8);
    const Expected<PackedParts> parts = parse_packed_cache(file, key);
    ASSERT_FALSE(parts.has_value());
    EXPECT_EQ(parts.error().message, "another size than its header says");
  }
}

TEST_F(PackedFile, EveryDamageIsFound) {
  ASSERT_TRUE(write().has_value());
  std::vector<std::byte> file = read_file(path_);
  const size_t header = file.size() - arena_.size();
  ASSERT_TRUE(parse_packed_cache(file, contents_.key).has_value());
  EXPECT_EQ(header, size_t{2} << 20);
  constexpr size_t kTablesEnd = 64 + 8 * (3 + 3);  // matrices, sections
  for (size_t at = 0; at < kTablesEnd; ++at) {
    file[at] ^= std::byte{4};
    EXPECT_FALSE(parse_packed_cache(file, contents_.key).has_value()) << at;
    file[at] ^= std::byte{4};
  }
  for (const size_t at : {header, header + kSection, header + 2 * kSection, file.size() - 1}) {
    file[at] ^= std::byte{4};
    write_file(path_, file);
    EXPECT_EQ(refusal(contents_.key),
              "the checksum of section " + std::to_string((at - header) / kSection) + " is wrong");
    file[at] ^= std::byte{4};
  }
  write_file(path_, file);
  EXPECT_EQ(refusal(contents_.key), "");
}

TEST_F(PackedFile, EveryOtherLengthIsRefused) {
  ASSERT_TRUE(write().has_value());
  const std::vector<std::byte> file = read_file(path_);
  const size_t header = file.size() - arena_.size();
  for (const size_t length : {size_t{1},
                              size_t{63},
                              size_t{64},
                              header - 1,
                              header,
                              header + kSection,
                              file.size() - 1}) {
    const std::vector<std::byte> part(file.begin(),
                                      file.begin() + static_cast<std::ptrdiff_t>(length));
    EXPECT_FALSE(parse_packed_cache(part, contents_.key).has_value()) << length;
    std::filesystem::resize_file(path_, length);
    EXPECT_NE(refusal(contents_.key), "") << length;
  }
  std::filesystem::resize_file(path_, 0);
  EXPECT_NE(refusal(contents_.key), "");
  std::vector<std::byte> longer = file;
  longer.push_back(std::byte{0});
  EXPECT_FALSE(parse_packed_cache(longer, contents_.key).has_value());
}

TEST_F(PackedFile, ReplacesWhatIsThereAndMappingsOfThatStay) {
  ASSERT_TRUE(write().has_value());
  const Expected<PackedCache> old = PackedCache::open(path_, contents_.key);
  ASSERT_TRUE(old.has_value());
  const std::vector<std::byte> before = arena_;
  arena_[5] ^= std::byte{1};
  contents_.key.build = 7;
  ASSERT_TRUE(write().has_value());
  EXPECT_TRUE(std::ranges::equal(old->arena(), before));
  EXPECT_EQ(refusal(contents_.key), "");
}

TEST_F(PackedFile, WhatADeadWriterLeftIsWrittenOver) {
  std::filesystem::create_directories(folder_);
  write_file(path_ + ".partial", std::vector<std::byte>(size_t{40} << 20, std::byte{7}));
  ASSERT_TRUE(write().has_value());
  EXPECT_EQ(refusal(contents_.key), "");
  EXPECT_EQ(names(), std::vector<std::string>{"model.packed"});
}

TEST_F(PackedFile, ALivingWriterIsLeftAlone) {
  std::filesystem::create_directories(folder_);
  const std::string partial = path_ + ".partial";
  write_file(partial, std::vector<std::byte>(100, std::byte{7}));
  const int fd = ::open(partial.c_str(), O_RDWR | O_CLOEXEC);
  ASSERT_EQ(flock(fd, LOCK_EX | LOCK_NB), 0);
  const Expected<void> written = write();
  ASSERT_FALSE(written.has_value());
  EXPECT_EQ(written.error().code, ErrorCode::kUnavailable);
  EXPECT_EQ(std::filesystem::file_size(partial), 100U);
  ::close(fd);
  EXPECT_TRUE(write().has_value());
}

// Each writer opens the draft separately, so their locks exclude each other like processes'.
TEST_F(PackedFile, OfWritersAtTheSameTimeOneWritesAndReadersSeeAllOrNothing) {
  std::atomic<int> written = 0;
  std::atomic<int> left = 6;
  std::vector<std::thread> threads;
  for (int i = 0; i < 6; ++i) {
    threads.emplace_back([&] {
      const Expected<void> result = write();
      if (result) ++written;
      EXPECT_TRUE(result || result.error().code == ErrorCode::kUnavailable);
      --left;
    });
  }
  while (left > 0) {
    const Expected<PackedCache> cache = PackedCache::open(path_, contents_.key);
    EXPECT_TRUE(cache || cache.error().code == ErrorCode::kNotFound);
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_GE(written, 1);
  EXPECT_EQ(refusal(contents_.key), "");
  EXPECT_EQ(names(), std::vector<std::string>{"model.packed"});
}

// The time of change is the time of the last use.
TEST_F(PackedFile, FilesUsedLongestAgoMakeRoom) {
  const auto write_used_at = [this](const std::string& name, time_t seconds) {
    path_ = folder_ + "/" + name;
    ASSERT_TRUE(write().has_value());
    const timespec times[] = {{.tv_sec = seconds, .tv_nsec = 0}, {.tv_sec = seconds, .tv_nsec = 0}};
    ASSERT_EQ(utimensat(AT_FDCWD, path_.c_str(), times, 0), 0);
  };
  write_used_at("a.packed", 1000);
  write_used_at("b.packed", 3000);
  write_used_at("c.packed", 2000);
  const auto mapped = PackedCache::open(folder_ + "/a.packed", contents_.key);
  ASSERT_TRUE(mapped.has_value());
  write_file(folder_ + "/mine.packed", std::as_bytes(std::span("another program's, and longer")));
  write_file(folder_ + "/left.packed.partial", arena_);
  ASSERT_EQ(mkfifo((folder_ + "/pipe.packed.partial").c_str(), 0600), 0);
  const uint64_t each = std::filesystem::file_size(path_);

  path_ = folder_ + "/d.packed";
  contents_.max_folder_bytes = 4 * each;
  ASSERT_TRUE(write().has_value());
  EXPECT_EQ(names().size(), 6U);  // a dead writer's draft is gone
  EXPECT_TRUE(std::filesystem::exists(folder_ + "/pipe.packed.partial"));
  EXPECT_FALSE(std::filesystem::exists(folder_ + "/left.packed.partial"));
  contents_.max_folder_bytes = 3 * each - 1;
  ASSERT_TRUE(write().has_value());  // replaces d itself
  EXPECT_FALSE(std::filesystem::exists(folder_ + "/a.packed"));
  EXPECT_FALSE(std::filesystem::exists(folder_ + "/c.packed"));
  EXPECT_TRUE(std::filesystem::exists(folder_ + "/b.packed"));
  EXPECT_TRUE(std::filesystem::exists(folder_ + "/d.packed"));
  EXPECT_TRUE(std::filesystem::exists(folder_ + "/mine.packed"));
  EXPECT_TRUE(std::ranges::equal(mapped->arena(), arena_));
  path_ = folder_ + "//d.packed";  // for a folder named with a trailing slash
  contents_.max_folder_bytes = 2 * each;
  ASSERT_TRUE(write().has_value());
  EXPECT_TRUE(std::filesystem::exists(folder_ + "/b.packed"));
}

TEST_F(PackedFile, OneThatIsLargerThanTheFolderMayBeIsNotWritten) {
  ASSERT_TRUE(write().has_value());
  path_ = folder_ + "/large.packed";
  contents_.max_folder_bytes = arena_.size();
  const auto written = write();
  ASSERT_FALSE(written.has_value());
  EXPECT_EQ(written.error().code, ErrorCode::kResourceExhausted);
  EXPECT_NE(written.error().message.find("--packed-weights-cache-size"), std::string::npos);
  EXPECT_EQ(names(), std::vector<std::string>{"model.packed"});
}

TEST_F(PackedFile, WhereThereIsNoRoomNothingIsLeft) {
  std::filesystem::create_directories(folder_);
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  rlimit small = before;
  small.rlim_cur = kSection;
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  const Expected<void> written = write();
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  std::signal(SIGXFSZ, handler);
  ASSERT_FALSE(written.has_value());
  EXPECT_EQ(written.error().code, ErrorCode::kInternal);
  EXPECT_TRUE(names().empty());
}

TEST_F(PackedFile, AFolderThatCannotBeIsAnError) {
  std::filesystem::create_directories(folder_);
  write_file(folder_ + "/file", arena_);
  path_ = folder_ + "/file/model.packed";
  const Expected<void> written = write();
  ASSERT_FALSE(written.has_value());
  EXPECT_EQ(written.error().code, ErrorCode::kInternal);
}

TEST_F(PackedFile, AStoppedWriterLeavesNothing) {
  const std::atomic<bool> stop = true;
  const Expected<void> written = write_packed_cache(path_, contents_, stop);
  ASSERT_FALSE(written.has_value());
  EXPECT_EQ(written.error().code, ErrorCode::kUnavailable);
  EXPECT_TRUE(names().empty());
}

}  // namespace
}  // namespace sluice
