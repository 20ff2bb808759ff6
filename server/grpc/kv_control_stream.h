// SPDX-License-Identifier: Apache-2.0
// One stream of control messages between two workers, from the handshake to its end, without the
// transport: either side's gRPC object starts reads and writes for it and reports how they ended.
// Any thread.
#pragma once

#include <kv_control.pb.h>

#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>

#include "engine/handoff/kv_peer.h"
#include "server/grpc/kv_handshake.h"

namespace sluice {

struct KvStreamSettings {
  KvHello own;
  std::string secret;                    // empty: none
  std::chrono::milliseconds ping{1000};  // between two pings
  // Limits silence, one write, and the time from the start to the end of Hello.
  std::chrono::milliseconds dead{5000};
};

// The transport of a stream. One operation of each kind at a time; none started inside a call into
// the stream is reported before that call has returned.
class KvWire {
 public:
  virtual ~KvWire() = default;
  virtual void start_read(kv::v1::Envelope& into) = 0;
  virtual void start_write(const kv::v1::Envelope& message) = 0;
  // The last call. `is_refused`: the peer sent something wrong; else the stream broke or is closed.
  virtual void finish(bool is_refused, const std::string& reason) = 0;
  // Returns the peer's address, such as "ipv4:127.0.0.1:4711".
  [[nodiscard]] virtual std::string peer() const = 0;
};

// Returns the address of a peer's transport that says to listen at `address`: a wildcard host
// becomes the host that the stream connects to (`peer`: KvWire::peer()). Others stay.
std::string reached_by(const std::string& address, std::string_view peer);

class KvControlStream {
 public:
  using Clock = std::chrono::steady_clock;

  // `sink` gets KvPeerUp, messages and KvPeerDown; a listener's stream reports KvPeerDown only
  // after KvPeerUp. Settings and sink outlive it. `hides_failure`: KvPeerDown is reported a fixed
  // time after the start, however the handshake failed, so that a client that names the peer cannot
  // learn whether something listens there.
  KvControlStream(KvPeerId id,
                  KvSide side,
                  const KvStreamSettings& settings,
                  KvPeerSink& sink,
                  bool hides_failure = false);

  [[nodiscard]] KvPeerId id() const { return id_; }

  // The wire lives until finish() is called on it, or longer.
  void start(KvWire& wire);
  void on_read(bool ok);
  void on_write(bool ok);
  // Returns false if the stream is over, the peer does not read, or the message is too large.
  bool send(const KvMessage& message);
  // Called about ten times a second.
  void tick(Clock::time_point now, uint64_t num_steps, const KvLoad& load);
  void close(const std::string& reason);
  [[nodiscard]] bool is_over() const;
  // Tells whether the peer has proven itself, and the stream is open.
  [[nodiscard]] bool is_up() const;

 private:
  // kFailing: the stream has broken, and its end is not reported yet.
  enum class State : uint8_t { kHandshake, kUp, kFailing, kOver };

  // Called with mutex_ held.
  void end(bool is_refused, const std::string& reason);
  void send_failure();
  [[nodiscard]] bool has_ended() const { return state_ >= State::kFailing; }
  void handle(const kv::v1::Envelope& in);
  void handle_challenge(const kv::v1::Envelope& in);
  void handle_hello(const kv::v1::Envelope& in);
  void handle_ping(const kv::v1::Ping& ping);
  void queue(kv::v1::Envelope message);
  void write_next();
  void read_next();

  const KvPeerId id_;
  const KvSide side_;
  const KvStreamSettings& settings_;
  KvPeerSink& sink_;
  const bool hides_failure_;
  const Clock::time_point began_at_;

  mutable std::mutex mutex_;
  KvWire* wire_ = nullptr;
  State state_ = State::kHandshake;
  std::string failure_;  // while kFailing
  KvNonce nonce_{};
  std::array<uint8_t, 16> session_{};
  bool has_challenge_ = false;
  kv::v1::Envelope in_;
  std::deque<kv::v1::Envelope> out_;   // the first one is being written while is_writing_
  std::deque<kv::v1::Envelope> held_;  // messages until the stream is up
  bool is_writing_ = false;
  bool is_reading_ = false;
  uint32_t reads_left_ = 0;  // messages that the peer may send before the next refill, in a second
  Clock::time_point refill_at_;
  Clock::time_point heard_at_;
  Clock::time_point wrote_at_;  // start of the current write
  Clock::time_point ping_at_;
  uint64_t num_pings_ = 0;
  uint64_t num_steps_ = 0;
  KvLoad load_;
};

}  // namespace sluice
