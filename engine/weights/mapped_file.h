// SPDX-License-Identifier: Apache-2.0
// A whole file, read-only, mapped; unmapped at the end of its life.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <utility>

#include "engine/core/status.h"

namespace sluice {

class MappedFile {
 public:
  // kNotFound, kPermissionDenied or kDataLoss (not a regular file, or empty), in one line. The file
  // must not shrink while it is mapped: reading past its end is a SIGBUS.
  static Expected<MappedFile> open(const std::string& path);

  MappedFile(MappedFile&& other) noexcept : bytes_(std::exchange(other.bytes_, {})) {}

  MappedFile& operator=(MappedFile&& other) noexcept {
    std::swap(bytes_, other.bytes_);
    return *this;
  }

  ~MappedFile();

  [[nodiscard]] std::span<const std::byte> bytes() const { return bytes_; }

 private:
  explicit MappedFile(std::span<const std::byte> bytes) : bytes_(bytes) {}

  std::span<const std::byte> bytes_;
};

// Advice on memory, usually a part of a mapping: that it will be read soon, and that it has been
// read for the last time, so that its pages are the first to go where memory is short.
void advise_needed(std::span<const std::byte> bytes);
void advise_read(std::span<const std::byte> bytes);

}  // namespace sluice
