// SPDX-License-Identifier: Apache-2.0
#include "server/grpc/counted_port.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <utility>

#include "engine/core/config.h"
#include "engine/core/log.h"
#include "server/front/front_end.h"
#include "server/grpc/server_settings.h"

namespace sluice {
namespace {

constexpr int kSweepMs = 100;

// Returns what no other open socket has; 0: the descriptor is closed.
uint64_t inode_of(int descriptor) {
  struct stat found = {};
  return ::fstat(descriptor, &found) == 0 ? found.st_ino : 0;
}

// Ends the connection if the descriptor is still its own, which gRPC may close meanwhile.
void end(int descriptor, uint64_t inode) {
  const int held = ::fcntl(descriptor, F_DUPFD_CLOEXEC, 0);
  if (held < 0) return;
  if (inode_of(held) == inode) ::shutdown(held, SHUT_RDWR);
  ::close(held);
}

// Returns the peer as a call names it: IPv4 is IPv4 whatever socket it came to.
std::string peer_of(int descriptor) {
  constexpr std::string_view kMapped = "[::ffff:";
  std::string peer = peer_name(descriptor);
  const size_t bracket = peer.find(']');
  if (!peer.starts_with(kMapped) || bracket == std::string::npos) return peer;
  return peer.substr(kMapped.size(), bracket - kMapped.size()) + peer.substr(bracket + 1);
}

Expected<std::unique_ptr<Listener>> listen(const SocketName& name) {
  Config alone;
  alone.host = name.host;
  alone.port = name.port;
  if (is_any_host(name.host)) {
    alone.host = "::";  // IPv4 too
    if (auto both = Listener::create(alone, Listener::Sharing::kWithNext)) return both;
    alone.host = "0.0.0.0";
  }
  return Listener::create(alone, Listener::Sharing::kWithNext);
}

}  // namespace

Expected<std::unique_ptr<CountedPort>> CountedPort::create(const SocketName& name,
                                                           bool joins,
                                                           Slots slots) {
  if (!joins && !is_port_free(name.host, name.port)) {
    return make_error(ErrorCode::kUnavailable, "The port is in use.");
  }
  SLUICE_TRY(auto listener, listen(name));
  const int wake = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (wake < 0) return make_error(ErrorCode::kUnavailable, "Too few descriptors are left.");
  return std::unique_ptr<CountedPort>(
      new CountedPort(std::move(listener), wake, std::move(slots)));
}

CountedPort::CountedPort(std::unique_ptr<Listener> listener, int wake, Slots slots)
    : listener_(std::move(listener)), wake_(wake), slots_(std::move(slots)) {}

CountedPort::~CountedPort() {
  stop();
  ::close(wake_);
}

void CountedPort::add_to(grpc::ServerBuilder& builder,
                         const std::shared_ptr<grpc::ServerCredentials>& credentials) {
  using Type = grpc::ServerBuilder::experimental_type::ExternalConnectionType;
  acceptor_ = builder.experimental().AddExternalConnectionAcceptor(Type::FROM_FD, credentials);
}

void CountedPort::start() {
  thread_ = std::thread([this] { run(); });
}

void CountedPort::stop() {
  if (!thread_.joinable()) return;
  ::eventfd_write(wake_, 1);
  thread_.join();
  listener_->close();
  const std::scoped_lock lock(mutex_);
  for (const Entry& entry : entries_) {
    if (entry.has_slot) slots_.give();
  }
  entries_.clear();
  by_peer_.clear();
}

void CountedPort::mark_authenticated(std::string_view peer) {
  const std::scoped_lock lock(mutex_);
  const auto found = by_peer_.find(std::string(peer));
  if (found != by_peer_.end()) found->second->is_authenticated = true;
}

void CountedPort::run() {
  std::array<pollfd, 2> awaited = {pollfd{wake_, POLLIN, 0},
                                   pollfd{listener_->descriptor(), POLLIN, 0}};
  while (true) {
    ::poll(awaited.data(), awaited.size(), kSweepMs);
    if (awaited[0].revents != 0) return;
    sweep();
    if (awaited[1].revents != 0) accept_all();
  }
}

void CountedPort::accept_all() {
  constexpr int kMostAtOnce = 64;
  for (int i = 0; i < kMostAtOnce; ++i) {
    Entry entry;
    entry.descriptor = listener_->accept();
    if (entry.descriptor < 0) {
      if (errno == EAGAIN || errno == EWOULDBLOCK) return;
      if (errno == ECONNABORTED || errno == EINTR) continue;
      log_event(LogLevel::kWarning, "accept_failed", "error", std::strerror(errno));
      ::poll(nullptr, 0, kSweepMs / 2);  // the backlog holds the connections meanwhile
      return;
    }
    const int one = 1;  // as gRPC does; a token does not wait for the answer to the last one
    ::setsockopt(entry.descriptor, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    entry.inode = inode_of(entry.descriptor);
    entry.peer = peer_of(entry.descriptor);
    if (!make_room(entry)) {
      ::close(entry.descriptor);
      continue;
    }
    grpc::experimental::ExternalConnectionAcceptor::NewConnectionParameters accepted;
    accepted.listener_fd = listener_->descriptor();
    accepted.fd = entry.descriptor;  // gRPC closes it
    {
      const std::scoped_lock lock(mutex_);
      entries_.push_back(std::move(entry));
      by_peer_[entries_.back().peer] = std::prev(entries_.end());
    }
    acceptor_->HandleNewConnection(&accepted);
  }
}

// Finds a slot for the connection, or a reserved place, if need be by ending another one. False:
// all that are there have proven themselves.
bool CountedPort::make_room(Entry& entry) {
  entry.has_slot = slots_.take();
  if (entry.has_slot) return true;
  const std::scoped_lock lock(mutex_);
  const auto num_beyond = std::ranges::count_if(
      entries_, [](const Entry& old) { return !old.has_slot && !old.is_ending; });
  if (std::cmp_less(num_beyond, slots_.num_reserved)) return true;
  const auto oldest = std::ranges::find_if(
      entries_, [](const Entry& old) { return !old.is_authenticated && !old.is_ending; });
  if (oldest == entries_.end()) return false;
  oldest->is_ending = true;
  entry.has_slot = std::exchange(oldest->has_slot, false);
  end(oldest->descriptor, oldest->inode);
  return true;
}

// Forgets the connections that gRPC has closed.
void CountedPort::sweep() {
  const std::scoped_lock lock(mutex_);
  for (auto at = entries_.begin(); at != entries_.end();) {
    const auto entry = at++;
    if (inode_of(entry->descriptor) == entry->inode) continue;
    if (entry->has_slot) slots_.give();
    const auto known = by_peer_.find(entry->peer);
    if (known != by_peer_.end() && known->second == entry) by_peer_.erase(known);
    entries_.erase(entry);
  }
}

CountedPort::Slots slots_of(FrontEnd& front_end) {
  return {.take = [&front_end] { return front_end.connection_opened(); },
          .give = [&front_end] { front_end.connection_closed(); },
          .num_reserved = static_cast<size_t>(front_end.config.reserved_connections)};
}

}  // namespace sluice
