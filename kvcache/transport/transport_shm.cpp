// SPDX-License-Identifier: Apache-2.0
#include "kvcache/transport/transport_shm.h"

#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <fstream>
#include <string>
#include <utility>

#include "engine/core/file_descriptor.h"
#include "engine/core/hex.h"
#include "kvcache/transport/kv_socket.h"
#include "kvcache/transport/shm_ring.h"

namespace sluice {
namespace {

constexpr uint64_t kMagic = 0x31676e69524b4c53;  // "SLKRing1" as bytes
constexpr size_t kNumFiles = 3;                  // the ring, bytes in it, room in it
// Bytes that the reader gets to see at a time: it begins while the rest is copied.
constexpr size_t kCommitBytes = size_t{128} << 10;

// The dialler's first message, which carries the files.
struct Setup {
  uint64_t magic = kMagic;
  uint64_t ring_bytes = 0;
};

void signal(const FileDescriptor& event) {
  const uint64_t one = 1;
  // A full counter fails the write, but then an edge is pending that the peer has not seen yet.
  [[maybe_unused]] const auto written = ::write(event.get(), &one, sizeof(one));
}

bool is_same_user(const FileDescriptor& socket) {
  ucred peer{};
  socklen_t size = sizeof(peer);
  return getsockopt(socket.get(), SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 &&
         peer.uid == geteuid();
}

// The receiver's end: it made the ring and reads it.
class ShmReceiver final : public KvStream {
 public:
  ShmReceiver(FileDescriptor socket,
              std::unique_ptr<ShmRing> ring,
              FileDescriptor has_bytes,
              FileDescriptor has_room)
      : socket_(std::move(socket)),
        ring_(std::move(ring)),
        has_bytes_(std::move(has_bytes)),
        has_room_(std::move(has_room)) {}

  bool watch(int epoll, uint64_t datum) override {
    return watch_descriptor(epoll, socket_.get(), datum) &&
           watch_descriptor(epoll, has_bytes_.get(), datum);
  }

  std::optional<size_t> write(std::span<const iovec> parts) override {
    return send_parts(socket_.get(), parts);
  }

  std::optional<size_t> read(std::span<std::byte> out, kernels::KvChecksum* sum) override {
    bool wakes_other = false;
    auto count = ring_->read(out, sum, wakes_other);
    if (wakes_other) signal(has_room_);
    if (count != size_t{0}) return count;
    // The sender says nothing on the socket: a byte is as wrong as its end, before which it may
    // have written meanwhile.
    std::byte byte{};
    const ssize_t got = ::recv(socket_.get(), &byte, 1, MSG_DONTWAIT);
    if (got < 0) return socket_result(got);
    count = ring_->read(out, sum, wakes_other);
    return count == size_t{0} ? std::nullopt : count;
  }

 private:
  const FileDescriptor socket_;
  const std::unique_ptr<ShmRing> ring_;
  const FileDescriptor has_bytes_;
  const FileDescriptor has_room_;
};

// The sender's end: it gets the ring with the first bytes.
class ShmSender final : public KvStream {
 public:
  explicit ShmSender(FileDescriptor socket) : socket_(std::move(socket)) {}

  bool watch(int epoll, uint64_t datum) override {
    epoll_ = epoll;
    datum_ = datum;
    return watch_descriptor(epoll, socket_.get(), datum);
  }

  std::optional<size_t> write(std::span<const iovec> parts) override {
    if (!ring_) return 0;
    size_t total = 0;
    bool wakes_other = false;
    bool is_full = false;
    for (size_t i = 0; i < parts.size() && !is_full; ++i) {
      std::span<const std::byte> part(static_cast<const std::byte*>(parts[i].iov_base),
                                      parts[i].iov_len);
      while (!part.empty() && !is_full) {
        const auto count =
            ring_->write(part.first(std::min(part.size(), kCommitBytes)), wakes_other);
        if (!count) return std::nullopt;
        if (std::exchange(wakes_other, false)) signal(has_bytes_);
        is_full = *count == 0;
        part = part.subspan(*count);
        total += *count;
      }
    }
    return total;
  }

  Copied copy(size_t header_bytes,
              std::span<const std::span<const std::byte>> payload,
              kernels::KvChecksum& sum) override;

  void finish() override { ::shutdown(socket_.get(), SHUT_WR); }

  void end_copy(std::span<const std::byte> header) override {
    bool wakes_other = false;
    ring_->publish(header, wakes_other);
    if (wakes_other) signal(has_bytes_);
  }

  std::optional<size_t> read(std::span<std::byte> out, kernels::KvChecksum* sum) override {
    if (!ring_) {
      const auto count = take_setup();
      if (!count || *count == 0) return count;
    }
    return receive_bytes(socket_.get(), out, sum);
  }

 private:
  std::optional<size_t> take_setup();

  const FileDescriptor socket_;
  int epoll_ = -1;
  uint64_t datum_ = 0;
  std::unique_ptr<ShmRing> ring_;
  FileDescriptor has_bytes_;
  FileDescriptor has_room_;
};

KvStream::Copied ShmSender::copy(size_t header_bytes,
                                 std::span<const std::span<const std::byte>> payload,
                                 kernels::KvChecksum& sum) {
  if (!ring_) return Copied::kNotNow;
  uint64_t total = header_bytes;
  for (const std::span<const std::byte> part : payload) total += part.size();
  // A payload of less than half the ring can be read while the next one is written.
  if (total > ring_->bytes() / 2) return Copied::kNever;
  const auto copied = ring_->copy(header_bytes, payload, sum);
  if (!copied) return Copied::kEnded;
  return *copied ? Copied::kAll : Copied::kNotNow;
}

// Returns 0 while the setup is not there, nullopt if it is not what a receiver sends.
std::optional<size_t> ShmSender::take_setup() {
  Setup setup{};
  iovec part{.iov_base = &setup, .iov_len = sizeof(setup)};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(kNumFiles * sizeof(int))> control{};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  const ssize_t count = ::recvmsg(socket_.get(), &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  if (count < 0) return socket_result(count);
  std::array<FileDescriptor, kNumFiles> files;
  size_t num_files = 0;
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header; header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    const size_t num_here = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < num_here; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(header) + i * sizeof(int), sizeof(fd));
      FileDescriptor file(fd);  // closed here where there are too many
      if (num_files < files.size()) files[num_files++] = std::move(file);
    }
  }
  // The kernel delivers data sent with files in one piece.
  if (count != sizeof(setup) || setup.magic != kMagic || num_files != kNumFiles ||
      (message.msg_flags & MSG_CTRUNC) != 0) {
    return std::nullopt;
  }
  for (const FileDescriptor* event : {&files[1], &files[2]}) {
    if (fcntl(event->get(), F_SETFL, O_NONBLOCK) != 0) return std::nullopt;
  }
  auto ring = ShmRing::map(files[0].get(), setup.ring_bytes);
  if (!ring) return std::nullopt;
  has_bytes_ = std::move(files[1]);
  has_room_ = std::move(files[2]);
  if (!watch_descriptor(epoll_, has_room_.get(), datum_)) return std::nullopt;
  ring_ = std::move(*ring);
  return sizeof(setup);
}

class ShmStreams final : public KvStreamMaker {
 public:
  ShmStreams(FileDescriptor listener, std::string prefix, std::string name, uint64_t ring_bytes)
      : listener_(std::move(listener)),
        prefix_(std::move(prefix)),
        name_(std::move(name)),
        ring_bytes_(ring_bytes) {}

