// SPDX-License-Identifier: Apache-2.0
// A link moves the payloads of one connection between two devices (transport_device.h), by NCCL
// (transport_nccl_link.h) or CUDA IPC (transport_ipc_link.h). It lives as long as its connection,
// on which its two ends exchange messages. All calls are made on the transport's thread; only the
// destructor waits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "engine/core/status.h"
#include "kvcache/transport/kv_frame.h"

namespace sluice {

class DeviceLink {
 public:
  enum class State : uint8_t {
    kMaking,  // the other worker may not have joined yet
    kReady,
    kBroken,  // by an error or abort(): nothing more is done
  };

  virtual ~DeviceLink() = default;  // aborts, and waits for the end
  [[nodiscard]] virtual State state() const = 0;

  // Sender: sends after earlier calls. Numbers rise, and are those of the frames that name the
  // payloads. The device owns the bytes until advance() returns the number, or is_gone().
  virtual void send(uint64_t number, std::span<const std::byte> bytes) = 0;
  // Sender: tells whether the peer may receive the payload; the frame that names it is sent then. A
  // receive that began earlier would hold multiprocessors that the peer's steps need.
  [[nodiscard]] virtual bool is_receivable(uint64_t number) const = 0;
  // Sender: returns the `place` of these bytes for the peer's receive().
  [[nodiscard]] virtual uint64_t place_of(std::span<const std::byte> bytes) const = 0;

  // Receiver: takes each announced payload, in order. `place`: from the peer's frame; an impossible
  // one breaks the link. The bytes are the device's as in send().
  virtual void receive(uint64_t number, uint64_t place, std::span<std::byte> bytes) = 0;

  // Appends the numbers of sends and receives that are done, in order.
  virtual void advance(std::vector<uint64_t>& done) = 0;

  // Returns how many sends and receives are not done.
  [[nodiscard]] virtual size_t num_open() const = 0;
  // Tells whether the device has work whose end is not reported.
  [[nodiscard]] virtual bool is_working() const = 0;

  // Takes a kRead or kKept frame of the other end. False: the other end broke the protocol.
  virtual bool take(const KvFrame& frame) = 0;
  // Appends the kRead or kKept frames for the other end, with their sequence.
  virtual void take_frames(std::vector<KvFrame>& frames) = 0;

  // Tells whether the receiver's end reads the sender's memory, which the sender must not free
  // before that end is destroyed.
  [[nodiscard]] virtual bool is_loan() const { return false; }

  virtual void abort() = 0;
  // Tells whether the link is kBroken and touches no byte of a call any more.
  [[nodiscard]] virtual bool is_gone() = 0;
};

// Makes the ends of links: a sender offers, and its peer accepts the offer from the connection.
class DeviceLinks {
 public:
  virtual ~DeviceLinks() = default;
  [[nodiscard]] virtual std::string_view kind() const = 0;  // as in --kv-transport

  // Returns the size of a sender's offer.
  [[nodiscard]] virtual size_t offer_bytes() const = 0;
  // `payloads`: KvSessionOptions::payloads. `offer`: offer_bytes() to be filled in.
  virtual Expected<std::unique_ptr<DeviceLink>> offer(std::span<const std::byte> payloads,
                                                      std::span<std::byte> offer) = 0;
  // `offer`: offer_bytes() as a peer sent them. An error says what does not agree.
  virtual Expected<std::unique_ptr<DeviceLink>> accept(std::span<const std::byte> offer) = 0;
};

}  // namespace sluice
