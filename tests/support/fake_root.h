// SPDX-License-Identifier: Apache-2.0
// Made-up system information.
#pragma once

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

namespace sluice::testing {

// A folder with made-up /proc and /sys files.
class FakeRoot {
 public:
  FakeRoot() {
    std::string name = (std::filesystem::temp_directory_path() / "fake_root_XXXXXX").string();
    path_ = mkdtemp(name.data());
  }

  FakeRoot(const FakeRoot&) = delete;
  FakeRoot& operator=(const FakeRoot&) = delete;

  ~FakeRoot() { std::filesystem::remove_all(path_); }

  FakeRoot& with(const std::string& file, const std::string& text) {
    const std::filesystem::path whole = path_ + file;
    std::filesystem::create_directories(whole.parent_path());
    std::ofstream(whole) << text;
    return *this;
  }

  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace sluice::testing
