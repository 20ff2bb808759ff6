// SPDX-License-Identifier: Apache-2.0
// How bytes of KV get from one worker's memory into another's: the interface of TCP, shared memory
// and what follows (transport_registry.cpp). Nothing above kvcache/ knows which one it is.
//
// Payloads and slots are memory of the host, or of a device where moves_device_memory() says so.
//
// A session is one direction between two workers: the receiver dials, the sender accepts those who
// know the session's token, which both were told on the control channel. Payloads land in slots,
// pieces of the receiver's memory outside of the paged cache, and are checked there: the header
// against the layout and against what was posted, the payload against its sum, in memory that the
// sender cannot reach any more. A frame for a slot that is not posted under its transfer, attempt
// and generation is read away and counted.
//
// Connections come and go inside a session: one that is lost, or whose peer sends what no peer
// sends, is closed and dialled again a little later. What was on its way on it may be lost; a
// transport never says that a peer is dead, which is the control channel's to find out, and has no
// timer that ends a transfer.
//
// All calls: the owner's thread (the engine's), and none of them waits. One thread of the
// transport's own moves bytes. What a call was given (slots, payloads) is that thread's until the
// completion that says otherwise.
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
#include "kvcache/kv_frame.h"

namespace sluice {

// Chosen by the owner, unique among its sessions that have not been reported closed.
using KvSession = uint64_t;

struct KvSessionOptions {
  KvSession session = 0;
  KvSessionToken token = {};
  // Of the sender as it told it on the control channel (KvTransport::address()): this side dials
  // and receives. Empty: this side is the sender, which waits to be dialled.
  std::string address;
  uint64_t own_epoch = 0;
  uint64_t peer_epoch = 0;  // frames of another one close their connection
  KvFrameLayout layout;
  // Sender, of a kind whose peers read payloads where they lie: the allocation, from its first byte
  // on, that all of the session's lie in.
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
    // Sender: the payload has been read for the last time. Not that it has arrived.
    kSent,
    // Receiver: the slot holds the payload, which agrees with its sum; it is not posted any more.
    kArrived,
    // Receiver: as kArrived, but the payload does not agree with its sum.
    kSpoiled,
    // Sender: the receiver asks for the frame's pieces once more, into the frame's slot.
    kNak,
    // Receiver: the sender has given the attempt up.
    kEnded,
    // Both: abort() is done. No slot and no payload of the attempt is touched any more, and no
    // other completion of it follows but kNak, which a peer may say at any time.
    kWriterGone,
    // Both: close() is done, likewise for all of the session.
    kClosed,
  };

  Kind kind = Kind::kSent;
  KvSession session = 0;
  KvFrame frame;  // of kWriterGone transfer and attempt alone, of kClosed nothing
};

// Since the start, any thread.
struct KvTransportCounts {
  uint64_t bytes_sent = 0;  // of payloads
  uint64_t bytes_arrived = 0;
  uint64_t frames_sent = 0;
  uint64_t frames_arrived = 0;
  uint64_t frames_stale = 0;         // for slots not posted: late, repeated or invented
  uint64_t frames_spoiled = 0;       // the payload's sum was wrong
  uint64_t connections_lost = 0;     // closed by the peer or the network
  uint64_t connections_refused = 0;  // closed by this side: header, layout, epoch or token wrong
};

class KvTransport {
 public:
  virtual ~KvTransport() = default;  // ends all sessions; what calls were given is free again

  [[nodiscard]] virtual std::string_view kind() const = 0;  // as in --kv-transport
  // Slots are memory of the transport's device, and a payload is one span of it; what wrote a
  // payload is done when send() is called. Nobody sums the bytes: none arrives as kSpoiled.
  [[nodiscard]] virtual bool moves_device_memory() const { return false; }
  // Where receivers dial this worker.
  [[nodiscard]] virtual std::string address() const = 0;
  // Whether a receiver here could dial it: an address of this kind, and where that says so of a
  // machine and device that this one reaches.
  [[nodiscard]] virtual bool is_address(std::string_view address) const = 0;

  // kInvalidArgument: no address of this transport, a layout with nothing in it, or a session or
  // token that is in use. A peer that cannot be reached is no error: dialling goes on.
  virtual Expected<void> open(const KvSessionOptions& options) = 0;

  // Receiver. A slot that is posted already is posted as this one alone. False: too many are
  // posted, or the session is not open.
  [[nodiscard]] virtual bool post(KvSession session, const KvLanding& landing) = 0;

  // Sender: a kData frame with a payload of frame.payload_bytes, which must not change before its
  // completion. Receiver: a kNak without one. Sums, sequence and epoch are filled in here. False:
  // too many are queued (a sender's frames are bounded by the slots it was credited with), or the
  // session is not open.
  [[nodiscard]] virtual bool send(KvSession session, const KvFrame& frame, KvPayload payload) = 0;

  // Replaces `out` by what has completed since the last call.
  virtual void poll(std::vector<KvCompletion>& out) = 0;

  // Takes back every slot and payload of the attempt; ends with kWriterGone. A sender's frame of
  // which a part is on its way takes its connection with it, so that this does not wait for the
  // peer. Does nothing, not even the completion, where the session is not open.
  virtual void abort(KvSession session, const KvTransferRef& ref) = 0;

  // Ends with kClosed.
  virtual void close(KvSession session) = 0;

  [[nodiscard]] virtual KvTransportCounts counts() const = 0;
};

struct KvTransportOptions {
  std::string listen;                     // "127.0.0.1:0"; shm has its own address
  int32_t num_connections = 2;            // of one session, TCP
  int64_t ring_bytes = int64_t{8} << 20;  // of one session, shared memory
  // For one that dials to say the token of a session that is open here, which it may know first.
  std::chrono::milliseconds hello_time{5000};
  std::chrono::milliseconds redial_time{1000};  // after a connection ended
  // Called on the transport's thread when there is something to poll, once until the next poll().
  std::function<void()> wake;
  // Where payloads and slots of kinds that move a device's memory lie.
  kernels::DeviceMemory* device = nullptr;
  uint64_t slot_bytes = uint64_t{2} << 20;  // of this worker's slots there, at most
  std::string nccl_library = kernels::kNcclLibrary;
};

// The names that --kv-transport takes for memory of the host, the fastest first.
std::vector<std::string_view> kv_transport_kinds();
// Whether there is such a name, of a transport that moves a device's memory.
bool is_kv_device_transport(std::string_view kind);

// kInvalidArgument: no such kind, or an address that cannot be listened at. kUnavailable: a kind
// that moves a device's memory, and no device or no library.
Expected<std::unique_ptr<KvTransport>> make_kv_transport(std::string_view kind,
                                                         KvTransportOptions options);

}  // namespace sluice
