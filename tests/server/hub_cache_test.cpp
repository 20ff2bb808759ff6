// SPDX-License-Identifier: Apache-2.0
#include "server/hub/cache.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/temporary_folder.h"

namespace sluice::hub {
namespace {

// Threads of one process stand for processes with equal ids, such as those of two containers.
TEST(RepoCache, WritersWithEqualProcessIdsDoNotMeet) {
  const testing::TemporaryFolder folder;
  const RepoCache cache(folder.path(), "org/name");
  const std::string commit(40, 'c');
  ASSERT_TRUE(cache.prepare());
  constexpr int kRounds = 300;
  std::vector<std::string> errors(4);
  std::vector<std::thread> writers;
  for (std::string& error : errors) {
    writers.emplace_back([&cache, &commit, &error] {
      for (int i = 0; i < kRounds && error.empty(); ++i) {
        const auto linked = cache.link(commit, "model.gguf", "etag");
        const auto set = cache.set_ref("main", commit);
        if (!linked) error = linked.error().message;
        if (!set) error = set.error().message;
      }
    });
  }
  for (std::thread& writer : writers) writer.join();
  for (const std::string& error : errors) EXPECT_EQ(error, "");
  EXPECT_EQ(read_small_file(folder.path() + "/models--org--name/refs/main").value(), commit);
  // Nothing unfinished is left.
  int num_entries = 0;
  for ([[maybe_unused]] const auto& entry :
       std::filesystem::directory_iterator(cache.snapshot(commit))) {
    ++num_entries;
  }
  EXPECT_EQ(num_entries, 1);
}

}  // namespace
}  // namespace sluice::hub