  [[nodiscard]] std::string_view kind() const override { return "shm"; }

  [[nodiscard]] std::string address() const override { return prefix_ + name_; }

  [[nodiscard]] int32_t num_streams() const override { return 1; }

  [[nodiscard]] int listener() const override { return listener_.get(); }

  [[nodiscard]] bool is_address(std::string_view address) const override;
  std::unique_ptr<KvStream> accept() override;
  std::unique_ptr<KvStream> dial(const std::string& address) override;

 private:
  const FileDescriptor listener_;
  const std::string prefix_;  // "<place>:"
  const std::string name_;
  const uint64_t ring_bytes_;
};

// The name is in the abstract space: it ends with the process, and no file is left.
std::pair<sockaddr_un, socklen_t> socket_name(std::string_view name) {
  sockaddr_un at{};
  at.sun_family = AF_UNIX;
  std::memcpy(at.sun_path + 1, name.data(), name.size());
  return {at, static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size())};
}

bool ShmStreams::is_address(std::string_view address) const {
  return address.starts_with(prefix_) && address.size() == prefix_.size() + name_.size();
}

std::unique_ptr<KvStream> ShmStreams::accept() {
  while (true) {
    FileDescriptor socket(accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!socket.is_open()) return nullptr;
    if (is_same_user(socket)) return std::make_unique<ShmSender>(std::move(socket));
  }
}

