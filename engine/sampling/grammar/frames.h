// SPDX-License-Identifier: Apache-2.0
// Messages between the engine and its compile process: a length and so many bytes on a socket or
// pipe, and the fields inside.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace sluice {

using FrameDeadline = std::chrono::steady_clock::time_point;

// True: there is something to read, or the other end is gone. False: the deadline has passed.
[[nodiscard]] bool wait_readable(int fd, FrameDeadline deadline);
// False: the other end is gone, or the deadline has passed.
[[nodiscard]] bool write_frame(int fd, std::string_view bytes, FrameDeadline deadline);
// Nothing: the same, or the frame is longer than `max_bytes`.
[[nodiscard]] std::optional<std::string> read_frame(int fd,
                                                    size_t max_bytes,
                                                    FrameDeadline deadline);

class FieldWriter {
 public:
  void add(int64_t value);
  void add(std::string_view text);

  [[nodiscard]] const std::string& bytes() const { return bytes_; }

 private:
  std::string bytes_;
};

// What is behind the end reads as 0 and empty, and is_complete() is false.
class FieldReader {
 public:
  explicit FieldReader(std::string_view bytes) : rest_(bytes) {}

  int64_t integer();
  std::string_view text();

  [[nodiscard]] bool is_complete() const { return is_complete_; }

 private:
  std::string_view rest_;
  bool is_complete_ = true;
};

}  // namespace sluice
