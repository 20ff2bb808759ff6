// SPDX-License-Identifier: Apache-2.0
// The connection of a session over NCCL and the communicator that lives as long (transport_nccl.h):
// frames in both directions, and in front of the sender's, 136 bytes: NCCL's id of the communicator
// and its kv_checksum(). The transport's thread alone; no call waits but the destructor.
#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <optional>
#include <vector>

#include "kvcache/kv_frame.h"
#include "kvcache/kv_stream.h"
#include "kvcache/transport_nccl_link.h"

namespace sluice {

class NcclPair {
 public:
  using Clock = std::chrono::steady_clock;

  // A sender's: a HELLO comes first. A receiver's, which sends it.
  static std::unique_ptr<NcclPair> accepted(std::unique_ptr<KvStream> stream);
  static std::unique_ptr<NcclPair> dialled(std::unique_ptr<KvStream> stream, const KvFrame& hello);

  [[nodiscard]] Clock::time_point since() const { return since_; }

  // Reads and writes what goes.
  void advance_stream();
  // The next frame that has come, if one has: peek() leaves it there.
  [[nodiscard]] std::optional<KvFrame> peek() const;
  std::optional<KvFrame> take();
  void write(const KvFrame& frame);

  // Begins the communicator where that can be: a sender's at once, a receiver's when its id is
  // there.
  void make_link(const kernels::NcclLibrary& library, kernels::DeviceMemory& device);

  [[nodiscard]] bool has_link() const { return link_ != nullptr; }

  [[nodiscard]] NcclLink& link() { return *link_; }

  // As NcclLink's; a receiver then tells the sender that it is ready.
  void advance_link(std::vector<uint64_t>& done, uint64_t own_epoch);

  void note_ready() { is_peer_ready_ = true; }

  // A sender's: both ends of the communicator are there.
  [[nodiscard]] bool is_ready() const {
    return is_peer_ready_ && link_ != nullptr && link_->state() == NcclLink::State::kReady;
  }

  // The connection has ended, or the communicator is broken.
  [[nodiscard]] bool has_ended() const;
  // What has come is nothing that a peer sends, or there is no id.
  [[nodiscard]] bool is_corrupt() const;

  void end();

  [[nodiscard]] bool is_open() const { return stream_ != nullptr; }

  // end() was called, and the communicator is gone.
  [[nodiscard]] bool is_gone() { return !is_open() && (link_ == nullptr || link_->is_gone()); }

  // Something may have happened though no descriptor says so.
  [[nodiscard]] bool is_moving() const;
  [[nodiscard]] bool is_changing() const;

 private:
  NcclPair(std::unique_ptr<KvStream> stream, bool is_receiver);

  std::unique_ptr<KvStream> stream_;
  const bool is_receiver_;
  const Clock::time_point since_ = Clock::now();
  std::vector<std::byte> in_;   // read, not taken
  std::vector<std::byte> out_;  // not written
  bool has_stream_ended_ = false;
  bool may_have_more_ = false;  // to read
  bool is_corrupt_ = false;
  bool is_peer_ready_ = false;
  bool has_told_ = false;  // that it is ready
  std::unique_ptr<NcclLink> link_;
};

}  // namespace sluice
