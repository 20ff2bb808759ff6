// SPDX-License-Identifier: Apache-2.0
#include "kvcache/transport/transport_session.h"

#include <algorithm>
#include <utility>

namespace sluice {
namespace {

using Kind = KvCompletion::Kind;

constexpr size_t kReadBytesPerTurn = size_t{1} << 20;
constexpr size_t kMostConnections = 16;

// Tells whether `ref` is the attempt; null matches all attempts.
bool is_of(const KvTransferRef& ref, const KvTransferRef* attempt) {
  return attempt == nullptr || ref == *attempt;
}

}  // namespace

KvSessionState::KvSessionState(KvSessionOptions options,
                               size_t num_connections,
                               KvSessionOwner& owner,
                               Clock::time_point now)
    : options_(std::move(options)),
      num_connections_(num_connections),
      owner_(owner),
      dial_at_(now) {}

// --- Calls of the transport's owner ----------------------------------------------------------

// A device that still writes an earlier payload into the slot is done before a later one begins.
void KvSessionState::post(const KvLanding& landing) {
  const auto [at, is_new] = posted_.try_emplace(landing.slot);
  if (!is_new) {
    drop_landing(at->second);
    owner_.release_one();
  }
  at->second = {landing, nullptr};
}

void KvSessionState::abort(const KvTransferRef& ref, Clock::time_point now) {
  reclaim(&ref);
  aborted_.push_back({ref, now});
  end_aborted(now);
  // A peer that gets no END learns of it from the control channel.
  const bool can_tell =
      std::ranges::any_of(connections_, [](const auto& one) { return !one->is_gone(); });
  if (is_receiver() || !can_tell || queue_.size() >= kMostEnds) return;
  KvFrame frame;
  frame.kind = KvFrameKind::kEnd;
  frame.ref = ref;
  queue_.push_back({frame, {}});
}

void KvSessionState::close() {
  is_closed_ = true;
  reclaim(nullptr);
  for (const auto& connection : connections_) end(*connection);
}

// Takes back slots and queued frames of the attempt, or all of them; not what is being sent.
void KvSessionState::reclaim(const KvTransferRef* ref) {
  std::erase_if(posted_, [&](const auto& entry) {
    if (!is_of(entry.second.landing.ref, ref)) return false;
    drop_landing(entry.second);
    owner_.release_one();
    return true;
  });
  std::erase_if(queue_, [&](const KvOutgoing& outgoing) {
    if (!is_of(outgoing.frame.ref, ref)) return false;
    if (outgoing.frame.kind != KvFrameKind::kEnd) owner_.release_one();
    return true;
  });
}

void KvSessionState::drop_landing(const Posted& slot) {
  if (slot.filler == nullptr) return;
  std::deque<KvConnection::Landing>& landing = slot.filler->landing;
  const auto at = std::ranges::find_if(landing, [&](const KvConnection::Landing& one) {
    return one.frame.slot == slot.landing.slot && !one.is_dropped;
  });
  if (slot.filler->drop_landing()) {
    landing.erase(at);
  } else {
    at->is_dropped = true;
  }
}

void KvSessionState::end_aborted(Clock::time_point now) {
  for (const Aborted& aborted : aborted_) {
    for (const auto& connection : connections_) {
      const bool is_late = now >= aborted.at + connection->grace();
      if (is_late && connection->moves(aborted.ref)) end(*connection);
    }
  }
  std::erase_if(aborted_, [&](const Aborted& aborted) {
    const bool is_moved = std::ranges::any_of(
        connections_, [&](const auto& connection) { return connection->moves(aborted.ref); });
    if (is_moved) return false;
    KvFrame gone;
    gone.ref = aborted.ref;
    owner_.complete({Kind::kWriterGone, options_.session, gone});
    return true;
  });
}

bool KvSessionState::is_aborted(const KvTransferRef& ref) const {
  return std::ranges::find(aborted_, ref, &Aborted::ref) != aborted_.end();
}

// --- Connections -----------------------------------------------------------------------------

bool KvSessionState::accept(const KvFrame& hello, std::unique_ptr<KvConnection>& connection) {
  if (is_receiver() || !check_kv_frame(hello, options_.layout, options_.peer_epoch)) return false;
  if (connection->is_alone() && !connections_.empty()) {
    // A receiver that connects again has lost its previous connection.
    if (connections_.front()->is_open()) ++owner_.atomic_counts().connections_lost;
    end(*connections_.front());
    connections_.resize(1);
  }
  if (connections_.size() >= kMostConnections) return false;
  connections_.push_back(std::move(connection));
  return true;
}

void KvSessionState::add_dialled(std::unique_ptr<KvConnection> connection) {
  KvFrame hello;
  hello.kind = KvFrameKind::kHello;
  hello.ref.transfer = options_.token;
  hello.epoch = options_.own_epoch;
  connection->put(hello);
  connections_.push_back(std::move(connection));
}

void KvSessionState::end(KvConnection& connection) {
  if (connection.is_open()) connection.end();
  if (connection.is_gone()) give_back(connection);
}

// The connection is gone: what it did not send is sent by another one, except what was aborted.
void KvSessionState::give_back(KvConnection& connection) {
  for (const KvConnection::Landing& landing : connection.landing) {
    if (!landing.is_dropped) posted_.at(landing.frame.slot).filler = nullptr;
  }
  connection.landing.clear();
  while (!connection.sending.empty()) {
    KvOutgoing outgoing = std::move(connection.sending.back());
    connection.sending.pop_back();
    if (!is_closed_ && !is_aborted(outgoing.frame.ref)) {
      queue_.push_front(std::move(outgoing));
    } else if (outgoing.frame.kind != KvFrameKind::kEnd) {
      owner_.release_one();
    }
  }
}

// Each time another connection is first: no frame waits for a slow connection twice.
bool KvSessionState::advance(Clock::time_point now, std::chrono::milliseconds redial_time) {
  bool more = false;
  const size_t count = connections_.size();
  ++turn_;
  for (size_t i = 0; i < count; ++i) {
    KvConnection& connection = *connections_[(turn_ + i) % count];
    if (connection.is_alone() && &connection != connections_.front().get()) continue;
    more = advance(connection) || more;
    const KvConnection::Failure failure = connection.failure();
    if (!connection.is_open() || failure == KvConnection::Failure::kNone) continue;
    KvAtomicCounts& counts = owner_.atomic_counts();
    ++(failure == KvConnection::Failure::kRefused ? counts.connections_refused
                                                  : counts.connections_lost);
    // A retry does not help, but is made.
    const std::string& why = connection.refusal();
    if (!why.empty() && !std::exchange(has_warned_, true)) owner_.warn(why);
    end(connection);
    // One that is alone is dialled again at once if it was dialled that long ago.
    if (!connection.is_alone()) delay_dialling(now + redial_time);
  }
  const size_t num_gone =
      std::erase_if(connections_, [this](const std::unique_ptr<KvConnection>& connection) {
        if (!connection->is_gone()) return false;
        give_back(*connection);
        return true;
      });
  end_aborted(now);
  return more || num_gone > 0;
}

bool KvSessionState::advance(KvConnection& connection) {
  if (!connection.is_open()) return false;
  const bool may_read = read(connection);
  if (!connection.is_open()) return false;
  connection.advance(options_, done_);
  bool has_moved = !done_.empty();
  note_done(connection);
  has_moved = send_next(connection) || has_moved;
  has_moved = connection.write(done_) || has_moved;
  note_done(connection);
  return may_read || (has_moved && !queue_.empty());
}

std::chrono::nanoseconds KvSessionState::tick() const {
  const bool has_timer = !aborted_.empty() || lacks_connections();
  std::chrono::nanoseconds tick = has_timer ? kTimerTick : KvConnection::kNever;
  for (const auto& connection : connections_) tick = std::min(tick, connection->tick());
  return tick;
}

// --- Reading ---------------------------------------------------------------------------------

// Returns whether there may be more to read.
bool KvSessionState::read(KvConnection& connection) {
  size_t budget = kReadBytesPerTurn;
  while (budget > 0) {
    const size_t count = connection.read(budget, done_);
    note_done(connection);
    budget -= std::min(budget, count);
    const std::optional<KvFrame> frame = connection.take_frame();
    if (frame) {
      // Commands that a peer knew of when it sent a frame are queued by now: they run first.
      owner_.run_commands();
      if (!connection.is_open()) return false;
      if (!take_frame(connection, *frame)) connection.fail(KvConnection::Failure::kRefused);
    }
    if (connection.failure() != KvConnection::Failure::kNone) return false;
    if (!frame && count == 0) return false;
  }
  return true;
}

// False: no peer sends it.
bool KvSessionState::take_frame(KvConnection& connection, const KvFrame& frame) {
  if (!check_kv_frame(frame, options_.layout, options_.peer_epoch)) return false;
  switch (frame.kind) {
    case KvFrameKind::kData:
      return is_receiver() && take_payload(connection, frame);
    case KvFrameKind::kEnd:
      return is_receiver() && take_end(frame);
    case KvFrameKind::kNak:
      return !is_receiver() && owner_.report_once({Kind::kNak, options_.session, frame});
    case KvFrameKind::kHello:
      return false;
    case KvFrameKind::kReady:
    case KvFrameKind::kRead:
    case KvFrameKind::kKept:
      return connection.accept_own(frame);
  }
  return false;
}

bool KvSessionState::take_end(const KvFrame& frame) {
  const bool is_waited_for = std::ranges::any_of(
      posted_, [&](const auto& entry) { return entry.second.landing.ref == frame.ref; });
  return !is_waited_for || owner_.report_once({Kind::kEnded, options_.session, frame});
}

bool KvSessionState::take_payload(KvConnection& connection, const KvFrame& frame) {
  const auto found = posted_.find(frame.slot);
  const bool is_awaited = found != posted_.end() && found->second.filler == nullptr &&
                          found->second.landing.ref == frame.ref &&
                          found->second.landing.generation == frame.slot_generation &&
                          found->second.landing.memory.size() >= frame.payload_bytes;
  if (!is_awaited) {
    ++owner_.atomic_counts().frames_stale;
    return connection.receive(frame, {});
  }
  found->second.filler = &connection;
  connection.landing.push_back({frame});
  return connection.receive(frame, found->second.landing.memory.first(frame.payload_bytes));
}

// --- Writing, and what is done ---------------------------------------------------------------

// Sends at most one frame. Returns whether it did.
bool KvSessionState::send_next(KvConnection& connection) {
  if (queue_.empty() || connection.failure() != KvConnection::Failure::kNone) return false;
  KvOutgoing& outgoing = connection.sending.emplace_back(std::move(queue_.front()));
  queue_.pop_front();
  outgoing.frame.sequence = sequence_ + 1;
  outgoing.frame.epoch = options_.own_epoch;
  const KvConnection::Sent sent = connection.send(outgoing);
  if (sent == KvConnection::Sent::kPart) {
    ++sequence_;
    return true;
  }
  if (sent == KvConnection::Sent::kAll) {
    ++sequence_;
    note_sent(outgoing.frame);
  } else {
    queue_.push_front(std::move(outgoing));
  }
  connection.sending.pop_back();
  return sent == KvConnection::Sent::kAll;
}

void KvSessionState::note_done(KvConnection& connection) {
  for (const KvDone& done : done_) {
    if (!done.is_sent) {
      note_landed(connection, done);
      continue;
    }
    const auto at = std::ranges::find(
        connection.sending, done.number, [](const KvOutgoing& one) { return one.frame.sequence; });
    CHECK(at != connection.sending.end());
    const KvFrame frame = at->frame;
    connection.sending.erase(at);
    note_sent(frame);
  }
  done_.clear();
}

void KvSessionState::note_sent(const KvFrame& frame) {
  if (frame.kind == KvFrameKind::kEnd) return;
  owner_.release_one();
  if (frame.kind != KvFrameKind::kData) return;
  KvAtomicCounts& counts = owner_.atomic_counts();
  ++counts.frames_sent;
  counts.bytes_sent += frame.payload_bytes;
  if (!is_aborted(frame.ref)) owner_.complete({Kind::kSent, options_.session, frame});
}

void KvSessionState::note_landed(KvConnection& connection, const KvDone& done) {
  std::deque<KvConnection::Landing>& landing = connection.landing;
  if (landing.empty() || landing.front().frame.sequence != done.number) return;  // without a slot
  const KvConnection::Landing one = landing.front();
  landing.pop_front();
  KvAtomicCounts& counts = owner_.atomic_counts();
  if (one.is_dropped) {
    ++counts.frames_stale;
    return;
  }
  posted_.erase(one.frame.slot);
  owner_.release_one();
  if (done.is_good) {
    ++counts.frames_arrived;
    counts.bytes_arrived += one.frame.payload_bytes;
  } else {
    ++counts.frames_spoiled;
  }
  owner_.complete({done.is_good ? Kind::kArrived : Kind::kSpoiled, options_.session, one.frame});
}

}  // namespace sluice
