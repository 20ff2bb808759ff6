// SPDX-License-Identifier: Apache-2.0
// Made-up system information.
#pragma once

#include <filesystem>
#include <fstream>
#include <string>

#include "tests/support/temporary_folder.h"

namespace sluice::testing {

// A folder with made-up /proc and /sys files.
class FakeRoot {
 public:
  FakeRoot& with(const std::string& file, const std::string& text) {
    const std::filesystem::path whole = path() + file;
    std::filesystem::create_directories(whole.parent_path());
    std::ofstream(whole) << text;
    return *this;
  }

  [[nodiscard]] const std::string& path() const { return folder_.path(); }

 private:
  TemporaryFolder folder_;
};

}  // namespace sluice::testing
