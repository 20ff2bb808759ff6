// SPDX-License-Identifier: Apache-2.0
// The CPU backend's memory, through the interface of devices.
#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <cstring>
#include <thread>
#include <vector>

#include "kernels/device.h"
#include "kernels/device_memory.h"
#include "tests/support/allocation_meter.h"

namespace sluice::kernels {
namespace {

std::vector<std::byte> numbered(size_t size) {
  std::vector<std::byte> bytes(size);
  for (size_t i = 0; i < size; ++i) bytes[i] = static_cast<std::byte>(i % 251);
  return bytes;
}

TEST(HostMemory, IsThatOfACpuDevice) {
  const auto device = Device::create({.threads = 1});
  ASSERT_TRUE(device.has_value());
  EXPECT_EQ(&(*device)->memory(), &host_memory());
  EXPECT_TRUE(host_memory().is_host());
}

TEST(HostMemory, GivesZerosOnPagesAndTakesThemBack) {
  for (const auto pages : {AlignedBuffer::Pages::kSmall, AlignedBuffer::Pages::kHuge}) {
    auto buffer = DeviceBuffer::allocate(host_memory(), 10000, "test", pages);
    ASSERT_TRUE(buffer.has_value());
    EXPECT_EQ(buffer->size(), 10000U);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer->data()) % 256, 0U);
    for (const std::byte byte : buffer->span()) ASSERT_EQ(byte, std::byte{0});
    DeviceBuffer moved = std::move(*buffer);
    EXPECT_EQ(moved.size(), 10000U);
  }
  EXPECT_DEATH(
      {
        std::byte byte{};
        host_memory().release(&byte);
      },
      "erase");
  const auto empty = DeviceBuffer::allocate(host_memory(), 0, "test");
  ASSERT_TRUE(empty.has_value());
  EXPECT_EQ(empty->data(), nullptr);
  EXPECT_EQ(&DeviceBuffer().memory(), &host_memory());
}

TEST(HostMemory, SaysHowMuchTheSystemHasNot) {
  const auto none = DeviceBuffer::allocate(host_memory(), int64_t{1} << 60, "KV cache");
  ASSERT_FALSE(none.has_value());
  EXPECT_EQ(none.error().code, ErrorCode::kResourceExhausted);
  EXPECT_NE(none.error().message.find("KV cache"), std::string::npos);
}

// Engines call these functions in every step.
TEST(HostMemory, CopiesAtOnceAndWithoutAllocating) {
  DeviceMemory& memory = host_memory();
  const std::vector<std::byte> source = numbered(4096);
  std::vector<std::byte> target(4096);
  std::vector<std::byte> rows(4096);
  const std::array parts = {
      DeviceMemory::Part{.begin = 8, .bytes = 4},
      DeviceMemory::Part{.begin = 64, .bytes = 16, .stride = 32, .num_rows = 3}};
  const auto event = memory.make_event();
  const auto later = memory.make_event();
  reset_allocation_meter();
  memory.enter();
  memory.upload(target.data(), source.data(), 100);
  memory.download(target.data() + 100, source.data() + 100, 100);
  memory.copy(target.data() + 200, source.data() + 200, 3896);
  memory.copy(target.data(), target.data(), 4096);
  memory.upload(target.data(), nullptr, 0);
  memory.upload_parts(rows.data(), source.data(), parts);
  event->record();
  event->wait();
  later->record();
  memory.wait();
  const double seconds = later->seconds_since(*event);
  const size_t num_allocated = num_allocations();
  EXPECT_EQ(num_allocated, 0U);
  EXPECT_GE(seconds, 0);
  EXPECT_EQ(target, source);
  for (size_t i = 0; i < rows.size(); ++i) {
    const bool is_copied = (i >= 8 && i < 12) || (i >= 64 && i < 64 + 3 * 32 && (i - 64) % 32 < 16);
    ASSERT_EQ(rows[i], is_copied ? source[i] : std::byte{0}) << i;
  }
}

TEST(HostMemory, RecordsNothing) {
  host_memory().begin_recording();
  const auto recorded = host_memory().end_recording();
  ASSERT_FALSE(recorded.has_value());
  EXPECT_EQ(recorded.error().code, ErrorCode::kUnsupported);
}

TEST(HostMemory, IsForAnyThread) {
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([] {
      for (int j = 0; j < 200; ++j) {
        ASSERT_TRUE(DeviceBuffer::allocate(host_memory(), 64, "test").has_value());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace sluice::kernels
