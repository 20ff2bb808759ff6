// SPDX-License-Identifier: Apache-2.0
#include "engine/sampling/grammar/frames.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace sluice {
namespace {

bool wait_for(int fd, short events, FrameDeadline deadline) {
  while (true) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
        deadline - std::chrono::steady_clock::now());
    if (left.count() < 0) return false;
    pollfd entry{.fd = fd, .events = events, .revents = 0};
    constexpr int64_t kLongest = 1 << 30;
    const int ready = poll(&entry, 1, static_cast<int>(std::min<int64_t>(left.count(), kLongest)));
    if (ready > 0) return true;
    if (ready < 0 && errno != EINTR) return false;
  }
}

bool read_all(int fd, char* data, size_t size, FrameDeadline deadline) {
  while (size > 0) {
    if (!wait_for(fd, POLLIN, deadline)) return false;
    const ssize_t got = read(fd, data, size);
    if (got < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (got <= 0) return false;
    data += got;
    size -= static_cast<size_t>(got);
  }
  return true;
}

bool write_all(int fd, const char* data, size_t size, FrameDeadline deadline) {
  while (size > 0) {
    if (!wait_for(fd, POLLOUT, deadline)) return false;
    ssize_t sent = send(fd, data, size, MSG_NOSIGNAL);
    if (sent < 0 && errno == ENOTSOCK) sent = write(fd, data, size);
    if (sent < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (sent <= 0) return false;
    data += sent;
    size -= static_cast<size_t>(sent);
  }
  return true;
}

}  // namespace

bool wait_readable(int fd, FrameDeadline deadline) { return wait_for(fd, POLLIN, deadline); }

bool write_frame(int fd, std::string_view bytes, FrameDeadline deadline) {
  const uint64_t size = bytes.size();
  char head[sizeof size];
  std::memcpy(head, &size, sizeof size);
  return write_all(fd, head, sizeof head, deadline) &&
         write_all(fd, bytes.data(), bytes.size(), deadline);
}

std::optional<std::string> read_frame(int fd, size_t max_bytes, FrameDeadline deadline) {
  uint64_t size = 0;
  char head[sizeof size];
  if (!read_all(fd, head, sizeof head, deadline)) return std::nullopt;
  std::memcpy(&size, head, sizeof size);
  if (size > max_bytes) return std::nullopt;
  std::string bytes(size, '\0');
  if (!read_all(fd, bytes.data(), bytes.size(), deadline)) return std::nullopt;
  return bytes;
}

void FieldWriter::add(int64_t value) {
  char bytes[sizeof value];
  std::memcpy(bytes, &value, sizeof value);
  bytes_.append(bytes, sizeof value);
}

void FieldWriter::add(std::string_view text) {
  add(static_cast<int64_t>(text.size()));
  bytes_ += text;
}

int64_t FieldReader::integer() {
  int64_t value = 0;
  is_complete_ = is_complete_ && rest_.size() >= sizeof value;
  if (!is_complete_) return 0;
  std::memcpy(&value, rest_.data(), sizeof value);
  rest_.remove_prefix(sizeof value);
  return value;
}

std::string_view FieldReader::text() {
  const int64_t size = integer();
  is_complete_ = is_complete_ && size >= 0 && static_cast<uint64_t>(size) <= rest_.size();
  if (!is_complete_) return {};
  const std::string_view text = rest_.substr(0, static_cast<size_t>(size));
  rest_.remove_prefix(static_cast<size_t>(size));
  return text;
}

}  // namespace sluice
