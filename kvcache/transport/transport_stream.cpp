// SPDX-License-Identifier: Apache-2.0
#include "kvcache/transport/transport_stream.h"

#include <algorithm>

namespace sluice {
namespace {

// A payload is read and summed in parts of this size, so that the sum finds them in cache.
constexpr size_t kReadBytes = size_t{64} << 10;

}  // namespace

bool StreamConnection::receive(const KvFrame& frame, std::span<std::byte> memory) {
  frame_ = frame;
  payload_left_ = frame.payload_bytes;
  memory_ = memory;
  payload_sum_ = {};
  return true;
}

bool StreamConnection::drop_landing() {
  memory_ = {};
  return true;
}

size_t StreamConnection::read_part(size_t budget, std::vector<KvDone>& done) {
  if (payload_left_ == 0) return read_header();
  const auto most =
      static_cast<size_t>(std::min<uint64_t>(payload_left_, std::min(budget, kReadBytes)));
  const bool is_landing = !memory_.empty();
  const auto at = static_cast<size_t>(frame_.payload_bytes - payload_left_);
  const std::span<std::byte> out =
      is_landing ? memory_.subspan(at, most) : scratch_.first(std::min(most, scratch_.size()));
  const size_t count = read_into(out, is_landing ? &payload_sum_ : nullptr);
  payload_left_ -= count;
  if (payload_left_ == 0 && is_landing) {
    memory_ = {};
    done.push_back(
        {.number = frame_.sequence, .is_good = payload_sum_.value() == frame_.payload_sum});
  }
  return count;
}

KvConnection::Sent StreamConnection::send(KvOutgoing& outgoing) {
  if (!out_.empty() || !may_write) return Sent::kNotNow;
  kernels::KvChecksum sum;
  KvStream::Copied copied = KvStream::Copied::kNever;
  if (outgoing.frame.kind == KvFrameKind::kData) {
    copied = stream_->copy(kKvFrameBytes, outgoing.payload, sum);
  }
  switch (copied) {
    case KvStream::Copied::kEnded:
      fail(Failure::kLost);
      return Sent::kNotNow;
    case KvStream::Copied::kNotNow:
      // No part of the frame has been sent: an abort takes it back and the connection stays.
      may_write = false;
      return Sent::kNotNow;
    case KvStream::Copied::kAll: {
      outgoing.frame.payload_sum = sum.value();
      std::array<std::byte, kKvFrameBytes> header;
      encode_kv_frame(outgoing.frame, header);
      stream_->end_copy(header);
      return Sent::kAll;
    }
    case KvStream::Copied::kNever:
      break;
  }
  for (const std::span<const std::byte> part : outgoing.payload) sum.add(part);
  outgoing.frame.payload_sum = sum.value();
  put(outgoing.frame);
  return write_out(outgoing.payload) ? Sent::kAll : Sent::kPart;
}

bool StreamConnection::write(std::vector<KvDone>& done) {
  if (out_.empty()) return false;
  const bool is_frame = !sending.empty();  // else a HELLO
  if (!write_out(is_frame ? sending.front().payload : KvPayload())) return false;
  if (is_frame) done.push_back({.number = sending.front().frame.sequence, .is_sent = true});
  return true;
}

}  // namespace sluice
