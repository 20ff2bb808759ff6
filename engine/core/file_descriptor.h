// SPDX-License-Identifier: Apache-2.0
// A file descriptor that is closed with its owner: movable, one thread at a time.
#pragma once

#include <unistd.h>

#include <utility>

namespace sluice {

class FileDescriptor {
 public:
  // Takes over an open descriptor, or none if it is negative.
  explicit FileDescriptor(int fd = -1) : fd_(fd) {}

  ~FileDescriptor() {
    if (fd_ >= 0) ::close(fd_);
  }

  FileDescriptor(FileDescriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}

  FileDescriptor& operator=(FileDescriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }

  // Returns it; negative: there is none.
  [[nodiscard]] int get() const { return fd_; }

  [[nodiscard]] bool is_open() const { return fd_ >= 0; }

 private:
  int fd_;
};

}  // namespace sluice
