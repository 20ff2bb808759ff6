// SPDX-License-Identifier: Apache-2.0
#include "kvcache/transport/shm_ring.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include "tests/support/kv_pair.h"

namespace sluice {
namespace {

constexpr uint64_t kBytes = kShmLeastRingBytes;

// Two mappings, as of two processes, and a third one that the test scribbles on.
struct Rig {
  Rig() : file(*ShmRing::make_file(kBytes)) {
    writer = std::move(*ShmRing::map(file, kBytes));
    reader = std::move(*ShmRing::map(file, kBytes));
    shared =
        static_cast<std::byte*>(mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0));
  }

  ~Rig() {
    munmap(shared, 4096);
    close(file);
  }

  void set(size_t at, uint64_t value) { std::memcpy(shared + at, &value, sizeof(value)); }

  const int file;
  std::unique_ptr<ShmRing> writer;
  std::unique_ptr<ShmRing> reader;
  std::byte* shared;
};

constexpr size_t kWrittenAt = 0;
constexpr size_t kReadAt = 64;

TEST(ShmRing, BytesComeOutInOrderWhateverTheSizes) {
  Rig rig;
  const auto bytes = test::test_bytes(5'000'000, 1);
  std::vector<std::byte> out(bytes.size());
  std::mt19937_64 random(2);
  size_t written = 0;
  size_t read = 0;
  bool wakes = false;
  while (read < bytes.size()) {
    const size_t most = random() % 3 == 0 ? 7 : 2 * kBytes;
    const auto put =
        rig.writer->write(std::span(bytes).subspan(
                              written, std::min<size_t>(random() % most, bytes.size() - written)),
                          wakes);
    ASSERT_TRUE(put.has_value());
    written += *put;
    ASSERT_LE(written - read, kBytes);
    const auto got = rig.reader->read(
        std::span(out).subspan(read, std::min<size_t>(random() % most, bytes.size() - read)),
        nullptr,
        wakes);
    ASSERT_TRUE(got.has_value());
    read += *got;
    ASSERT_LE(read, written);
  }
  EXPECT_EQ(out, bytes);
}

TEST(ShmRing, CopiedPartsAreReadAfterTheirFrontAndAllOrNothing) {
  Rig rig;
  std::vector<std::byte> out(2 * kBytes);
  bool wakes = false;
  for (size_t round = 0; round < 500; ++round) {  // over the end of the ring
    const auto bytes = test::test_bytes(1 + round * 53 % (kBytes / 2), round);
    kernels::KvChecksum sum;
    ASSERT_EQ(rig.writer->copy(8, test::in_spans(bytes, 3000), sum), true);
    EXPECT_EQ(sum.value(), kernels::kv_checksum(bytes));
    EXPECT_EQ(rig.reader->read(out, nullptr, wakes), 0u);
    const auto front = test::test_bytes(8, round);
    wakes = false;
    rig.writer->publish(front, wakes);
    EXPECT_TRUE(wakes);
    kernels::KvChecksum read_sum;
    ASSERT_EQ(rig.reader->read(out, &read_sum, wakes), 8 + bytes.size());
    EXPECT_TRUE(std::equal(front.begin(), front.end(), out.begin()));
    EXPECT_TRUE(std::equal(bytes.begin(), bytes.end(), out.begin() + 8));
    EXPECT_EQ(read_sum.value(), kernels::kv_checksum(std::span(out).first(8 + bytes.size())));
  }
  // No room for all of it: nothing, and the reader wakes the writer.
  const std::vector<std::byte> most(kBytes - 8);
  const std::vector<std::span<const std::byte>> parts = {most};
  kernels::KvChecksum sum;
  ASSERT_EQ(rig.writer->write(std::span(most).first(1), wakes), 1u);
  EXPECT_EQ(rig.writer->copy(8, parts, sum), false);
  wakes = false;
  ASSERT_EQ(rig.reader->read(out, nullptr, wakes), 1u);
  EXPECT_TRUE(wakes);
  EXPECT_EQ(rig.writer->copy(8, parts, sum), true);
}

TEST(ShmRing, WhoeverWaitsIsWokenAndNobodyElse) {
  Rig rig;
  std::vector<std::byte> bytes(kBytes);
  bool wakes = false;
  EXPECT_EQ(rig.writer->write(std::span(bytes).first(10), wakes), 10u);
  EXPECT_FALSE(wakes);
  EXPECT_EQ(rig.reader->read(bytes, nullptr, wakes), 10u);
  EXPECT_EQ(rig.reader->read(bytes, nullptr, wakes), 0u);
  EXPECT_FALSE(wakes);
  EXPECT_EQ(rig.writer->write(bytes, wakes), kBytes);
  EXPECT_TRUE(wakes);
  wakes = false;
  EXPECT_EQ(rig.writer->write(bytes, wakes), 0u);
  EXPECT_FALSE(wakes);
  EXPECT_EQ(rig.reader->read(std::span(bytes).first(1), nullptr, wakes), 1u);
  EXPECT_TRUE(wakes);
}

// Two threads that only try again when they are woken: a wake that is lost hangs the test.
TEST(ShmRing, NoWakeIsLost) {
  Rig rig;
  constexpr size_t kTotal = size_t{64} << 20;
  std::atomic<uint32_t> bytes_event = 0;
  std::atomic<uint32_t> room_event = 0;
  const auto signal = [](std::atomic<uint32_t>& event) {
    ++event;
    event.notify_one();
  };
  std::thread writer([&] {
    const std::vector<std::byte> chunk(3 * kBytes / 4);
    for (size_t total = 0; total < kTotal;) {
      const uint32_t seen = room_event;
      bool wakes = false;
      const size_t count =
          *rig.writer->write(std::span(chunk).first(std::min(chunk.size(), kTotal - total)), wakes);
      if (wakes) signal(bytes_event);
      total += count;
      if (count == 0) room_event.wait(seen);
    }
  });
  std::vector<std::byte> out(kBytes);
  size_t total = 0;
  while (total < kTotal) {
    const uint32_t seen = bytes_event;
    bool wakes = false;
    const size_t count = *rig.reader->read(out, nullptr, wakes);
    if (wakes) signal(room_event);
    total += count;
    if (count == 0) bytes_event.wait(seen);
  }
  writer.join();
  EXPECT_EQ(total, kTotal);
}

TEST(ShmRing, PositionsThatCannotBeAreTheEndAndNothingElse) {
  std::vector<std::byte> bytes(2 * kBytes);
  bool wakes = false;
  for (const uint64_t value : {kBytes + 11, UINT64_MAX - kBytes, uint64_t{1} << 63, uint64_t{9}}) {
    Rig rig;
    ASSERT_EQ(rig.writer->write(std::span(bytes).first(10), wakes), 10u);
    ASSERT_EQ(rig.reader->read(bytes, nullptr, wakes), 10u);
    rig.set(kWrittenAt, value);
    EXPECT_FALSE(rig.reader->read(bytes, nullptr, wakes).has_value()) << value;
    if (value == 9) continue;  // for the writer that is a reader that has not come far
    rig.set(kReadAt, value);
    EXPECT_FALSE(rig.writer->write(bytes, wakes).has_value()) << value;
  }
}

TEST(ShmRing, OnlySealedFilesOfTheSizeAreMapped) {
  const int file = *ShmRing::make_file(kBytes);
  EXPECT_NE(ftruncate(file, 0), 0);  // what would end a process that has it mapped
  EXPECT_NE(ftruncate(file, 1 << 20), 0);
  EXPECT_NE(fcntl(file, F_ADD_SEALS, F_SEAL_WRITE), 0);
  EXPECT_TRUE(ShmRing::map(file, kBytes).has_value());
  EXPECT_FALSE(ShmRing::map(file, kBytes * 2).has_value());
  EXPECT_FALSE(ShmRing::map(file, kBytes - 1).has_value());
  EXPECT_FALSE(ShmRing::map(file, 0).has_value());
  EXPECT_FALSE(ShmRing::map(file, UINT64_MAX).has_value());
  close(file);
  EXPECT_FALSE(ShmRing::map(file, kBytes).has_value());
  const int open_file = memfd_create("test", MFD_ALLOW_SEALING);
  ASSERT_EQ(ftruncate(open_file, 4096 + kBytes), 0);
  EXPECT_FALSE(ShmRing::map(open_file, kBytes).has_value());
  close(open_file);
}

}  // namespace
}  // namespace sluice
