// SPDX-License-Identifier: Apache-2.0
// What moves the payloads of one connection between two devices (transport_device.h): NCCL
// (transport_nccl_link.h) or CUDA IPC (transport_ipc_link.h). It lives as long as its connection,
// on which the two ends of a link say what they have to. The transport's thread calls, and no call
// waits but the destructor.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "engine/core/status.h"
#include "kvcache/kv_frame.h"

namespace sluice {

class DeviceLink {
 public:
  enum class State : uint8_t {
    kMaking,  // the other worker may not have come yet
    kReady,
    kBroken,  // by an error, or abort(): nothing more is done
  };

  virtual ~DeviceLink() = default;  // as abort(), and waits for it
  [[nodiscard]] virtual State state() const = 0;

  // A sender's, behind what was called before. Numbers rise, and are those of the frames that name
  // the payloads. The bytes are the device's until advance() gives the number back, or is_gone().
  virtual void send(uint64_t number, std::span<const std::byte> bytes) = 0;
  // A sender's: what its peer's receive() is to be told of these bytes.
  [[nodiscard]] virtual uint64_t place_of(std::span<const std::byte> bytes) const = 0;

  // A receiver's, for each payload that it was told of, in order; `place` is what a peer said, and
  // one that cannot be is an error of the link. The bytes as those of send().
  virtual void receive(uint64_t number, uint64_t place, std::span<std::byte> bytes) = 0;

  // Appends numbers of what is done, in order.
  virtual void advance(std::vector<uint64_t>& done) = 0;

  // Sends and receives that are not done.
  [[nodiscard]] virtual size_t num_open() const = 0;
  // The device has something to do, of whose end nobody tells.
  [[nodiscard]] virtual bool is_working() const = 0;

  // A frame of kind kRead or kKept that the other end has said. False: it would not have.
  virtual bool take(const KvFrame& frame) = 0;
  // Appends what the other end is to be told: frames of those kinds with a sequence.
  virtual void say(std::vector<KvFrame>& frames) = 0;

  virtual void abort() = 0;
  // kBroken, and no byte that a call was given is touched any more.
  [[nodiscard]] virtual bool is_gone() = 0;
};

// Makes both ends: a sender offers, and its peer accepts what it gets by the connection.
class DeviceLinks {
 public:
  virtual ~DeviceLinks() = default;
  [[nodiscard]] virtual std::string_view kind() const = 0;  // as in --kv-transport

  // Returns the size of a sender's offer.
  [[nodiscard]] virtual size_t offer_bytes() const = 0;
  // `payloads`: KvSessionOptions::payloads. `offer`: offer_bytes(), which are filled in.
  virtual Expected<std::unique_ptr<DeviceLink>> offer(std::span<const std::byte> payloads,
                                                      std::span<std::byte> offer) = 0;
  // `offer`: offer_bytes(), whatever a peer said. An error says what does not agree.
  virtual Expected<std::unique_ptr<DeviceLink>> accept(std::span<const std::byte> offer) = 0;
};

}  // namespace sluice