std::unique_ptr<KvStream> ShmStreams::dial(const std::string& address) {
  if (!is_address(address)) return nullptr;
  FileDescriptor socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  const auto [at, size] = socket_name(std::string_view(address).substr(prefix_.size()));
  if (!socket.is_open() ||
      connect(socket.get(), reinterpret_cast<const sockaddr*>(&at), size) != 0 ||
      !is_same_user(socket)) {
    return nullptr;
  }
  auto made = ShmRing::make_file(ring_bytes_);
  if (!made) return nullptr;
  const FileDescriptor file(*made);
  FileDescriptor has_bytes(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  FileDescriptor has_room(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  auto ring = ShmRing::map(file.get(), ring_bytes_);
  if (!has_bytes.is_open() || !has_room.is_open() || !ring) return nullptr;

  Setup setup{.magic = kMagic, .ring_bytes = ring_bytes_};
  iovec part{.iov_base = &setup, .iov_len = sizeof(setup)};
  const std::array<int, kNumFiles> files = {file.get(), has_bytes.get(), has_room.get()};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(files))> control{};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  cmsghdr* header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(files));
  std::memcpy(CMSG_DATA(header), files.data(), sizeof(files));
  const ssize_t sent = ::sendmsg(socket.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
  if (sent != static_cast<ssize_t>(sizeof(setup))) return nullptr;
  return std::make_unique<ShmReceiver>(
      std::move(socket), std::move(*ring), std::move(has_bytes), std::move(has_room));
}

}  // namespace

Expected<std::string> place_of_process(std::initializer_list<const char*> namespaces) {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string place;
  if (!std::getline(file, place) || place.empty()) {
    return make_error(ErrorCode::kUnsupported, "KV between processes of a machine: no boot id");
  }
  for (const char* const kind : namespaces) {
    struct stat found {};

    const bool is_there = stat((std::string("/proc/self/ns/") + kind).c_str(), &found) == 0;
    place += ":" + std::to_string(is_there ? found.st_ino : 0);
  }
  return place + ":" + std::to_string(geteuid());
}

Expected<std::unique_ptr<KvStreamMaker>> make_shm_streams(const KvTransportOptions& options) {
  SLUICE_TRY(const std::string place, place_of_process({"net", "user"}));
  return make_shm_streams_at("shm:" + place, options);
}

Expected<std::unique_ptr<KvStreamMaker>> make_shm_streams_at(const std::string& place,
                                                             const KvTransportOptions& options) {
  const auto refuse = [](const std::string& why) {
    return make_error(ErrorCode::kUnsupported, "KV transport over shared memory: " + why);
  };
  std::array<uint8_t, 16> random{};
  if (getrandom(random.data(), random.size(), 0) != static_cast<ssize_t>(random.size())) {
    return refuse("no random numbers");
  }
  const std::string name = "sluice-kv-" + to_hex(random);
  FileDescriptor listener(socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  const auto [at, size] = socket_name(name);
  constexpr int kBacklog = 128;
  if (!listener.is_open() ||
      bind(listener.get(), reinterpret_cast<const sockaddr*>(&at), size) != 0 ||
      listen(listener.get(), kBacklog) != 0) {
    return refuse(std::strerror(errno));
  }
  const uint64_t ring_bytes =
      std::clamp(static_cast<uint64_t>(options.ring_bytes), kShmLeastRingBytes, kShmMostRingBytes);
  return std::make_unique<ShmStreams>(std::move(listener), place + ":", name, ring_bytes);
}

}  // namespace sluice
