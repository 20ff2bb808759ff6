// SPDX-License-Identifier: Apache-2.0
// A file written in pieces, in any order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "engine/core/status.h"

namespace sluice {

class OutputFile {
 public:
  // Creates `path` with its final length. kPermissionDenied, kResourceExhausted (no room on the
  // disk) or kInvalidArgument, in one line with the path.
  static Expected<OutputFile> create(const std::string& path, int64_t bytes);

  OutputFile(OutputFile&& other) noexcept;
  OutputFile& operator=(OutputFile&& other) noexcept;
  ~OutputFile();

  // Writes all of `bytes` at `offset`. Errors as in create().
  Expected<void> write(int64_t offset, std::span<const std::byte> bytes);
  // Returns after everything is on the disk.
  Expected<void> close();

 private:
  OutputFile(std::string path, int descriptor) : path_(std::move(path)), descriptor_(descriptor) {}

  std::string path_;
  int descriptor_ = -1;
};

}  // namespace sluice
