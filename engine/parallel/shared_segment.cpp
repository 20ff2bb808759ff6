// SPDX-License-Identifier: Apache-2.0
#include "engine/parallel/shared_segment.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include "engine/core/hex.h"

namespace sluice {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW;
constexpr int kFlags = SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC;

tl::unexpected<Error> unavailable(const char* what) {
  return make_error(ErrorCode::kUnavailable,
                    std::string("shared memory: ") + what + ": " + std::strerror(errno));
}

bool fill_random(std::span<uint8_t> bytes) {
  return getrandom(bytes.data(), bytes.size(), 0) == static_cast<ssize_t>(bytes.size());
}

std::pair<sockaddr_un, socklen_t> address_of(const SharedSegment::Ticket& ticket) {
  const std::string name = "sluice-ranks-" + to_hex(ticket.name);
  sockaddr_un at{};
  at.sun_family = AF_UNIX;
  std::memcpy(at.sun_path + 1, name.data(), name.size());
  return {at, static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size())};
}

bool is_same_user(int socket) {
  ucred peer{};
  socklen_t size = sizeof(peer);
  return getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 && peer.uid == geteuid();
}

// One byte with a file beside it.
struct FileMessage {
  FileMessage() {
    part = {.iov_base = &byte, .iov_len = 1};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control.data();
    message.msg_controllen = control.size();
  }

  FileMessage(const FileMessage&) = delete;
  FileMessage& operator=(const FileMessage&) = delete;

  char byte = 0;
  iovec part{};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
  msghdr message{};
};

bool send_file(int socket, int file) {
  FileMessage out;
  cmsghdr* const header = CMSG_FIRSTHDR(&out.message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(file));
  std::memcpy(CMSG_DATA(header), &file, sizeof(file));
  return sendmsg(socket, &out.message, MSG_NOSIGNAL | MSG_DONTWAIT) == 1;
}

// Returns the file, or -1.
int receive_file(int socket) {
  FileMessage in;
  if (recvmsg(socket, &in.message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC) != 1) return -1;
  const cmsghdr* const header = CMSG_FIRSTHDR(&in.message);
  if (header == nullptr || header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS ||
      header->cmsg_len != CMSG_LEN(sizeof(int))) {
    return -1;
  }
  int file = -1;
  std::memcpy(&file, CMSG_DATA(header), sizeof(file));
  return file;
}

bool is_readable(int socket, GroupDeadline deadline) {
  pollfd item = {.fd = socket, .events = POLLIN, .revents = 0};
  for (;;) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
    const int found = poll(&item, 1, static_cast<int>(std::clamp<int64_t>(left, 0, 60'000)));
    if (found > 0) return true;
    if (Clock::now() >= deadline) return false;
  }
}

}  // namespace

Expected<std::unique_ptr<SharedSegment>> SharedSegment::make(size_t bytes) {
  Ticket ticket{.bytes = bytes, .name = {}, .token = {}};
  if (!fill_random(ticket.name) || !fill_random(ticket.token)) return unavailable("random numbers");
  const int file = memfd_create("sluice-ranks", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (file < 0) return unavailable("a file in memory");
  // Pages are given when parts are written: most steps are far smaller than the largest.
  if (ftruncate(file, static_cast<off_t>(bytes)) != 0 ||
      fcntl(file, F_ADD_SEALS, kSeals | F_SEAL_SEAL) != 0) {
    const tl::unexpected<Error> error = unavailable("its size");
    ::close(file);
    return error;
  }
  Expected<std::unique_ptr<SharedSegment>> made = map(file, ticket);
  if (!made) {
    ::close(file);
    return made;
  }
  (*made)->file_ = file;
  const int listener = (*made)->listener_ = socket(AF_UNIX, kFlags, 0);
  const auto [at, size] = address_of(ticket);
  constexpr int kBacklog = 16;
  if (listener < 0 || bind(listener, reinterpret_cast<const sockaddr*>(&at), size) != 0 ||
      listen(listener, kBacklog) != 0) {
    return unavailable("a socket for it");
  }
  return made;
}

Expected<std::unique_ptr<SharedSegment>> SharedSegment::map(int file, const Ticket& ticket) {
  const auto bytes = static_cast<size_t>(ticket.bytes);
  void* const memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (memory == MAP_FAILED) return unavailable("mapping it");
  std::unique_ptr<SharedSegment> segment(new SharedSegment());
  segment->ticket_ = ticket;
  segment->bytes_ = {static_cast<std::byte*>(memory), bytes};
  return segment;
}

SharedSegment::~SharedSegment() {
  if (!bytes_.empty()) munmap(bytes_.data(), bytes_.size());
  if (file_ >= 0) ::close(file_);
  if (listener_ >= 0) ::close(listener_);
}

Expected<void> SharedSegment::hand_over(GroupDeadline deadline) {
  while (is_readable(listener_, deadline)) {
    const int fd = accept4(listener_, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd < 0) continue;
    GroupSocket guest(fd);
    std::array<uint8_t, std::tuple_size_v<decltype(ticket_.token)>> token{};
    // A stranger costs the time of one that is slow.
    const auto soon = std::min(deadline, Clock::now() + std::chrono::seconds(1));
    if (!is_same_user(fd) || !guest.receive(std::as_writable_bytes(std::span(token)), soon) ||
        token != ticket_.token) {
      continue;
    }
    if (send_file(fd, file_)) return {};
    return unavailable("handing it over");
  }
  return make_error(ErrorCode::kDeadlineExceeded, "shared memory: nobody came for it");
}

Expected<std::unique_ptr<GroupSocket>> SharedSegment::knock(const Ticket& ticket) {
  const int fd = socket(AF_UNIX, kFlags, 0);
  if (fd < 0) return unavailable("a socket");
  auto door = std::make_unique<GroupSocket>(fd);
  const auto [at, size] = address_of(ticket);
  if (connect(fd, reinterpret_cast<const sockaddr*>(&at), size) != 0) {
    return unavailable("its maker cannot be reached");
  }
  if (!is_same_user(fd)) {
    return make_error(ErrorCode::kUnavailable, "shared memory: its maker is another user");
  }
  SLUICE_TRY_VOID(
      door->send(std::as_bytes(std::span(ticket.token)), Clock::now() + std::chrono::seconds(1)));
  return door;
}

Expected<std::unique_ptr<SharedSegment>> SharedSegment::take(GroupSocket& door,
                                                             const Ticket& ticket,
                                                             GroupDeadline deadline) {
  const int file = is_readable(door.descriptor(), deadline) ? receive_file(door.descriptor()) : -1;
  if (file < 0) return make_error(ErrorCode::kUnavailable, "shared memory: it was not handed over");

  struct stat status {};

  const int seals = fcntl(file, F_GET_SEALS);
  const bool is_right = seals >= 0 && (seals & kSeals) == kSeals && fstat(file, &status) == 0 &&
                        static_cast<uint64_t>(status.st_size) == ticket.bytes;
  Expected<std::unique_ptr<SharedSegment>> taken =
      is_right ? map(file, ticket)
               : make_error(ErrorCode::kDataLoss, "shared memory: not the file that was promised");
  ::close(file);
  return taken;
}

}  // namespace sluice
