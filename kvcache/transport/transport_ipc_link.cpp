// SPDX-License-Identifier: Apache-2.0
#include "kvcache/transport/transport_ipc_link.h"

#include <utility>

#include "engine/core/status.h"

namespace sluice {
namespace {

void append_frames(KvFrameKind kind, std::vector<uint64_t>& numbers, std::vector<KvFrame>& frames) {
  for (const uint64_t number : std::exchange(numbers, {})) {
    KvFrame frame;
    frame.kind = kind;
    frame.sequence = number;
    frames.push_back(frame);
  }
}

// Moves the first of `waiting` to `done` if it is `number`. False: it is not.
bool move_first(uint64_t number, std::deque<uint64_t>& waiting, std::vector<uint64_t>& done) {
  if (waiting.empty() || waiting.front() != number) return false;
  waiting.pop_front();
  done.push_back(number);
  return true;
}

}  // namespace

// --- The sender ------------------------------------------------------------------------------

void IpcSender::send(uint64_t number, std::span<const std::byte> bytes) {
  const uint64_t place = place_of(bytes);
  CHECK(place <= lent_.size() && bytes.size() <= lent_.size() - place);
  unread_.push_back(number);
}

uint64_t IpcSender::place_of(std::span<const std::byte> bytes) const {
  return static_cast<uint64_t>(bytes.data() - lent_.data());
}

void IpcSender::receive(uint64_t, uint64_t, std::span<std::byte>) {
  SLUICE_UNREACHABLE("a sender receives");
}

void IpcSender::advance(std::vector<uint64_t>& done) {
  for (const uint64_t number : std::exchange(read_, {})) done.push_back(number);
}

bool IpcSender::take(const KvFrame& frame) {
  if (frame.kind != KvFrameKind::kRead || !move_first(frame.sequence, unread_, read_)) return false;
  kept_.push_back(frame.sequence);
  return true;
}

void IpcSender::take_frames(std::vector<KvFrame>& frames) {
  append_frames(KvFrameKind::kKept, kept_, frames);
}

// --- The receiver ----------------------------------------------------------------------------

IpcReceiver::IpcReceiver(kernels::DeviceMemory& memory, std::span<const std::byte> lent)
    : memory_(memory), lent_(lent), queue_(memory.make_queue()) {}

IpcReceiver::~IpcReceiver() {
  while (!copying_.empty()) {
    copying_.front().done->wait();
    copying_.pop_front();
  }
  memory_.give_back(lent_.data());
}

void IpcReceiver::send(uint64_t, std::span<const std::byte>) {
  SLUICE_UNREACHABLE("a receiver sends");
}

void IpcReceiver::receive(uint64_t number, uint64_t place, std::span<std::byte> bytes) {
  if (state_ == State::kBroken) return;
  if (place > lent_.size() || bytes.size() > lent_.size() - place) return abort();
  queue_->copy(bytes.data(), lent_.data() + place, static_cast<int64_t>(bytes.size()));
  copying_.push_back({number, queue_->make_event()});
  copying_.back().done->record();
}

void IpcReceiver::note_copied() {
  while (!copying_.empty() && copying_.front().done->is_done()) {
    copied_.push_back(copying_.front().number);
    fresh_.push_back(copying_.front().number);
    copying_.pop_front();
  }
}

void IpcReceiver::advance(std::vector<uint64_t>& done) {
  note_copied();
  for (const uint64_t number : std::exchange(kept_, {})) done.push_back(number);
}

bool IpcReceiver::take(const KvFrame& frame) {
  return frame.kind == KvFrameKind::kKept && move_first(frame.sequence, copied_, kept_);
}

void IpcReceiver::take_frames(std::vector<KvFrame>& frames) {
  append_frames(KvFrameKind::kRead, fresh_, frames);
}

bool IpcReceiver::is_gone() {
  note_copied();
  return state_ == State::kBroken && copying_.empty();
}

}  // namespace sluice
