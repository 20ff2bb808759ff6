// SPDX-License-Identifier: Apache-2.0
// The state machine of one session of a transport, for all kinds of connections
// (transport_connection.h). It has no thread and no descriptor, and gets the time from its caller
// (transport_sessions.cpp). The transport's thread alone.
//
//   slot        posted, landing while a connection fills it, then free. Its connection ends: posted
//   frame       queued, sending while a connection has a part of it, then sent. Likewise: queued,
//               in front of the others
//   connection  open, ended by its failure or the session, then gone: it touches no payload and no
//               slot any more
//   attempt     live, then aborted: its posted slots and queued frames are given back at once.
//               What a connection is moving of it is dropped (KvConnection::drop_landing()) or
//               waited for, as long as the connection allows (KvConnection::grace()), and then the
//               connection ends. Nothing moves any more: kWriterGone
//   session     open, closed, then over, when all connections are gone
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "kvcache/transport/kv_transport.h"
#include "kvcache/transport/transport_connection.h"

namespace sluice {

// Written by the transport's thread.
using KvAtomicCounts = KvCountsOf<std::atomic<uint64_t>>;

// The transport's services to its sessions.
class KvSessionOwner {
 public:
  virtual ~KvSessionOwner() = default;
  // Executes the owner's commands so far, also those for the session that calls it.
  virtual void run_commands() = 0;
  virtual void complete(const KvCompletion& completion) = 0;
  // Reports a frame that a peer may send at any time. False: more often than an honest peer does.
  virtual bool report_once(const KvCompletion& completion) = 0;
  // Gives a slot or a queued frame back to the caller.
  virtual void release_one() = 0;
  virtual KvAtomicCounts& atomic_counts() = 0;
  // Logs why no payload can travel between the session's workers.
  virtual void warn(const std::string& reason) = 0;
};

class KvSessionState {
 public:
  using Clock = KvConnection::Clock;
  static constexpr size_t kMostEnds = 4096;  // frames in front of a sender's END
  // Poll interval while there is something to time.
  static constexpr std::chrono::nanoseconds kTimerTick{50'000'000};

  // `num_connections`: that a receiver makes.
  KvSessionState(KvSessionOptions options,
                 size_t num_connections,
                 KvSessionOwner& owner,
                 Clock::time_point now);

  // The calls of KvTransport. They do nothing that waits.
  void post(const KvLanding& landing);

  void send(KvOutgoing outgoing) { queue_.push_back(std::move(outgoing)); }

  void abort(const KvTransferRef& ref, Clock::time_point now);
  void close();

  // Sender: takes a connection of which the HELLO was read. False, and it stays the caller's: this
  // is a receiver, the HELLO is of another epoch, or there are too many connections.
  bool accept(const KvFrame& hello, std::unique_ptr<KvConnection>& connection);

  // Receiver: tells whether to dial for one more connection.
  [[nodiscard]] bool should_dial(Clock::time_point now) const {
    return lacks_connections() && now >= dial_at_;
  }

  // Receiver: lets no connection be dialled before that time.
  void delay_dialling(Clock::time_point until) { dial_at_ = std::max(dial_at_, until); }

  // Adds a connection that was dialled; it says HELLO first.
  void add_dialled(std::unique_ptr<KvConnection> connection);

  // Does what is possible now. `redial_time`: KvTransportOptions. Returns whether there may be more
  // to do at once.
  bool advance(Clock::time_point now, std::chrono::milliseconds redial_time);

  // Tells whether close() was called and nothing is touched any more.
  [[nodiscard]] bool is_over() const { return is_closed_ && connections_.empty(); }

  // Returns after which time advance() may have something to do that no descriptor reports;
  // kNever: not before a descriptor does.
  [[nodiscard]] std::chrono::nanoseconds tick() const;

  [[nodiscard]] const KvSessionOptions& options() const { return options_; }

  [[nodiscard]] bool is_receiver() const { return !options_.address.empty(); }

  [[nodiscard]] bool is_closed() const { return is_closed_; }

  [[nodiscard]] std::span<const std::unique_ptr<KvConnection>> connections() const {
    return connections_;
  }

 private:
  struct Posted {
    KvLanding landing;
    KvConnection* filler = nullptr;  // the connection whose payload is landing in the slot
  };

  struct Aborted {
    KvTransferRef ref;
    Clock::time_point at;
  };

  [[nodiscard]] bool lacks_connections() const {
    return is_receiver() && !is_closed_ && connections_.size() < num_connections_;
  }

  void reclaim(const KvTransferRef* ref);
  void drop_landing(const Posted& slot);
  void end_aborted(Clock::time_point now);
  [[nodiscard]] bool is_aborted(const KvTransferRef& ref) const;
  bool advance(KvConnection& connection);
  bool read(KvConnection& connection);
  bool take_frame(KvConnection& connection, const KvFrame& frame);
  bool take_end(const KvFrame& frame);
  bool take_payload(KvConnection& connection, const KvFrame& frame);
  bool send_next(KvConnection& connection);
  void note_done(KvConnection& connection);
  void note_sent(const KvFrame& frame);
  void note_landed(KvConnection& connection, const KvDone& done);
  void end(KvConnection& connection);
  void give_back(KvConnection& connection);

  const KvSessionOptions options_;
  const size_t num_connections_;
  KvSessionOwner& owner_;
  std::unordered_map<uint32_t, Posted> posted_;  // by slot
  std::deque<KvOutgoing> queue_;
  std::vector<std::unique_ptr<KvConnection>> connections_;
  std::vector<Aborted> aborted_;  // of which a connection moves a payload
  std::vector<KvDone> done_;
  uint64_t sequence_ = 0;
  size_t turn_ = 0;
  Clock::time_point dial_at_;
  bool has_warned_ = false;
  bool is_closed_ = false;
};

}  // namespace sluice
