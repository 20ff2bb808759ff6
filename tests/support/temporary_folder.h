// SPDX-License-Identifier: Apache-2.0
// Where a test writes files.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <system_error>

namespace sluice::testing {

// An empty folder that no other test or run of a test has; it goes with its contents at the end of
// its scope. It is declared before what writes to it, such as an engine, which so ends first.
class TemporaryFolder {
 public:
  TemporaryFolder() : path_(::testing::TempDir() + "sluice_XXXXXX") {
    if (mkdtemp(path_.data()) == nullptr) ADD_FAILURE() << "cannot make " << path_;
  }

  ~TemporaryFolder() {
    std::error_code error;
    std::filesystem::remove_all(path_, error);
    EXPECT_FALSE(error) << path_ << ": " << error.message();
  }

  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  [[nodiscard]] const std::string& path() const { return path_; }

  // The path of what is called `name` in the folder, whether it exists or not.
  [[nodiscard]] std::string at(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

}  // namespace sluice::testing
