// SPDX-License-Identifier: Apache-2.0
// The connection of a session between devices and the link that lives as long (transport_device.h).
// The connection carries frames in both directions; the sender's follow its offer (DeviceLinks) and
// the offer's kv_checksum(). The transport's thread alone; only the destructor waits.
#pragma once

#include <chrono>
#include <cstddef>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kvcache/transport/kv_frame.h"
#include "kvcache/transport/kv_stream.h"
#include "kvcache/transport/transport_device_link.h"

namespace sluice {

class DevicePair {
 public:
  using Clock = std::chrono::steady_clock;

  // Makes a sender's pair, which gets a HELLO first, or a receiver's, which sends it.
  static std::unique_ptr<DevicePair> accepted(std::unique_ptr<KvStream> stream);
  static std::unique_ptr<DevicePair> dialled(std::unique_ptr<KvStream> stream,
                                             const KvFrame& hello);

  [[nodiscard]] Clock::time_point since() const { return since_; }

  // Reads and writes as much as is possible now.
  void advance_stream();
  // Return the next received frame, if there is one; peek() leaves it in the queue.
  [[nodiscard]] std::optional<KvFrame> peek() const;
  std::optional<KvFrame> take();
  void write(const KvFrame& frame);

  // Begins the link if that is possible: a sender's at once, a receiver's when the offer is there.
  // `payloads`: KvSessionOptions::payloads.
  void make_link(DeviceLinks& links, std::span<const std::byte> payloads);

  [[nodiscard]] bool has_link() const { return link_ != nullptr; }

  [[nodiscard]] DeviceLink& link() { return *link_; }

  // Advances the link, tells the peer of payloads that it may receive, what the link has to say
  // and, once, that a receiver's link is ready.
  void advance_link(std::vector<uint64_t>& done, uint64_t own_epoch);

  void note_ready() { is_peer_ready_ = true; }

  // Sender: sends the frame's payload by the link, and the frame once the peer may receive it.
  void send(const KvFrame& frame, std::span<const std::byte> payload);

  // Sender: tells whether the peer was told of all payloads: other frames follow theirs.
  [[nodiscard]] bool has_told_all() const { return untold_.empty(); }

  // Sender: tells whether both ends of the link are there.
  [[nodiscard]] bool is_ready() const {
    return is_peer_ready_ && link_ != nullptr && link_->state() == DeviceLink::State::kReady;
  }

  // Tells whether the connection has ended or the link is broken.
  [[nodiscard]] bool has_ended() const;
  // Tells whether the peer sent what no peer sends, or no link can be made.
  [[nodiscard]] bool is_corrupt() const;

  // Returns why no link can be made; empty: it can.
  [[nodiscard]] const std::string& refusal() const { return refusal_; }

  // Ends the link and the connection. A receiver's connection whose link is a loan ends with the
  // pair, once the link has given the memory back: the sender waits for that.
  void end();

  [[nodiscard]] bool is_open() const { return is_open_; }

  // Sender: tells whether the peer may still read this worker's memory.
  [[nodiscard]] bool is_lent() const {
    return is_open_ && !has_stream_ended_ && !is_receiver_ && link_ != nullptr && link_->is_loan();
  }

  // Sender: tells the peer that nothing more follows; its connection then ends.
  void finish() { stream_->finish(); }

  // Tells whether end() was called and the link is gone.
  [[nodiscard]] bool is_gone() { return !is_open() && (link_ == nullptr || link_->is_gone()); }

  // Tell whether something may happen that no descriptor reports.
  [[nodiscard]] bool is_moving() const;
  [[nodiscard]] bool is_changing() const;

 private:
  DevicePair(std::unique_ptr<KvStream> stream, bool is_receiver);

  void take_link(Expected<std::unique_ptr<DeviceLink>> made);
  void tell_receivable();

  std::unique_ptr<KvStream> stream_;  // outlives link_
  bool is_open_ = true;
  const bool is_receiver_;
  const Clock::time_point since_ = Clock::now();
  std::vector<std::byte> in_;   // read, not taken
  std::vector<std::byte> out_;  // not written
  bool has_stream_ended_ = false;
  bool may_have_more_ = false;  // there may be more to read
  bool is_corrupt_ = false;
  std::string refusal_;
  bool is_peer_ready_ = false;
  bool has_told_ = false;  // the peer knows that the link is ready
  std::unique_ptr<DeviceLink> link_;
  std::deque<KvFrame> untold_;  // of payloads in the link that the peer may not receive yet
  std::vector<KvFrame> said_;  // scratch: the link's frames
};

}  // namespace sluice
