// SPDX-License-Identifier: Apache-2.0
// One stream of a session and what is in transit on it in both directions; and the state of a
// session. The transport's thread alone (transport_stream.cpp).
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "kernels/kv_checksum.h"
#include "kvcache/transport/kv_stream.h"
#include "kvcache/transport/kv_transport.h"
#include "kvcache/transport/transport_front.h"

namespace sluice {

class KvConnection;

struct KvPostedSlot {
  KvLanding landing;
  KvConnection* reader = nullptr;  // the connection whose payload is landing in the slot
};

struct KvSessionState {
  KvSessionOptions options;
  std::unordered_map<uint32_t, KvPostedSlot> posted;  // by slot
  std::deque<KvOutgoing> queue;
  std::vector<KvConnection*> connections;
  uint64_t sequence = 0;
  std::chrono::steady_clock::time_point dial_at;

  [[nodiscard]] bool is_receiver() const { return !options.address.empty(); }
};

// The transport's services to its connections.
class KvConnectionOwner {
 public:
  virtual ~KvConnectionOwner() = default;
  // The session with this token, or null.
  virtual KvSessionState* find_session(const KvSessionToken& token) = 0;
  virtual void complete(KvCompletion completion) = 0;
  // Reports a frame that a peer may send at any time. False: more often than an honest peer does.
  virtual bool tell_once(KvCompletion completion) = 0;
  // Gives a slot or a queued frame back to the caller.
  virtual void release_one() = 0;
  virtual KvAtomicCounts& atomic_counts() = 0;
  virtual std::span<std::byte> scratch() = 0;  // for payloads without a posted slot
};

class KvConnection {
 public:
  using Clock = std::chrono::steady_clock;

  enum class Progress : uint8_t {
    kBlocked,  // nothing more to do before the next edge
    kMore,     // there may be more to do
    kLater,    // likewise, after the owner's commands so far are done
    kLost,     // the stream has ended
    kRefused,  // the peer sent what no peer sends
  };

  // `session`: the stream was dialled for it; null: accepted, and its HELLO names the session.
  KvConnection(uint64_t id,
               std::unique_ptr<KvStream> stream,
               KvSessionState* session,
               KvConnectionOwner& owner);
  // Posts a slot that was being written again, and puts a frame of which a part was sent back to
  // the front of the queue.
  ~KvConnection();
  KvConnection(const KvConnection&) = delete;
  KvConnection& operator=(const KvConnection&) = delete;

  // Reads at most about 1 MiB.
  Progress read_some();
  // Writes at most one frame.
  Progress write_some();

  // The slot's memory is not touched any more: the rest of its payload is read and discarded.
  void drop_landing() { landing_ = nullptr; }

  // The frame of which a part may have been sent, or null.
  [[nodiscard]] const KvFrame* outgoing() const { return current_ ? &current_->frame : nullptr; }

  [[nodiscard]] bool wants_to_write() const {
    return current_ || hello_ || (session_ != nullptr && !session_->queue.empty());
  }

  [[nodiscard]] uint64_t id() const { return id_; }

  [[nodiscard]] KvSessionState* session() const { return session_; }

  [[nodiscard]] Clock::time_point since() const { return since_; }

  // Readiness, set by edges and cleared when a call returns kBlocked.
  bool may_read = true;
  bool may_write = true;

 private:
  Progress take_header();
  Progress take_hello(const KvFrame& frame);
  Progress take_frame(const KvFrame& frame, bool is_again);
  Progress take_known_frame(const KvFrame& frame, bool is_again);
  [[nodiscard]] KvPostedSlot* find_slot(const KvFrame& frame) const;
  Progress read_payload();
  void end_payload();
  bool begin_outgoing();
  // Returns nullopt if the frame must be sent by write().
  std::optional<Progress> copy_outgoing();
  void encode_outgoing(uint64_t payload_sum);
  void end_outgoing();

  const uint64_t id_;
  const std::unique_ptr<KvStream> stream_;
  KvSessionState* session_;
  KvConnectionOwner& owner_;
  const Clock::time_point since_ = Clock::now();

  // Reading.
  std::array<std::byte, kKvFrameBytes> header_ = {};
  size_t header_bytes_ = 0;
  // A frame that names something not known here yet: its peer may have heard of it first.
  std::optional<KvFrame> early_;
  KvFrame frame_;                    // frame whose payload is read
  uint64_t payload_left_ = 0;        // 0: a header is next
  KvPostedSlot* landing_ = nullptr;  // null: the payload has no posted slot
  kernels::KvChecksum payload_sum_;

  // Writing.
  std::optional<KvOutgoing> hello_;
  std::optional<KvOutgoing> current_;
  std::array<std::byte, kKvFrameBytes> out_header_ = {};
  size_t out_part_ = 0;    // 0: the header, then the payload's spans
  size_t out_offset_ = 0;  // offset in that part
};

}  // namespace sluice
