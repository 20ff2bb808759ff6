// SPDX-License-Identifier: Apache-2.0
// Moves bytes of KV from one worker's memory into another's: the interface of TCP, shared memory
// and other transports (transport_registry.cpp). Nothing above kvcache/ depends on which one it is.
//
// Payloads and slots are host memory, or device memory if moves_device_memory().
//
// A session is one direction between two workers: the receiver connects, and the sender accepts
// peers that present the session's token, which both received on the control channel. Payloads land
// in slots, pieces of the receiver's memory outside of the paged cache, and are checked there: the
// header against the layout and against what was posted, the payload against its sum, in memory
// that the sender can no longer write. A frame for a slot that is not posted under its transfer,
// attempt and generation is read, discarded and counted.
//
// A session outlives its connections: one that is lost, or whose peer violates the protocol, is
// closed and made again a little later. Frames in transit on it may be lost. A transport never
// reports that a peer is dead, which is the control channel's task, and has no timer that ends a
// transfer.
//
// All calls are made on the owner's thread (the engine's), and no call waits. One thread of the
// transport's own moves bytes. That thread owns the slots and payloads passed to a call until the
// completion that returns them.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/core/status.h"
#include "kernels/device_memory.h"
#include "kernels/nccl_library.h"
#include "kvcache/transport/kv_frame.h"

namespace sluice {

// A session's number, chosen by the owner: unique among its sessions not yet reported closed.
using KvSession = uint64_t;

struct KvSessionOptions {
  KvSession session = 0;
  KvSessionToken token = {};
  // The sender's address as received on the control channel (KvTransport::address()): this side
  // connects and receives. Empty: this side is the sender, which accepts.
  std::string address;
  uint64_t own_epoch = 0;
  uint64_t peer_epoch = 0;  // frames of another epoch close their connection
  KvFrameLayout layout;
  // Sender, of a kind whose peers read payloads in place: the allocation, from its first byte
  // on, that has all payloads of the session.
  std::span<const std::byte> payloads;
};

struct KvLanding {
  KvTransferRef ref;
  uint32_t slot = 0;
  uint32_t generation = 0;
  std::span<std::byte> memory;  // layout.slot_bytes or less
};

using KvPayload = std::vector<std::span<const std::byte>>;

struct KvCompletion {
  enum class Kind : uint8_t {
    // Sender: the payload has been read for the last time. It may not have arrived yet.
    kSent,
    // Receiver: the slot holds the payload, which agrees with its sum; it is not posted any more.
    kArrived,
    // Receiver: the slot holds the payload, which does not agree with its sum; not posted any more.
    kSpoiled,
    // Sender: the receiver asks for the frame's pieces once more, into the frame's slot.
    kNak,
    // Receiver: the sender has given the attempt up.
    kEnded,
    // Both: abort() is done. No slot and no payload of the attempt is touched any more, and no
    // other completion of it follows but kNak, which a peer may send at any time.
    kWriterGone,
    // Both: close() is done, likewise for all of the session.
    kClosed,
  };

  Kind kind = Kind::kSent;
  KvSession session = 0;
  KvFrame frame;  // kWriterGone: transfer and attempt alone; kClosed: nothing
};

// Counters since the start. `Count`: a number, or an atomic one that another thread reads.
template <typename Count>
struct KvCountsOf {
  Count bytes_sent = 0;  // payload bytes
  Count bytes_arrived = 0;
  Count frames_sent = 0;
  Count frames_arrived = 0;
  Count frames_stale = 0;         // for slots not posted: late, repeated or invented
  Count frames_spoiled = 0;       // the payload's sum was wrong
  Count connections_lost = 0;     // closed by the peer or the network
  Count connections_refused = 0;  // closed by this side: header, layout, epoch or token wrong

