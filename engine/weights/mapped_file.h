// SPDX-License-Identifier: Apache-2.0
// A whole file, mapped read-only; the destructor unmaps it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>

#include "engine/core/status.h"

namespace sluice {

// A file's identity when it was opened; times in the file system's own nanoseconds.
struct FileIdentity {
  uint64_t inode = 0;
  int64_t modified_ns = 0;  // mtime
  int64_t changed_ns = 0;   // ctime
  int64_t opened_ns = 0;    // by this machine's clock
};

class MappedFile {
 public:
  // kNotFound, kPermissionDenied or kDataLoss (not a regular file, or empty), in one line. The file
  // must not shrink while it is mapped: reading past its end is a SIGBUS.
  static Expected<MappedFile> open(const std::string& path);

  MappedFile(MappedFile&& other) noexcept
      : bytes_(std::exchange(other.bytes_, {})), identity_(other.identity_) {}

  MappedFile& operator=(MappedFile&& other) noexcept {
    std::swap(bytes_, other.bytes_);
    std::swap(identity_, other.identity_);
    return *this;
  }

  ~MappedFile();

  [[nodiscard]] std::span<const std::byte> bytes() const { return bytes_; }

  [[nodiscard]] const FileIdentity& identity() const { return identity_; }

 private:
  MappedFile(std::span<const std::byte> bytes, const FileIdentity& identity)
      : bytes_(bytes), identity_(identity) {}

  std::span<const std::byte> bytes_;
  FileIdentity identity_;
};

// Advise the kernel on memory, usually a part of a mapping: it will be read soon; or it was read
// for the last time, so that its pages are evicted first when memory is short.
void advise_needed(std::span<const std::byte> bytes);
void advise_read(std::span<const std::byte> bytes);

}  // namespace sluice
