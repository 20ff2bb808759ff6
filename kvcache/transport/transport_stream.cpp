// SPDX-License-Identifier: Apache-2.0
#include "kvcache/transport/transport_stream.h"

#include <sys/epoll.h>
#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "kvcache/transport/transport_connection.h"
#include "kvcache/transport/transport_front.h"

namespace sluice {
namespace {

using Clock = std::chrono::steady_clock;
using Kind = KvCompletion::Kind;

constexpr int kTickMs = 50;  // while there is something to time
constexpr int kNice = 2;  // lower priority than front ends' threads, higher than those that compute

class StreamTransport final : public KvTransportFront, private KvConnectionOwner {
 public:
  StreamTransport(std::unique_ptr<KvStreamMaker> maker, KvTransportOptions options)
      : KvTransportFront(std::move(maker), std::move(options)), scratch_(size_t{64} << 10) {}

  ~StreamTransport() override { end(); }

  [[nodiscard]] std::string_view kind() const override { return maker_->kind(); }

 private:
  // The transport's thread.
  void run() override;
  void do_one(OpenCommand& command) override;
  void do_one(PostCommand& command) override;
  void do_one(SendCommand& command) override;
  void do_one(AbortCommand& command) override;
  void do_one(CloseCommand& command) override;
  void take_back(KvSessionState& session, const KvTransferRef* ref);
  void accept_all();
  bool add_connection(std::unique_ptr<KvStream> stream, KvSessionState* session);
  void dial(KvSessionState& session);
  bool pump();
  bool pump_one(KvConnection& connection);
  void do_timers();
  void end_connection(uint64_t id, bool is_refused);
  [[nodiscard]] bool has_timers() const;

  // KvConnectionOwner.
  KvSessionState* find_session(const KvSessionToken& token) override;

  void complete(KvCompletion completion) override { add_completion(completion); }

  bool tell_once(KvCompletion completion) override { return add_told(completion); }

  void release_one() override { release_outstanding(); }

  KvAtomicCounts& atomic_counts() override { return counts_; }

  std::span<std::byte> scratch() override { return scratch_; }

