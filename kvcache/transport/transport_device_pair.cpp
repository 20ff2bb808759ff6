// SPDX-License-Identifier: Apache-2.0
#include "kvcache/transport/transport_device_pair.h"

#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <span>
#include <utility>

#include "kernels/kv_checksum.h"

namespace sluice {
namespace {

constexpr size_t kMostRead = 16384;  // bytes ahead of what is taken

}  // namespace

DevicePair::DevicePair(std::unique_ptr<KvStream> stream, bool is_receiver)
    : stream_(std::move(stream)), is_receiver_(is_receiver) {}

std::unique_ptr<DevicePair> DevicePair::accepted(std::unique_ptr<KvStream> stream) {
  return std::unique_ptr<DevicePair>(new DevicePair(std::move(stream), false));
}

std::unique_ptr<DevicePair> DevicePair::dialled(std::unique_ptr<KvStream> stream,
                                                const KvFrame& hello) {
  std::unique_ptr<DevicePair> pair(new DevicePair(std::move(stream), true));
  pair->write(hello);
  return pair;
}

void DevicePair::advance_stream() {
  if (!is_open_ || has_stream_ended_) return;
  may_have_more_ = false;
  std::array<std::byte, 4096> chunk;
  while (in_.size() < kMostRead) {
    const std::optional<size_t> count = stream_->read(chunk, nullptr);
    if (!count) has_stream_ended_ = true;
    if (!count || *count == 0) break;
    in_.insert(in_.end(), chunk.begin(), chunk.begin() + static_cast<ptrdiff_t>(*count));
    may_have_more_ = in_.size() >= kMostRead;
  }
  while (!out_.empty() && !has_stream_ended_) {
    const iovec part{.iov_base = out_.data(), .iov_len = out_.size()};
    const std::optional<size_t> count = stream_->write({&part, 1});
    if (!count) has_stream_ended_ = true;
    if (!count || *count == 0) break;
    out_.erase(out_.begin(), out_.begin() + static_cast<ptrdiff_t>(*count));
  }
}

std::optional<KvFrame> DevicePair::peek() const {
  const bool awaits_id = is_receiver_ && link_ == nullptr;
  if (is_corrupt_ || awaits_id || in_.size() < kKvFrameBytes) return std::nullopt;
  const auto frame = decode_kv_frame(std::span(in_).first<kKvFrameBytes>());
  return frame ? std::optional(*frame) : std::nullopt;
}

std::optional<KvFrame> DevicePair::take() {
  const std::optional<KvFrame> frame = peek();
  if (frame) in_.erase(in_.begin(), in_.begin() + kKvFrameBytes);
  return frame;
}

void DevicePair::write(const KvFrame& frame) {
  out_.resize(out_.size() + kKvFrameBytes);
  encode_kv_frame(frame, std::span(out_).last<kKvFrameBytes>());
}

void DevicePair::make_link(DeviceLinks& links, std::span<const std::byte> payloads) {
  if (link_ != nullptr || !is_open_ || is_corrupt_) return;
  const size_t bytes = links.offer_bytes();
  uint64_t sum = 0;
  if (is_receiver_) {
    if (in_.size() < bytes + sizeof(sum)) return;
    const std::vector<std::byte> offer(in_.begin(), in_.begin() + static_cast<ptrdiff_t>(bytes));
    std::memcpy(&sum, in_.data() + bytes, sizeof(sum));
    in_.erase(in_.begin(), in_.begin() + static_cast<ptrdiff_t>(bytes + sizeof(sum)));
    is_corrupt_ = sum != kernels::kv_checksum(offer);
    if (!is_corrupt_) take_link(links.accept(offer));
    return;
  }
  std::vector<std::byte> offer(bytes);
  take_link(links.offer(payloads, offer));
  if (is_corrupt_) return;
  sum = kernels::kv_checksum(offer);
  const auto sum_bytes = std::as_bytes(std::span(&sum, 1));
  out_.insert(out_.end(), offer.begin(), offer.end());
  out_.insert(out_.end(), sum_bytes.begin(), sum_bytes.end());
}

void DevicePair::take_link(Expected<std::unique_ptr<DeviceLink>> made) {
  is_corrupt_ = !made.has_value();
  if (made) {
    link_ = std::move(*made);
  } else {
    refusal_ = made.error().message;
  }
}

void DevicePair::send(const KvFrame& frame, std::span<const std::byte> payload) {
  link_->send(frame.sequence, payload);
  untold_.push_back(frame);
  tell_receivable();
}

void DevicePair::tell_receivable() {
  while (!untold_.empty() && link_->is_receivable(untold_.front().sequence)) {
    write(untold_.front());
    untold_.pop_front();
  }
}

void DevicePair::advance_link(std::vector<uint64_t>& done, uint64_t own_epoch) {
  if (link_ == nullptr) return;
  link_->advance(done);
  tell_receivable();
  said_.clear();
  if (is_receiver_ && !has_told_ && link_->state() == DeviceLink::State::kReady) {
    said_.emplace_back().kind = KvFrameKind::kReady;
    has_told_ = true;
  }
  link_->say(said_);
  for (KvFrame& frame : said_) {
    frame.epoch = own_epoch;
    write(frame);
  }
}

bool DevicePair::has_ended() const {
  const bool is_broken = link_ != nullptr && link_->state() == DeviceLink::State::kBroken;
  return has_stream_ended_ || is_broken;
}

bool DevicePair::is_corrupt() const {
  const bool has_frame = in_.size() >= kKvFrameBytes && !(is_receiver_ && link_ == nullptr);
  return is_corrupt_ || (has_frame && !peek());
}

void DevicePair::end() {
  is_open_ = false;
  if (link_ == nullptr || !link_->is_loan() || !is_receiver_) stream_.reset();
  if (link_ != nullptr) link_->abort();
}

bool DevicePair::is_moving() const {
  return may_have_more_ || (link_ != nullptr && link_->is_working());
}

bool DevicePair::is_changing() const {
  return !is_open() || (link_ != nullptr && link_->state() == DeviceLink::State::kMaking);
}

}  // namespace sluice
