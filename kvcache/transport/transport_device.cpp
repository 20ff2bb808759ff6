// SPDX-License-Identifier: Apache-2.0
#include "kvcache/transport/transport_device.h"

#include <cstring>
#include <utility>

#include "kernels/kv_checksum.h"

namespace sluice {
namespace {

constexpr size_t kMostOpen = 16;      // payloads of a sender in the link
constexpr size_t kMostOfPeer = 1024;  // that a receiver takes ahead of its GPU
// Poll intervals for state changes that produce no event.
constexpr std::chrono::nanoseconds kTransferTick{50'000};   // payloads
constexpr std::chrono::nanoseconds kMakingTick{1'000'000};  // links that begin and end
constexpr std::chrono::nanoseconds kIdleTick{50'000'000};   // their errors
// For a payload that is in the link when its attempt is aborted: its counterpart is there, or
// arrives by itself if the peer is alive.
constexpr std::chrono::milliseconds kGrace{500};

}  // namespace

DeviceConnection::DeviceConnection(uint64_t id,
                                   std::unique_ptr<KvStream> stream,
                                   bool is_receiver,
                                   DeviceLinks& links,
                                   std::span<std::byte> unread)
    : KvConnection(id, std::move(stream), is_receiver),
      links_(links),
      unread_(unread),
      offer_(is_receiver ? links.offer_bytes() + sizeof(uint64_t) : 0) {}

// --- The link --------------------------------------------------------------------------------

size_t DeviceConnection::read_part(size_t /*budget*/, std::vector<KvDone>& /*done*/) {
  if (offer_bytes_ == offer_.size()) return read_header();
  const size_t count = read_into(std::span(offer_).subspan(offer_bytes_), nullptr);
  offer_bytes_ += count;
  if (offer_bytes_ == offer_.size()) accept_link();
  return count;
}

void DeviceConnection::accept_link() {
  const auto offer = std::span(offer_).first(links_.offer_bytes());
  uint64_t sum = 0;
  std::memcpy(&sum, offer_.data() + offer.size(), sizeof(sum));
  if (sum != kernels::kv_checksum(offer)) return fail(Failure::kRefused);
  take_link(links_.accept(offer));
}

void DeviceConnection::offer_link(std::span<const std::byte> payloads) {
  std::vector<std::byte> offer(links_.offer_bytes());
  take_link(links_.offer(payloads, offer));
  if (link_ == nullptr) return;
  const uint64_t sum = kernels::kv_checksum(offer);
  const auto sum_bytes = std::as_bytes(std::span(&sum, 1));
  out_.insert(out_.end(), offer.begin(), offer.end());
  out_.insert(out_.end(), sum_bytes.begin(), sum_bytes.end());
}

void DeviceConnection::take_link(Expected<std::unique_ptr<DeviceLink>> made) {
  if (made) {
    link_ = std::move(*made);
  } else {
    refusal_ = made.error().message;
    fail(Failure::kRefused);
  }
}

bool DeviceConnection::accept_own(const KvFrame& frame) {
  if (frame.kind != KvFrameKind::kReady) return link_ != nullptr && link_->take(frame);
  is_peer_ready_ = true;
  return !is_receiver_;
}

void DeviceConnection::advance(const KvSessionOptions& options, std::vector<KvDone>& done) {
  const bool is_first = link_ == nullptr && !is_receiver_ && failure() == Failure::kNone;
  if (is_first) offer_link(options.payloads);
  if (link_ == nullptr) return;
  numbers_.clear();
  link_->advance(numbers_);
  announce_receivable();
  for (const uint64_t number : numbers_) {
    done.push_back({.number = number, .is_sent = !is_receiver_});
  }
  link_frames_.clear();
  if (is_receiver_ && !has_announced_ && link_->state() == DeviceLink::State::kReady) {
    link_frames_.emplace_back().kind = KvFrameKind::kReady;
    has_announced_ = true;
  }
  link_->take_frames(link_frames_);
  for (KvFrame& frame : link_frames_) {
    frame.epoch = options.own_epoch;
    put(frame);
  }
  if (link_->state() == DeviceLink::State::kBroken) fail(Failure::kLost);
}

// --- Payloads --------------------------------------------------------------------------------

KvConnection::Sent DeviceConnection::send(KvOutgoing& outgoing) {
  if (link_ == nullptr) return Sent::kNotNow;
  KvFrame& frame = outgoing.frame;
  if (frame.kind != KvFrameKind::kData) {
    if (!unannounced_.empty()) return Sent::kNotNow;  // it follows their frames
    put(frame);
    return Sent::kAll;
  }
  const bool is_ready = is_peer_ready_ && link_->state() == DeviceLink::State::kReady;
  if (!is_ready || link_->num_open() >= kMostOpen) return Sent::kNotNow;
  CHECK_EQ(outgoing.payload.size(), size_t{1});
  const std::span<const std::byte> bytes = outgoing.payload.front();
  frame.payload_sum = link_->place_of(bytes);
  link_->send(frame.sequence, bytes);
  unannounced_.push_back(frame);
  announce_receivable();
  return Sent::kPart;
}

void DeviceConnection::announce_receivable() {
  while (!unannounced_.empty() && link_->is_receivable(unannounced_.front().sequence)) {
    put(unannounced_.front());
    unannounced_.pop_front();
  }
}

bool DeviceConnection::receive(const KvFrame& frame, std::span<std::byte> memory) {
  const bool may_come = link_ != nullptr && link_->num_open() < kMostOfPeer;
  if (!may_come || frame.payload_bytes > unread_.size()) return false;
  if (frame.sequence <= last_taken_) return false;
  last_taken_ = frame.sequence;
  link_->receive(frame.sequence,
                 frame.payload_sum,
                 memory.empty() ? unread_.first(frame.payload_bytes) : memory);
  return link_->state() != DeviceLink::State::kBroken;
}

// --- The end ---------------------------------------------------------------------------------

std::chrono::milliseconds DeviceConnection::grace() const { return kGrace; }

std::chrono::nanoseconds DeviceConnection::tick() const {
  if (link_ != nullptr && link_->is_working()) return kTransferTick;
  const bool is_making = link_ != nullptr && link_->state() == DeviceLink::State::kMaking;
  return is_making || !is_open_ ? kMakingTick : kIdleTick;
}

void DeviceConnection::end() {
  is_open_ = false;
  if (link_ == nullptr || !link_->is_loan() || !is_receiver_) stream_.reset();
  if (link_ != nullptr) link_->abort();
}

}  // namespace sluice
