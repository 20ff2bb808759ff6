// SPDX-License-Identifier: Apache-2.0
#include "kvcache/transport/transport_device.h"

#include <poll.h>
#include <sys/epoll.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <ctime>
#include <deque>
#include <list>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/core/log.h"
#include "kvcache/transport/transport_device_pair.h"
#include "kvcache/transport/transport_front.h"

namespace sluice {
namespace {

using Clock = std::chrono::steady_clock;
using Kind = KvCompletion::Kind;

constexpr size_t kMostInPair = 16;    // payloads of a sender
constexpr size_t kMostOfPeer = 1024;  // that a receiver takes ahead of its GPU
// Poll intervals for state changes that produce no event.
constexpr std::chrono::nanoseconds kTransferTick{50'000};   // payloads
constexpr std::chrono::nanoseconds kMakingTick{1'000'000};  // links that begin and end
constexpr std::chrono::nanoseconds kIdleTick{50'000'000};   // their errors, and timers
// For a payload that is in the link when its attempt is aborted: its counterpart is there, or
// arrives by itself if the peer is alive.
constexpr std::chrono::milliseconds kGrace{500};

struct Posted {
  KvLanding landing;
  bool is_landing = false;  // a payload for it is in the link
};

struct Aborted {
  KvTransferRef ref;
  Clock::time_point until;
};

// What is in a link.
struct InPair {
  KvFrame frame;
  KvPayload payload;  // a sender's
};

struct Session {
  KvSessionOptions options;
  std::map<uint32_t, Posted> posted;  // by slot
  std::deque<KvOutgoing> queue;
  std::map<uint64_t, InPair> in_pair;  // by the number that it has there
  std::vector<Aborted> aborted;        // that have something in the pair
  std::unique_ptr<DevicePair> pair;
  std::unique_ptr<DevicePair> next_pair;  // when that one is gone
  uint64_t last_number = 0;               // of the frames that were sent
  uint64_t last_taken = 0;                // of the peer's payloads
  bool has_told_refusal = false;
  Clock::time_point dial_at;
  bool is_closed = false;

  [[nodiscard]] bool is_receiver() const { return !options.address.empty(); }

  [[nodiscard]] bool has_in_pair(const KvTransferRef& ref) const {
    return std::ranges::any_of(in_pair,
                               [&](const auto& entry) { return entry.second.frame.ref == ref; });
  }
};

class DeviceTransport final : public KvTransportFront {
 public:
  DeviceTransport(std::unique_ptr<DeviceLinks> links,
                  std::unique_ptr<KvStreamMaker> maker,
                  KvTransportOptions options)
      : KvTransportFront(std::move(maker), std::move(options)), links_(std::move(links)) {}

  // Links end side by side: one may take a second.
  ~DeviceTransport() override {
    end();
    for (auto& [id, session] : sessions_) {
      if (session.pair != nullptr) session.pair->end();
    }
  }

  Expected<void> start();

  [[nodiscard]] std::string_view kind() const override { return links_->kind(); }

  [[nodiscard]] bool moves_device_memory() const override { return true; }

 private:
  void run() override;
  void do_one(OpenCommand& command) override;
  void do_one(PostCommand& command) override;
  void do_one(SendCommand& command) override;
  void do_one(AbortCommand& command) override;
  void do_one(CloseCommand& command) override;
  void wait();
  void wait_for_readers();
  void accept_all();
  void advance_strangers();
  void adopt(std::unique_ptr<DevicePair> pair);
  void dial(Session& session);
  void advance(Session& session);
  bool take_frames(Session& session);
  bool take_frame(Session& session, const KvFrame& frame);
  bool take_payload(Session& session, const KvFrame& frame);
  void fill_pair(Session& session);
  void note_done(Session& session);
  void end_pair(Session& session, bool is_refused);
  void refuse_pair(Session& session);
  void note_gone(Session& session);
  void end_aborted(Session& session);
  void take_back(Session& session, const KvTransferRef* ref);
  Session* find_sender(const KvSessionToken& token);

  const std::unique_ptr<DeviceLinks> links_;
  kernels::DeviceBuffer unread_;  // for payloads without a receiver
  std::map<KvSession, Session> sessions_;
  std::list<std::unique_ptr<DevicePair>> strangers_;
  uint64_t next_pair_ = kNoStream + 1;
  std::vector<uint64_t> done_;
};

Expected<void> DeviceTransport::start() {
  SLUICE_TRY(
      unread_,
      kernels::DeviceBuffer::allocate(
          *options_.device, static_cast<int64_t>(options_.slot_bytes), "KV that nobody waits for"));
  options_.device->wait();  // it is zeroed before a queue of a link writes it
  return KvTransportFront::start();
}

// --- Commands --------------------------------------------------------------------------------

void DeviceTransport::do_one(OpenCommand& command) {
  const KvSession id = command.options.session;
  Session& session = sessions_[id];
  session.options = std::move(command.options);
  session.dial_at = Clock::now();
}

// A payload that is still landing in the slot is done before a later one begins.
void DeviceTransport::do_one(PostCommand& command) {
  Session& session = sessions_.at(command.session);
  const auto [at, is_new] = session.posted.try_emplace(command.landing.slot);
  if (!is_new) release_outstanding();
  at->second = {command.landing, false};
}

void DeviceTransport::do_one(SendCommand& command) {
  CHECK_LE(command.outgoing.payload.size(), size_t{1});
  sessions_.at(command.session).queue.push_back(std::move(command.outgoing));
}

void DeviceTransport::do_one(AbortCommand& command) {
  Session& session = sessions_.at(command.session);
  take_back(session, &command.ref);
  if (!session.is_receiver() && session.pair != nullptr) queue_end(session.queue, command.ref);
  session.aborted.push_back({command.ref, Clock::now() + kGrace});
  end_aborted(session);
}

void DeviceTransport::do_one(CloseCommand& command) {
  Session& session = sessions_.at(command.session);
  session.is_closed = true;
  take_back(session, nullptr);
  session.next_pair.reset();
  if (session.pair != nullptr) session.pair->end();
}

// Slots and queued frames of the attempt, or all of them; not what is in the link.
void DeviceTransport::take_back(Session& session, const KvTransferRef* ref) {
  std::erase_if(session.posted, [&](const auto& entry) {
    if (!is_of(entry.second.landing.ref, ref)) return false;
    release_outstanding();
    return true;
  });
  take_back_frames(session.queue, ref);
}

void DeviceTransport::end_aborted(Session& session) {
  std::erase_if(session.aborted, [&](const Aborted& aborted) {
    if (session.has_in_pair(aborted.ref)) return false;
    add_writer_gone(session.options.session, aborted.ref);
    return true;
  });
  const Clock::time_point now = Clock::now();
  const bool is_late = std::ranges::any_of(
      session.aborted, [&](const Aborted& aborted) { return now >= aborted.until; });
  if (is_late && session.pair != nullptr) session.pair->end();
}

// --- Pairs -----------------------------------------------------------------------------------

void DeviceTransport::accept_all() {
  while (std::unique_ptr<KvStream> stream = maker_->accept()) {
    const uint64_t id = next_pair_++;
    if (strangers_.size() >= kMostStrangers || !stream->watch(epoll(), id)) {
      ++counts_.connections_refused;
      continue;
    }
    strangers_.push_back(DevicePair::accepted(std::move(stream)));
  }
}

void DeviceTransport::advance_strangers() {
  for (auto at = strangers_.begin(); at != strangers_.end();) {
    DevicePair& stranger = **at;
    stranger.advance_stream();
    const std::optional<KvFrame> hello = stranger.peek();
    const bool is_hello = hello && hello->kind == KvFrameKind::kHello;
    const bool is_late = Clock::now() > stranger.since() + options_.hello_time;
    if (is_hello && find_sender(hello->ref.transfer) != nullptr) {
      std::unique_ptr<DevicePair> pair = std::move(*at);
      at = strangers_.erase(at);
      adopt(std::move(pair));
    } else if (stranger.has_ended() || stranger.is_corrupt() || (hello && !is_hello) || is_late) {
      ++counts_.connections_refused;
      at = strangers_.erase(at);
    } else {
      ++at;
    }
  }
}

Session* DeviceTransport::find_sender(const KvSessionToken& token) {
  Session* found = nullptr;
  for (auto& [id, session] : sessions_) {
    const bool is_it = is_same_token(session.options.token, token);
    if (is_it && !session.is_receiver() && !session.is_closed) found = &session;
  }
  return found;
}

// A receiver that connects again has lost its previous pair.
void DeviceTransport::adopt(std::unique_ptr<DevicePair> pair) {
  const KvFrame hello = *pair->take();
  Session& session = *find_sender(hello.ref.transfer);
  if (hello.epoch != session.options.peer_epoch) {
    ++counts_.connections_refused;
    return;
  }
  if (session.pair != nullptr) {
    end_pair(session, false);
    session.next_pair = std::move(pair);
  } else {
    session.pair = std::move(pair);
  }
}

void DeviceTransport::dial(Session& session) {
  session.dial_at = Clock::now() + options_.redial_time;
  std::unique_ptr<KvStream> stream = maker_->dial(session.options.address);
  if (stream == nullptr || !stream->watch(epoll(), next_pair_++)) return;
  KvFrame hello;
  hello.kind = KvFrameKind::kHello;
  hello.ref.transfer = session.options.token;
  hello.epoch = session.options.own_epoch;
  session.pair = DevicePair::dialled(std::move(stream), hello);
}

void DeviceTransport::end_pair(Session& session, bool is_refused) {
  if (!session.pair->is_open()) return;
  ++(is_refused ? counts_.connections_refused : counts_.connections_lost);
  session.pair->end();
}

// The peer violates the protocol, or no link to it is possible: a retry does not help.
void DeviceTransport::refuse_pair(Session& session) {
  const std::string& why = session.pair->refusal();
  if (!why.empty() && !std::exchange(session.has_told_refusal, true)) {
    log_event(LogLevel::kWarning, "kv_link_refused", "transport", kind(), "reason", why);
  }
  end_pair(session, true);
}

void DeviceTransport::advance(Session& session) {
  if (session.pair == nullptr && session.is_receiver() && !session.is_closed &&
      Clock::now() >= session.dial_at) {
    dial(session);
  }
  if (session.pair != nullptr && session.pair->is_open()) {
    DevicePair& pair = *session.pair;
    pair.advance_stream();
    pair.make_link(*links_, session.options.payloads);
    if (!take_frames(session)) refuse_pair(session);
    done_.clear();
    pair.advance_link(done_, session.options.own_epoch);
    note_done(session);
    fill_pair(session);
    pair.advance_stream();
    // Frames that arrived before the end are taken first.
    if (pair.has_ended() && !pair.peek()) end_pair(session, false);
  }
  if (session.pair != nullptr && session.pair->is_gone()) note_gone(session);
  end_aborted(session);
}

// False: the peer violated the protocol.
bool DeviceTransport::take_frames(Session& session) {
  // Commands that a peer knew of when it sent a frame are queued by now: they run first.
  while (session.pair->peek()) {
    do_commands();
    if (session.is_closed) return true;
    if (!take_frame(session, *session.pair->take())) return false;
  }
  return !session.pair->is_corrupt();
}

bool DeviceTransport::take_frame(Session& session, const KvFrame& frame) {
  const KvSessionOptions& options = session.options;
  if (!check_kv_frame(frame, options.layout, options.peer_epoch)) return false;
  switch (frame.kind) {
    case KvFrameKind::kData:
      return session.is_receiver() && take_payload(session, frame);
    case KvFrameKind::kEnd:
      return session.is_receiver() && add_told({Kind::kEnded, options.session, frame});
    case KvFrameKind::kNak:
      return !session.is_receiver() && add_told({Kind::kNak, options.session, frame});
    case KvFrameKind::kReady:
      if (session.is_receiver()) return false;
      session.pair->note_ready();
      return true;
    case KvFrameKind::kRead:
    case KvFrameKind::kKept:
      return session.pair->has_link() && session.pair->link().take(frame);
    case KvFrameKind::kHello:
      return false;
  }
  return false;
}

bool DeviceTransport::take_payload(Session& session, const KvFrame& frame) {
  DevicePair& pair = *session.pair;
  const bool may_come = pair.has_link() && pair.link().num_open() < kMostOfPeer;
  if (!may_come || frame.payload_bytes > unread_.size()) return false;
  const uint64_t number = frame.sequence;
  if (number <= session.last_taken) return false;
  session.last_taken = number;
  const auto found = session.posted.find(frame.slot);
  const bool is_awaited = found != session.posted.end() && !found->second.is_landing &&
                          found->second.landing.ref == frame.ref &&
                          found->second.landing.generation == frame.slot_generation &&
                          found->second.landing.memory.size() >= frame.payload_bytes;
  std::span<std::byte> memory;
  if (is_awaited) {
    found->second.is_landing = true;
    memory = found->second.landing.memory.first(frame.payload_bytes);
    session.in_pair[number] = {frame, {}};
  } else {
    ++counts_.frames_stale;
    memory = unread_.span().first(frame.payload_bytes);  // also of several connections at once
  }
  pair.link().receive(number, frame.payload_sum, memory);
  return pair.link().state() != DeviceLink::State::kBroken;
}

void DeviceTransport::fill_pair(Session& session) {
  DevicePair& pair = *session.pair;
  while (!session.queue.empty() && pair.is_open()) {
    KvOutgoing& next = session.queue.front();
    const bool is_data = next.frame.kind == KvFrameKind::kData;
    const bool may_go = is_data ? pair.is_ready() && pair.link().num_open() < kMostInPair
                                : pair.has_link() && pair.has_told_all();
    if (!may_go) return;
    KvFrame frame = next.frame;
    frame.sequence = ++session.last_number;
    frame.epoch = session.options.own_epoch;
    if (is_data) frame.payload_sum = pair.link().place_of(next.payload.front());
    if (is_data) {
      pair.send(frame, next.payload.front());
      session.in_pair[frame.sequence] = {frame, std::move(next.payload)};
    } else {
      pair.write(frame);
      if (frame.kind == KvFrameKind::kNak) release_outstanding();
    }
    session.queue.pop_front();
  }
}

void DeviceTransport::note_done(Session& session) {
  for (const uint64_t number : done_) {
    const auto found = session.in_pair.find(number);
    if (found == session.in_pair.end()) continue;  // no receiver waits for it
    const KvFrame frame = found->second.frame;
    session.in_pair.erase(found);
    if (!session.is_receiver()) {
      ++counts_.frames_sent;
      counts_.bytes_sent += frame.payload_bytes;
      release_outstanding();
      const bool is_aborted = std::ranges::any_of(
          session.aborted, [&](const Aborted& aborted) { return aborted.ref == frame.ref; });
      if (!is_aborted) add_completion({Kind::kSent, session.options.session, frame});
      continue;
    }
    const auto posted = session.posted.find(frame.slot);
    const bool is_awaited = posted != session.posted.end() && posted->second.is_landing &&
                            posted->second.landing.ref == frame.ref &&
                            posted->second.landing.generation == frame.slot_generation;
    if (!is_awaited) {  // replaced or taken back meanwhile
      ++counts_.frames_stale;
      continue;
    }
    session.posted.erase(posted);
    release_outstanding();
    ++counts_.frames_arrived;
    counts_.bytes_arrived += frame.payload_bytes;
    add_completion({Kind::kArrived, session.options.session, frame});
  }
}

// The link is gone: its payloads are sent again, except aborted ones.
void DeviceTransport::note_gone(Session& session) {
  for (auto at = session.in_pair.rbegin(); at != session.in_pair.rend(); ++at) {
    InPair& one = at->second;
    if (session.is_receiver()) {
      const auto posted = session.posted.find(one.frame.slot);
      if (posted != session.posted.end()) posted->second.is_landing = false;
      continue;
    }
    const bool is_aborted = std::ranges::any_of(
        session.aborted, [&](const Aborted& aborted) { return aborted.ref == one.frame.ref; });
    if (is_aborted || session.is_closed) {
      release_outstanding();
    } else {
      session.queue.push_front({one.frame, std::move(one.payload)});
    }
  }
  session.in_pair.clear();
  session.pair = std::move(session.next_pair);
}

// --- The thread ------------------------------------------------------------------------------

void DeviceTransport::wait() {
  std::chrono::nanoseconds tick = kIdleTick;
  for (const auto& [id, session] : sessions_) {
    if (session.pair == nullptr) continue;
    if (session.pair->is_changing()) tick = std::min(tick, kMakingTick);
    if (session.pair->is_moving()) tick = kTransferTick;
  }
  const bool is_waiting = sessions_.empty() && strangers_.empty();  // for a call or a stranger
  timespec time{};
  time.tv_nsec = tick.count();
  pollfd ready{.fd = epoll(), .events = POLLIN, .revents = 0};
  ppoll(&ready, 1, is_waiting ? nullptr : &time, nullptr);
  std::array<epoll_event, 64> events;  // every stream is looked at: which they are says nothing new
  while (epoll_wait(epoll(), events.data(), static_cast<int>(events.size()), 0) ==
         static_cast<int>(events.size())) {
  }
}

void DeviceTransport::run() {
  options_.device->enter();
  while (!is_closing()) {
    wait();
    do_commands();
    accept_all();
    advance_strangers();
    for (auto& [id, session] : sessions_) advance(session);
    for (auto at = sessions_.begin(); at != sessions_.end();) {
      const bool is_over = at->second.is_closed && at->second.pair == nullptr;
      if (is_over) add_completion({Kind::kClosed, at->first, {}});
      at = is_over ? sessions_.erase(at) : std::next(at);
    }
    tell_owner();
  }
  wait_for_readers();
}

// Waits until no peer reads this worker's memory, which is freed next; kGrace at most.
void DeviceTransport::wait_for_readers() {
  const Clock::time_point until = Clock::now() + kGrace;
  for (auto& [id, session] : sessions_) {
    if (session.pair != nullptr && session.pair->is_lent()) session.pair->finish();
  }
  const auto advance_lent = [](auto& entry) {
    DevicePair* const pair = entry.second.pair.get();
    if (pair == nullptr || !pair->is_lent()) return false;
    pair->advance_stream();
    return pair->is_lent();
  };
  while (std::ranges::count_if(sessions_, advance_lent) > 0 && Clock::now() < until) {
    wait();
  }
}

}  // namespace

Expected<std::unique_ptr<KvTransport>> make_device_transport(std::unique_ptr<DeviceLinks> links,
                                                             std::unique_ptr<KvStreamMaker> maker,
                                                             KvTransportOptions options) {
  auto transport =
      std::make_unique<DeviceTransport>(std::move(links), std::move(maker), std::move(options));
  SLUICE_TRY_VOID(transport->start());
  return transport;
}

}  // namespace sluice
