// SPDX-License-Identifier: Apache-2.0
// A connection whose payloads go from device to device by a link (transport_device_link.h): by
// NCCL's point-to-point transfers, or by copies from memory that one process lends another (CUDA
// IPC). Tests run it against a library with NCCL's interface, and against the shim's devices.
//
// Everything but payloads travels in the stream: the sender's offer of a link and the offer's
// kv_checksum(), then frames. Stream and link live and end together. A sender puts nothing into the
// link before the receiver has said that its end is there too, and then each payload into the link
// and its header, once the link says that the peer may receive it, into the stream. The receiver
// takes every payload whose header it reads, in that order: those for which no slot is posted go to
// memory that is never read.
//
// An attempt that is aborted while one of its payloads is in the link waits for that payload for a
// short time, then ends the connection: NCCL gives up no single payload, and a peer may be stopped.
// A session that is closed, or a stream that is lost, ends the link at once.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <vector>

#include "kvcache/transport/transport_connection.h"
#include "kvcache/transport/transport_device_link.h"

namespace sluice {

class DeviceConnection final : public KvConnection {
 public:
  // `links`, `unread`: outlive it; `unread` is for payloads that no slot is posted for, and may be
  // written for several connections at once. Only the destructor waits.
  DeviceConnection(uint64_t id,
                   std::unique_ptr<KvStream> stream,
                   bool is_receiver,
                   DeviceLinks& links,
                   std::span<std::byte> unread);

  bool receive(const KvFrame& frame, std::span<std::byte> memory) override;

  bool drop_landing() override { return false; }

  Sent send(KvOutgoing& outgoing) override;
  bool accept_own(const KvFrame& frame) override;
  void advance(const KvSessionOptions& options, std::vector<KvDone>& done) override;

  bool write(std::vector<KvDone>& /*done*/) override { return !out_.empty() && write_out({}); }

  [[nodiscard]] std::chrono::milliseconds grace() const override;

  [[nodiscard]] bool is_alone() const override { return true; }

  [[nodiscard]] std::chrono::nanoseconds tick() const override;
  // A receiver's stream whose link is a loan ends with the connection, once the link has given the
  // memory back: the sender waits for that.
  void end() override;

  [[nodiscard]] bool is_gone() override {
    return !is_open_ && (link_ == nullptr || link_->is_gone());
  }

  [[nodiscard]] bool is_lent() const override {
    return is_open_ && failure() == Failure::kNone && !is_receiver_ && link_ != nullptr &&
           link_->is_loan();
  }

 private:
  size_t read_part(size_t budget, std::vector<KvDone>& done) override;
  void offer_link(std::span<const std::byte> payloads);
  void accept_link();
  void take_link(Expected<std::unique_ptr<DeviceLink>> made);
  void announce_receivable();

  DeviceLinks& links_;
  const std::span<std::byte> unread_;
  std::vector<std::byte> offer_;  // receiver: and its sum; as far as it was read
  size_t offer_bytes_ = 0;
  uint64_t last_taken_ = 0;     // of the peer's payloads
  bool is_peer_ready_ = false;  // sender: the receiver's end of the link is there
  bool has_announced_ = false;  // the peer knows that the link is ready
  std::unique_ptr<DeviceLink> link_;
  std::deque<KvFrame> unannounced_;   // of payloads in the link that the peer may not receive yet
  std::vector<uint64_t> numbers_;     // scratch
  std::vector<KvFrame> link_frames_;  // scratch: the link's frames
};

}  // namespace sluice
