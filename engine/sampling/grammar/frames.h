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

// Returns true when there is something to read or the other end is gone, false at the deadline.
[[nodiscard]] bool wait_readable(int fd, FrameDeadline deadline);
// Returns false when the other end is gone or the deadline has passed.
[[nodiscard]] bool write_frame(int fd, std::string_view bytes, FrameDeadline deadline);
// Returns nullopt in these cases too, and for a frame longer than `max_bytes`.
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

// Fields past the end of the bytes read as 0 and empty, and is_complete() is then false.
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
