// SPDX-License-Identifier: Apache-2.0
// One connection of a session: it reads and writes frames, and moves their payloads in the way of
// its kind: after their headers (transport_stream.h), or from device to device
// (transport_device.h). The session (transport_session.h) decides what is sent, where payloads land
// and when the connection ends. The transport's thread alone.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kvcache/transport/kv_stream.h"
#include "kvcache/transport/kv_transport.h"

namespace sluice {

struct KvOutgoing {
  KvFrame frame;
  KvPayload payload;
};

// A frame was sent, or a payload is in its slot.
struct KvDone {
  uint64_t number = 0;  // the frame's sequence
  bool is_sent = false;
  bool is_good = true;  // of a payload that landed: agrees with its sum
};

class KvConnection {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::nanoseconds kNever = std::chrono::nanoseconds::max();

  enum class Sent : uint8_t {
    kNotNow,  // nothing was sent
    kPart,    // a later KvDone reports the end
    kAll,
  };

  // Why the session must close the connection.
  enum class Failure : uint8_t {
    kNone,
    kLost,     // the stream or the link has ended
    kRefused,  // the peer broke the protocol, or no payload can travel
  };

  struct Landing {
    KvFrame frame;
    bool is_dropped = false;  // its slot is not posted any more
  };

  KvConnection(uint64_t id, std::unique_ptr<KvStream> stream, bool is_receiver)
      : id_(id), is_receiver_(is_receiver), stream_(std::move(stream)) {}

  virtual ~KvConnection() = default;
  KvConnection(const KvConnection&) = delete;
  KvConnection& operator=(const KvConnection&) = delete;

  // Reads at most about `budget` bytes, and no more than up to the end of a header, which
  // take_frame() takes. Returns how many.
  size_t read(size_t budget, std::vector<KvDone>& done);
  // Returns the frame whose header has been read. Fails if the bytes are not a frame's header.
  std::optional<KvFrame> take_frame();
  // Queues a frame that has no payload.
  void put(const KvFrame& frame);

  // Receiver: takes the payload of the DATA frame that was read last. `memory`: its slot's, or
  // empty to discard it. False: the peer broke the protocol, or the link is broken.
  virtual bool receive(const KvFrame& frame, std::span<std::byte> memory) = 0;
  // Stops receiving a payload. False: a device is still writing it.
  virtual bool drop_landing() = 0;
  // Sends a frame and its payload, which stay where they are while a part is to be sent.
  virtual Sent send(KvOutgoing& outgoing) = 0;

  // Handles a frame for the connection itself, not for its session. False: the peer broke the
  // protocol.
  virtual bool accept_own(const KvFrame& /*frame*/) { return false; }

  // Advances transfers that do not use the stream.
  virtual void advance(const KvSessionOptions& /*options*/, std::vector<KvDone>& /*done*/) {}

  // Writes what is queued. Returns whether it wrote the last of something.
  virtual bool write(std::vector<KvDone>& done) = 0;

  // Returns how long a payload of an aborted attempt may go on before the connection ends.
  [[nodiscard]] virtual std::chrono::milliseconds grace() const { return {}; }

  // Tells whether a session has one such connection at a time: a later one waits until it is gone.
  [[nodiscard]] virtual bool is_alone() const { return false; }

  // Returns the poll interval for changes that no descriptor reports.
  [[nodiscard]] virtual std::chrono::nanoseconds tick() const { return kNever; }

  // Returns why no payload can travel; empty: one can.
  [[nodiscard]] const std::string& refusal() const { return refusal_; }

  // Ends it.
  virtual void end();

  [[nodiscard]] bool is_open() const { return is_open_; }

  // Tells whether it has ended and touches no payload and no slot any more.
  [[nodiscard]] virtual bool is_gone() { return !is_open_; }

  // Sender: tells whether the peer may still read this worker's memory.
  [[nodiscard]] virtual bool is_lent() const { return false; }

  // Sender: tells the peer that nothing more follows; its connection then ends.
  void finish() { stream_->finish(); }

  void fail(Failure failure) { failure_ = failure_ == Failure::kNone ? failure : failure_; }

  [[nodiscard]] Failure failure() const { return failure_; }

  [[nodiscard]] uint64_t id() const { return id_; }

  [[nodiscard]] bool moves(const KvTransferRef& ref) const;

  // Readiness, set by edges and cleared when the stream takes or gives nothing.
  bool may_read = true;
  bool may_write = true;

  // The session's notes: frames that were given to send() and are not sent, and payloads that are
  // landing in posted slots.
  std::deque<KvOutgoing> sending;
  std::deque<Landing> landing;

 protected:
  // Reads a part of what comes next. Returns how many bytes; 0: none now.
  virtual size_t read_part(size_t budget, std::vector<KvDone>& done) = 0;
  // Reads into memory, and adds the bytes to `sum` if it is not null.
  size_t read_into(std::span<std::byte> out, kernels::KvChecksum* sum);
  size_t read_header();
  // Writes what is queued, then the payload after it. True: all of it is written.
  bool write_out(std::span<const std::span<const std::byte>> payload);

  const uint64_t id_;
  const bool is_receiver_;
  std::unique_ptr<KvStream> stream_;
  bool is_open_ = true;
  std::string refusal_;
  std::vector<std::byte> out_;  // queued; begins with what was written of it

 private:
  std::array<std::byte, kKvFrameBytes> header_ = {};
  size_t header_bytes_ = 0;
  size_t out_part_ = 0;    // 0: out_, then the payload's spans
  size_t out_offset_ = 0;  // offset in that part
  Failure failure_ = Failure::kNone;
};

}  // namespace sluice
