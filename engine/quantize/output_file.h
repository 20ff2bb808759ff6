// SPDX-License-Identifier: Apache-2.0
// A file that is written in pieces, in any order, under a name of its own until it is whole.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "engine/core/status.h"

namespace sluice {

class OutputFile {
 public:
  // Makes `path` and gives it its length. kPermissionDenied, kResourceExhausted (no room on the
  // disk) or kInvalidArgument, in one line with the path.
  static Expected<OutputFile> create(const std::string& path, int64_t bytes);

  OutputFile(OutputFile&& other) noexcept;
  OutputFile& operator=(OutputFile&& other) noexcept;
  ~OutputFile();

  // All of `bytes`, from `offset` on. Errors as create().
  Expected<void> write(int64_t offset, std::span<const std::byte> bytes);
  // Everything is on the disk when it returns.
  Expected<void> close();

 private:
  OutputFile(std::string path, int descriptor) : path_(std::move(path)), descriptor_(descriptor) {}

  std::string path_;
  int descriptor_ = -1;
};

// The name that `path` has until it is whole: beside it, with the process's number.
std::string unfinished_name(const std::string& path);

}  // namespace sluice
