// SPDX-License-Identifier: Apache-2.0
// The two ends of a link by CUDA IPC (transport_ipc.h). The sender's end copies nothing: it keeps
// payloads as they are until its peer has read them, or the pair ends.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <vector>

#include "kernels/device_memory.h"
#include "kvcache/transport/transport_device_link.h"

namespace sluice {

class IpcSender final : public DeviceLink {
 public:
  // `lent`: the memory that holds the payloads.
  explicit IpcSender(std::span<const std::byte> lent) : lent_(lent) {}

  [[nodiscard]] State state() const override { return state_; }

  void send(uint64_t number, std::span<const std::byte> bytes) override;

  [[nodiscard]] bool is_receivable(uint64_t) const override { return true; }

  [[nodiscard]] uint64_t place_of(std::span<const std::byte> bytes) const override;
  void receive(uint64_t number, uint64_t place, std::span<std::byte> bytes) override;
  void advance(std::vector<uint64_t>& done) override;

  [[nodiscard]] size_t num_open() const override { return unread_.size(); }

  [[nodiscard]] bool is_working() const override { return false; }

  bool take(const KvFrame& frame) override;
  void take_frames(std::vector<KvFrame>& frames) override;

  [[nodiscard]] bool is_loan() const override { return true; }

  void abort() override { state_ = State::kBroken; }

  [[nodiscard]] bool is_gone() override { return state_ == State::kBroken; }

 private:
  const std::span<const std::byte> lent_;
  State state_ = State::kReady;
  std::deque<uint64_t> unread_;  // numbers of payloads that the peer has not read
  std::vector<uint64_t> read_;   // read by the peer since advance()
  std::vector<uint64_t> kept_;   // to be reported to the peer as kept
};

class IpcReceiver final : public DeviceLink {
 public:
  // `memory` must outlive it; `lent` was borrowed from it, and is given back at the end.
  IpcReceiver(kernels::DeviceMemory& memory, std::span<const std::byte> lent);
  ~IpcReceiver() override;
  IpcReceiver(const IpcReceiver&) = delete;
  IpcReceiver& operator=(const IpcReceiver&) = delete;

  [[nodiscard]] State state() const override { return state_; }

  void send(uint64_t number, std::span<const std::byte> bytes) override;

  [[nodiscard]] bool is_receivable(uint64_t) const override { return false; }

  [[nodiscard]] uint64_t place_of(std::span<const std::byte>) const override { return 0; }

  void receive(uint64_t number, uint64_t place, std::span<std::byte> bytes) override;
  void advance(std::vector<uint64_t>& done) override;

  [[nodiscard]] size_t num_open() const override { return copying_.size() + copied_.size(); }

  [[nodiscard]] bool is_working() const override { return !copying_.empty(); }

  bool take(const KvFrame& frame) override;
  void take_frames(std::vector<KvFrame>& frames) override;

  [[nodiscard]] bool is_loan() const override { return true; }

  void abort() override { state_ = State::kBroken; }

  [[nodiscard]] bool is_gone() override;

 private:
  struct Copy {
    uint64_t number = 0;
    std::unique_ptr<kernels::DeviceEvent> done;
  };

  void note_copied();

  kernels::DeviceMemory& memory_;
  const std::span<const std::byte> lent_;
  const std::unique_ptr<kernels::DeviceQueue> queue_;
  State state_ = State::kReady;
  std::deque<Copy> copying_;     // in the order of queue_
  std::deque<uint64_t> copied_;  // not yet reported by the sender as kept
  std::vector<uint64_t> kept_;   // reported as kept since advance()
  std::vector<uint64_t> fresh_;  // to be reported to the sender as copied
};

}  // namespace sluice
