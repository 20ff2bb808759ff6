// SPDX-License-Identifier: Apache-2.0
// One stream of a session and what is on its way on it in both directions; and what a session
// keeps. The transport's thread alone (transport_stream.cpp).
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
#include "kvcache/kv_stream.h"
#include "kvcache/kv_transport.h"
#include "kvcache/transport_front.h"

namespace sluice {

class KvConnection;

struct KvPostedSlot {
  KvLanding landing;
  KvConnection* reader = nullptr;  // whose payload is landing in it
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

// What connections need of the transport.
class KvConnectionOwner {
 public:
  virtual ~KvConnectionOwner() = default;
  // Null: nobody has this token.
  virtual KvSessionState* find_session(const KvSessionToken& token) = 0;
  virtual void complete(KvCompletion completion) = 0;
  // Of what a peer says whenever it likes. False: more often than one that means well.
  virtual bool tell_once(KvCompletion completion) = 0;
  // A slot or a queued frame is the caller's again.
  virtual void release_one() = 0;
  virtual KvAtomicCounts& atomic_counts() = 0;
  virtual std::span<std::byte> scratch() = 0;  // for payloads that nobody waits for
};

class KvConnection {
 public:
  using Clock = std::chrono::steady_clock;

  enum class Progress : uint8_t {
    kBlocked,  // until the next edge
    kMore,     // there may be more to do
    kLater,    // likewise, when what the owner has said meanwhile is done
    kLost,     // the stream has ended
    kRefused,  // the peer sent what no peer sends
  };

  // With a session: dialled for it. Without: accepted, and whose it is its HELLO says.
  KvConnection(uint64_t id,
               std::unique_ptr<KvStream> stream,
               KvSessionState* session,
               KvConnectionOwner& owner);
  // A slot that was being written is posted again, and a frame of which a part was sent is the
  // first of the queue again.
  ~KvConnection();
  KvConnection(const KvConnection&) = delete;
  KvConnection& operator=(const KvConnection&) = delete;

  // At most about a MiB.
  Progress read_some();
  // At most one frame.
  Progress write_some();

  // The slot's memory is not touched any more: the rest of its payload is read away.
  void drop_landing() { landing_ = nullptr; }

  // Of which a part may have been sent; null: none.
  [[nodiscard]] const KvFrame* outgoing() const { return current_ ? &current_->frame : nullptr; }

  [[nodiscard]] bool wants_to_write() const {
    return current_ || hello_ || (session_ != nullptr && !session_->queue.empty());
  }

  [[nodiscard]] uint64_t id() const { return id_; }

  [[nodiscard]] KvSessionState* session() const { return session_; }

  [[nodiscard]] Clock::time_point since() const { return since_; }

  // Set by edges, cleared when a call says kBlocked.
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
  // Nothing: it goes by write().
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
  // A frame for what is not known here: its peer may have heard of it first.
  std::optional<KvFrame> early_;
  KvFrame frame_;                    // whose payload is read
  uint64_t payload_left_ = 0;        // 0: a header comes next
  KvPostedSlot* landing_ = nullptr;  // null: nobody waits for the payload
  kernels::KvChecksum payload_sum_;

  // Writing.
  std::optional<KvOutgoing> hello_;
  std::optional<KvOutgoing> current_;
  std::array<std::byte, kKvFrameBytes> out_header_ = {};
  size_t out_part_ = 0;    // 0: the header, then the payload's spans
  size_t out_offset_ = 0;  // in that part
};

}  // namespace sluice