  // The transport's thread.
  std::map<KvSession, std::unique_ptr<KvSessionState>> sessions_;
  std::map<uint64_t, std::unique_ptr<KvConnection>> connections_;  // destroyed before sessions_
  uint64_t next_id_ = kNoStream + 1;
  std::vector<uint64_t> order_;  // connections in the order of this turn
  size_t turn_ = 0;
  std::vector<std::byte> scratch_;
};

// --- The transport's thread: commands --------------------------------------------------------

void StreamTransport::do_one(OpenCommand& command) {
  auto session = std::make_unique<KvSessionState>();
  session->options = std::move(command.options);
  session->dial_at = Clock::now();
  const KvSession id = session->options.session;
  sessions_.emplace(id, std::move(session));
  for (const auto& [number, connection] : connections_) {
    if (connection->session() == nullptr) connection->may_read = true;  // it may be its own
  }
}

void StreamTransport::do_one(PostCommand& command) {
  KvSessionState& session = *sessions_.at(command.session);
  const auto [at, is_new] = session.posted.try_emplace(command.landing.slot);
  if (!is_new) {  // replaced
    if (at->second.reader != nullptr) at->second.reader->drop_landing();
    release_one();
  }
  at->second = {command.landing, nullptr};
}

void StreamTransport::do_one(SendCommand& command) {
  KvSessionState& session = *sessions_.at(command.session);
  session.queue.push_back(std::move(command.outgoing));
}

void StreamTransport::do_one(AbortCommand& command) {
  KvSessionState& session = *sessions_.at(command.session);
  take_back(session, &command.ref);
  // A peer that gets no END learns of it from the control channel.
  const bool can_tell = !session.connections.empty();
  if (!session.is_receiver() && can_tell) queue_end(session.queue, command.ref);
  add_writer_gone(command.session, command.ref);
}

void StreamTransport::do_one(CloseCommand& command) {
  KvSessionState& session = *sessions_.at(command.session);
  while (!session.connections.empty()) connections_.erase(session.connections.back()->id());
  take_back(session, nullptr);
  sessions_.erase(command.session);
  complete({Kind::kClosed, command.session, {}});
}

// Takes back slots and frames of the attempt, or all of them.
void StreamTransport::take_back(KvSessionState& session, const KvTransferRef* ref) {
  // A frame after a partly sent one would be read as its rest, so the connection is closed and the
  // frame returns to the queue.
  std::vector<uint64_t> broken;
  for (const KvConnection* connection : session.connections) {
    const KvFrame* frame = connection->outgoing();
    if (frame && frame->kind == KvFrameKind::kData && is_of(frame->ref, ref)) {
      broken.push_back(connection->id());
    }
  }
  for (const uint64_t id : broken) connections_.erase(id);
  for (auto at = session.posted.begin(); at != session.posted.end();) {
    if (!is_of(at->second.landing.ref, ref)) {
      ++at;
      continue;
    }
    if (at->second.reader != nullptr) at->second.reader->drop_landing();
    at = session.posted.erase(at);
    release_one();
  }
  take_back_frames(session.queue, ref);
}

// --- The transport's thread: connections -----------------------------------------------------

KvSessionState* StreamTransport::find_session(const KvSessionToken& token) {
  KvSessionState* found = nullptr;
  for (const auto& [id, session] : sessions_) {
    if (is_same_token(session->options.token, token)) found = session.get();
  }
  return found;
}

void StreamTransport::accept_all() {
  while (std::unique_ptr<KvStream> stream = maker_->accept()) {
    const auto strangers = std::ranges::count_if(
        connections_, [](const auto& entry) { return entry.second->session() == nullptr; });
    if (static_cast<size_t>(strangers) >= kMostStrangers) {
      ++counts_.connections_refused;
      continue;
    }
    add_connection(std::move(stream), nullptr);
  }
}

bool StreamTransport::add_connection(std::unique_ptr<KvStream> stream, KvSessionState* session) {
  const uint64_t id = next_id_++;
  if (!stream->watch(epoll(), id)) return false;
  KvConnectionOwner& owner = *this;
  connections_.emplace(id, std::make_unique<KvConnection>(id, std::move(stream), session, owner));
  return true;
}

void StreamTransport::dial(KvSessionState& session) {
  const auto wanted = static_cast<size_t>(maker_->num_streams());
  while (session.connections.size() < wanted) {
    std::unique_ptr<KvStream> stream = maker_->dial(session.options.address);
    if (stream == nullptr) break;
    if (!add_connection(std::move(stream), &session)) break;
  }
  session.dial_at = Clock::now() + options_.redial_time;
}

void StreamTransport::end_connection(uint64_t id, bool is_refused) {
  ++(is_refused ? counts_.connections_refused : counts_.connections_lost);
  const auto at = connections_.find(id);
  KvSessionState* session = at->second->session();
  connections_.erase(at);
  if (session == nullptr) return;
  session->dial_at = std::max(session->dial_at, Clock::now() + options_.redial_time);
}

// Returns whether there may be more to do at once.
bool StreamTransport::pump_one(KvConnection& connection) {
  using Progress = KvConnection::Progress;
  bool more = false;
  Progress progress = Progress::kMore;
  if (connection.may_read) {
    progress = connection.read_some();
    more = progress == Progress::kMore || progress == Progress::kLater;
    connection.may_read = more;
  }
  const bool is_good = progress != Progress::kLost && progress != Progress::kRefused;
  if (is_good && connection.may_write && connection.wants_to_write()) {
    progress = connection.write_some();
    connection.may_write = progress == Progress::kMore;
    more = more || (connection.may_write && connection.wants_to_write());
  }
  if (progress == Progress::kLost || progress == Progress::kRefused) {
    end_connection(connection.id(), progress == Progress::kRefused);
    return false;
  }
  return more;
}

// Each time another connection is first: no frame waits for a slow connection twice.
bool StreamTransport::pump() {
  order_.clear();
  for (const auto& [id, connection] : connections_) order_.push_back(id);
  if (!order_.empty()) {
    std::ranges::rotate(order_, order_.begin() + static_cast<ptrdiff_t>(turn_++ % order_.size()));
  }
  bool more = false;
  for (const uint64_t id : order_) more = pump_one(*connections_.at(id)) || more;
  return more;
}

bool StreamTransport::has_timers() const {
  return std::ranges::any_of(
             connections_, [](const auto& entry) { return entry.second->session() == nullptr; }) ||
         std::ranges::any_of(sessions_, [this](const auto& entry) {
           return entry.second->is_receiver() &&
                  entry.second->connections.size() < static_cast<size_t>(maker_->num_streams());
         });
}

void StreamTransport::do_timers() {
  accept_all();  // also those that came when no descriptors were left
  const Clock::time_point now = Clock::now();
  for (auto at = connections_.begin(); at != connections_.end();) {
    KvConnection& connection = *(at++)->second;
    if (connection.session() == nullptr && now > connection.since() + options_.hello_time) {
      end_connection(connection.id(), true);
    }
  }
  for (const auto& [id, session] : sessions_) {
    if (session->is_receiver() && now >= session->dial_at) dial(*session);
  }
}

void StreamTransport::run() {
  setpriority(PRIO_PROCESS, 0, getpriority(PRIO_PROCESS, 0) + kNice);
  bool more = false;
  std::array<epoll_event, 64> events;
  while (!is_closing()) {
    const int wait = more ? 0 : has_timers() ? kTickMs : -1;
    const int count = epoll_wait(epoll(), events.data(), static_cast<int>(events.size()), wait);
    for (int i = 0; i < count; ++i) {
      const uint64_t datum = events[static_cast<size_t>(i)].data.u64;
      if (const auto at = connections_.find(datum); at != connections_.end()) {
        at->second->may_read = true;
        at->second->may_write = true;
      }
    }
    do_commands();
    do_timers();
    more = pump();
    tell_owner();
  }
}

}  // namespace

Expected<std::unique_ptr<KvTransport>> make_stream_transport(std::unique_ptr<KvStreamMaker> maker,
                                                             KvTransportOptions options) {
  auto transport = std::make_unique<StreamTransport>(std::move(maker), std::move(options));
  SLUICE_TRY_VOID(transport->start());
  return transport;
}

}  // namespace sluice