  void add_to(KvCountsOf<uint64_t>& sum) const {
    sum.bytes_sent += bytes_sent;
    sum.bytes_arrived += bytes_arrived;
    sum.frames_sent += frames_sent;
    sum.frames_arrived += frames_arrived;
    sum.frames_stale += frames_stale;
    sum.frames_spoiled += frames_spoiled;
    sum.connections_lost += connections_lost;
    sum.connections_refused += connections_refused;
  }
};

using KvTransportCounts = KvCountsOf<uint64_t>;

class KvTransport {
 public:
  virtual ~KvTransport() = default;  // ends all sessions; slots and payloads are free again

  [[nodiscard]] virtual std::string_view kind() const = 0;  // as --kv-transport spells it

  // Whether slots are memory of the transport's device. Then a payload is one span of it, whose
  // writer is done when send() is called. Its bytes are not summed: none arrives as kSpoiled.
  [[nodiscard]] virtual bool moves_device_memory() const { return false; }

  // The address at which receivers dial this worker.
  [[nodiscard]] virtual std::string address() const = 0;
  // Whether a receiver here could dial it: an address of this kind, which names no machine or
  // device out of this one's reach.
  [[nodiscard]] virtual bool is_address(std::string_view address) const = 0;

  // Fails with kInvalidArgument: not an address of this transport, an empty layout, or a session or
  // token that is in use. An unreachable peer is not an error: connecting is retried.
  virtual Expected<void> open(const KvSessionOptions& options) = 0;

  // Receiver: posts a slot, in place of an earlier post of it. False: too many slots are posted, or
  // the session is not open.
  [[nodiscard]] virtual bool post(KvSession session, const KvLanding& landing) = 0;

  // Sender: sends a kData frame with a payload of frame.payload_bytes, which must not change before
  // its completion. Receiver: sends a kNak without payload. Sums, sequence and epoch are filled in
  // here. False: too many are queued (a sender's frames are bounded by the slots it was credited
  // with), or the session is not open.
  [[nodiscard]] virtual bool send(KvSession session, const KvFrame& frame, KvPayload payload) = 0;

  // Replaces `out` by what has completed since the last call.
  virtual void poll(std::vector<KvCompletion>& out) = 0;

  // Takes back every slot and payload of the attempt; ends with kWriterGone. A sender's frame of
  // which a part has been sent ends its connection, so that the call does not depend on the peer.
  // Does nothing, not even the completion, where the session is not open.
  virtual void abort(KvSession session, const KvTransferRef& ref) = 0;

  // Ends the session; kClosed follows.
  virtual void close(KvSession session) = 0;

  // Any thread.
  [[nodiscard]] virtual KvTransportCounts counts() const = 0;
};

struct KvTransportOptions {
  std::string listen;                     // "127.0.0.1:0"; shm has its own address
  int32_t num_connections = 2;            // per session, TCP
  int64_t ring_bytes = int64_t{8} << 20;  // per session, shared memory
  // Time for a dialler's HELLO with the token of an open session, which it may know first.
  std::chrono::milliseconds hello_time{5000};
  std::chrono::milliseconds redial_time{1000};  // after a connection ended
  // Called on the transport's thread when there is something to poll, once until the next poll().
  std::function<void()> wake;
  // The memory of payloads and slots, for kinds that move device memory.
  kernels::DeviceMemory* device = nullptr;
  uint64_t slot_bytes = uint64_t{2} << 20;  // upper bound of this worker's slots there
  std::string nccl_library = kernels::kNcclLibrary;
};

// The names that --kv-transport takes for host memory, the fastest first.
std::vector<std::string_view> kv_transport_kinds();
// Whether `kind` is the name of a transport that moves device memory.
bool is_kv_device_transport(std::string_view kind);

// Fails with kInvalidArgument: no such kind, or an address that cannot be listened at; with
// kUnavailable: a kind that moves device memory, and no device or no library.
Expected<std::unique_ptr<KvTransport>> make_kv_transport(std::string_view kind,
                                                         KvTransportOptions options);

}  // namespace sluice
