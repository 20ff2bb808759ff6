// SPDX-License-Identifier: Apache-2.0
#include "kvcache/transport/transport_connection.h"

#include <sys/uio.h>

#include <algorithm>

namespace sluice {
namespace {

// A payload is read and summed in parts of this size, so that the sum finds them in cache.
constexpr size_t kReadBytes = size_t{64} << 10;
constexpr size_t kReadBytesPerTurn = size_t{1} << 20;
constexpr size_t kMostParts = 1024;  // parts of one vectored write: IOV_MAX

iovec part_of(std::span<const std::byte> bytes, size_t offset) {
  return {.iov_base = const_cast<std::byte*>(bytes.data() + offset),
          .iov_len = bytes.size() - offset};
}

}  // namespace

KvConnection::KvConnection(uint64_t id,
                           std::unique_ptr<KvStream> stream,
                           KvSessionState* session,
                           KvConnectionOwner& owner)
    : id_(id), stream_(std::move(stream)), session_(session), owner_(owner) {
  if (session_ == nullptr) return;
  session_->connections.push_back(this);
  KvFrame frame;
  frame.kind = KvFrameKind::kHello;
  frame.ref.transfer = session_->options.token;
  hello_ = KvOutgoing{frame, {}};
}

KvConnection::~KvConnection() {
  if (landing_ != nullptr) landing_->reader = nullptr;
  if (session_ == nullptr) return;
  std::erase(session_->connections, this);
  if (current_ && current_->frame.kind != KvFrameKind::kHello) {
    session_->queue.push_front(std::move(*current_));
  }
}

// --- Reading ---------------------------------------------------------------------------------

KvConnection::Progress KvConnection::read_some() {
  if (early_) {
    const Progress progress = take_frame(*std::exchange(early_, std::nullopt), true);
    if (progress != Progress::kMore) return progress;
  }
  size_t budget = kReadBytesPerTurn;
  while (budget > 0) {
    const bool is_payload = payload_left_ > 0;
    const uint64_t before = payload_left_;
    const Progress progress = is_payload ? read_payload() : take_header();
    if (progress != Progress::kMore) return progress;
    budget -= std::min<size_t>(budget, is_payload ? before - payload_left_ : kKvFrameBytes);
  }
  return Progress::kMore;
}

KvConnection::Progress KvConnection::take_header() {
  const auto count = stream_->read(std::span(header_).subspan(header_bytes_), nullptr);
  if (!count) return Progress::kLost;
  if (*count == 0) return Progress::kBlocked;
  header_bytes_ += *count;
  if (header_bytes_ < header_.size()) return Progress::kMore;
  header_bytes_ = 0;
  const auto frame = decode_kv_frame(header_);
  if (!frame) return Progress::kRefused;
  return take_frame(*frame, false);
}

KvConnection::Progress KvConnection::take_frame(const KvFrame& frame, bool is_again) {
  const Progress progress =
      session_ == nullptr ? take_hello(frame) : take_known_frame(frame, is_again);
  if (progress == Progress::kLater) early_ = frame;
  return progress;
}

KvConnection::Progress KvConnection::take_hello(const KvFrame& frame) {
  if (frame.kind != KvFrameKind::kHello) return Progress::kRefused;
  KvSessionState* session = owner_.find_session(frame.ref.transfer);
  if (session == nullptr) {
    early_ = frame;  // until the session is opened, or the time for a HELLO is over
    return Progress::kBlocked;
  }
  if (session->is_receiver()) return Progress::kRefused;
  const KvSessionOptions& options = session->options;
  if (!check_kv_frame(frame, options.layout, options.peer_epoch)) return Progress::kRefused;
  constexpr size_t kMostStreams = 16;
  if (session->connections.size() >= kMostStreams) return Progress::kRefused;
  session_ = session;
  session_->connections.push_back(this);
  return Progress::kMore;
}

KvConnection::Progress KvConnection::take_known_frame(const KvFrame& frame, bool is_again) {
  const KvSessionOptions& options = session_->options;
  if (!check_kv_frame(frame, options.layout, options.peer_epoch)) return Progress::kRefused;
  if (!session_->is_receiver()) {
    if (frame.kind != KvFrameKind::kNak) return Progress::kRefused;
    const bool is_told = owner_.tell_once({KvCompletion::Kind::kNak, options.session, frame});
    return is_told ? Progress::kMore : Progress::kRefused;
  }
  if (frame.kind == KvFrameKind::kData) {
    landing_ = find_slot(frame);
    if (landing_ == nullptr && !is_again) return Progress::kLater;
    if (landing_ != nullptr) landing_->reader = this;
    if (landing_ == nullptr) ++owner_.atomic_counts().frames_stale;
    frame_ = frame;
    payload_left_ = frame.payload_bytes;
    payload_sum_ = {};
    return Progress::kMore;
  }
  if (frame.kind != KvFrameKind::kEnd) return Progress::kRefused;
  const bool is_waited_for = std::ranges::any_of(
      session_->posted, [&](const auto& entry) { return entry.second.landing.ref == frame.ref; });
  if (!is_waited_for) return Progress::kMore;
  const bool is_told = owner_.tell_once({KvCompletion::Kind::kEnded, options.session, frame});
  return is_told ? Progress::kMore : Progress::kRefused;
}

KvPostedSlot* KvConnection::find_slot(const KvFrame& frame) const {
  const auto found = session_->posted.find(frame.slot);
  if (found == session_->posted.end()) return nullptr;
  KvPostedSlot& slot = found->second;
  const bool is_meant = slot.reader == nullptr && slot.landing.ref == frame.ref &&
                        slot.landing.generation == frame.slot_generation &&
                        slot.landing.memory.size() >= frame.payload_bytes;
  return is_meant ? &slot : nullptr;
}

KvConnection::Progress KvConnection::read_payload() {
  const auto most = static_cast<size_t>(std::min<uint64_t>(payload_left_, kReadBytes));
  const std::span<std::byte> out =
      landing_ == nullptr ? owner_.scratch().first(std::min(most, owner_.scratch().size()))
                          : landing_->landing.memory.subspan(
                                static_cast<size_t>(frame_.payload_bytes - payload_left_), most);
  const auto count = stream_->read(out, landing_ == nullptr ? nullptr : &payload_sum_);
  if (!count) return Progress::kLost;
  if (*count == 0) return Progress::kBlocked;
  payload_left_ -= *count;
  if (payload_left_ == 0 && landing_ != nullptr) end_payload();
  return Progress::kMore;
}

void KvConnection::end_payload() {
  landing_ = nullptr;
  session_->posted.erase(frame_.slot);
  owner_.release_one();
  KvAtomicCounts& counts = owner_.atomic_counts();
  const bool is_good = payload_sum_.value() == frame_.payload_sum;
  if (is_good) {
    ++counts.frames_arrived;
    counts.bytes_arrived += frame_.payload_bytes;
  } else {
    ++counts.frames_spoiled;
  }
  owner_.complete({is_good ? KvCompletion::Kind::kArrived : KvCompletion::Kind::kSpoiled,
                   session_->options.session,
                   frame_});
}

// --- Writing ---------------------------------------------------------------------------------

bool KvConnection::begin_outgoing() {
  if (hello_) {
    current_ = std::exchange(hello_, std::nullopt);
  } else if (session_ != nullptr && !session_->queue.empty()) {
    current_ = std::move(session_->queue.front());
    session_->queue.pop_front();
  } else {
    return false;
  }
  out_part_ = 0;
  out_offset_ = 0;
  return true;
}

void KvConnection::encode_outgoing(uint64_t payload_sum) {
  KvFrame& frame = current_->frame;
  frame.payload_sum = payload_sum;
  frame.sequence = ++session_->sequence;
  frame.epoch = session_->options.own_epoch;
  encode_kv_frame(frame, out_header_);
}

std::optional<KvConnection::Progress> KvConnection::copy_outgoing() {
  if (current_->frame.kind != KvFrameKind::kData) return std::nullopt;
  kernels::KvChecksum sum;
  switch (stream_->copy(kKvFrameBytes, current_->payload, sum)) {
    case KvStream::Copied::kNever:
      return std::nullopt;
    case KvStream::Copied::kEnded:
      return Progress::kLost;
    case KvStream::Copied::kNotNow:
      // No part of the frame has been sent: an abort takes it back and the connection stays.
      session_->queue.push_front(std::move(*current_));
      current_.reset();
      return Progress::kBlocked;
    case KvStream::Copied::kAll:
      break;
  }
  encode_outgoing(sum.value());
  stream_->end_copy(out_header_);
  end_outgoing();
  return Progress::kMore;
}

KvConnection::Progress KvConnection::write_some() {
  if (!current_) {
    if (!begin_outgoing()) return Progress::kBlocked;
    if (const auto progress = copy_outgoing()) return *progress;
    kernels::KvChecksum sum;
    for (const std::span<const std::byte> part : current_->payload) sum.add(part);
    encode_outgoing(sum.value());
  }
  const size_t num_parts = 1 + current_->payload.size();
  const auto bytes_of = [this](size_t part) {
    return part == 0 ? std::span<const std::byte>(out_header_) : current_->payload[part - 1];
  };
  std::array<iovec, kMostParts> parts;
  while (out_part_ < num_parts) {
    size_t count = 0;
    for (size_t part = out_part_; part < num_parts && count < parts.size(); ++part) {
      parts[count++] = part_of(bytes_of(part), part == out_part_ ? out_offset_ : 0);
    }
    const auto written = stream_->write(std::span(parts).first(count));
    if (!written) return Progress::kLost;
    if (*written == 0) return Progress::kBlocked;
    out_offset_ += *written;
    while (out_part_ < num_parts && out_offset_ >= bytes_of(out_part_).size()) {
      out_offset_ -= bytes_of(out_part_).size();
      ++out_part_;
    }
  }
  end_outgoing();
  return Progress::kMore;
}

void KvConnection::end_outgoing() {
  const KvFrame frame = std::exchange(current_, std::nullopt)->frame;
  if (frame.kind == KvFrameKind::kHello || frame.kind == KvFrameKind::kEnd) return;
  owner_.release_one();
  if (frame.kind != KvFrameKind::kData) return;
  KvAtomicCounts& counts = owner_.atomic_counts();
  ++counts.frames_sent;
  counts.bytes_sent += frame.payload_bytes;
  owner_.complete({KvCompletion::Kind::kSent, session_->options.session, frame});
}

}  // namespace sluice
