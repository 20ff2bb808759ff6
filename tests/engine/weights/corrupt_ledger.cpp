// SPDX-License-Identifier: Apache-2.0
#include "tests/engine/weights/corrupt_ledger.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <set>

#include "tests/support/allocation_meter.h"

namespace sluice {
namespace {

constexpr size_t kWanted = 200;
// Allowance for streams, messages and tables of fixed size.
constexpr size_t kFixedBytes = 16 << 10;

std::set<std::string>& ledger() {
  static std::set<std::string> names;
  return names;
}

// Runs after all tests, unless a filter selected some.
class LedgerCheck final : public testing::Environment {
  void TearDown() override {
    std::printf("%zu corrupt files by hand, each refused in one line\n", ledger().size());
    const bool is_whole = testing::GTEST_FLAG(filter) == "*";
    if (is_whole) {
      EXPECT_GE(ledger().size(), kWanted);
    }
  }
};

[[maybe_unused]] const testing::Environment* const registered =
    testing::AddGlobalTestEnvironment(new LedgerCheck);

}  // namespace

CorruptFile::CorruptFile(std::string what, size_t file_bytes)
    : what_(std::move(what)), file_bytes_(file_bytes) {
  reset_allocation_meter();
}

void CorruptFile::refused(const Error& error,
                          const std::string& file_name,
                          const std::string& mentioned) {
  EXPECT_LE(largest_allocation(), 2 * file_bytes_ + kFixedBytes) << what_;
  const std::string& message = error.message;
  EXPECT_TRUE(message.starts_with(file_name + ": ")) << what_ << ": " << message;
  EXPECT_NE(message.find(mentioned), std::string::npos) << what_ << ": " << message;
  EXPECT_EQ(message.find('\n'), std::string::npos) << what_;
  EXPECT_TRUE(ledger().insert(what_).second) << what_ << " twice";
}

}  // namespace sluice
