// SPDX-License-Identifier: Apache-2.0
#include "kvcache/transport_nccl_pair.h"

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
constexpr size_t kIdBytes = sizeof(kernels::NcclId);
constexpr size_t kIdMessageBytes = kIdBytes + sizeof(uint64_t);

std::span<const std::byte> bytes_of(const kernels::NcclId& id) {
  return std::as_bytes(std::span(id.bytes));
}

}  // namespace

NcclPair::NcclPair(std::unique_ptr<KvStream> stream, bool is_receiver)
    : stream_(std::move(stream)), is_receiver_(is_receiver) {}

std::unique_ptr<NcclPair> NcclPair::accepted(std::unique_ptr<KvStream> stream) {
  return std::unique_ptr<NcclPair>(new NcclPair(std::move(stream), false));
}

std::unique_ptr<NcclPair> NcclPair::dialled(std::unique_ptr<KvStream> stream,
                                            const KvFrame& hello) {
  std::unique_ptr<NcclPair> pair(new NcclPair(std::move(stream), true));
  pair->write(hello);
  return pair;
}

void NcclPair::advance_stream() {
  if (stream_ == nullptr || has_stream_ended_) return;
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

std::optional<KvFrame> NcclPair::peek() const {
  const bool awaits_id = is_receiver_ && link_ == nullptr;
  if (is_corrupt_ || awaits_id || in_.size() < kKvFrameBytes) return std::nullopt;
  const auto frame = decode_kv_frame(std::span(in_).first<kKvFrameBytes>());
  return frame ? std::optional(*frame) : std::nullopt;
}

std::optional<KvFrame> NcclPair::take() {
  const std::optional<KvFrame> frame = peek();
  if (frame) in_.erase(in_.begin(), in_.begin() + kKvFrameBytes);
  return frame;
}

void NcclPair::write(const KvFrame& frame) {
  out_.resize(out_.size() + kKvFrameBytes);
  encode_kv_frame(frame, std::span(out_).last<kKvFrameBytes>());
}

void NcclPair::make_link(const kernels::NcclLibrary& library, kernels::DeviceMemory& device) {
  if (link_ != nullptr || stream_ == nullptr) return;
  kernels::NcclId id;
  if (is_receiver_) {
    if (in_.size() < kIdMessageBytes) return;
    std::memcpy(id.bytes.data(), in_.data(), kIdBytes);
    uint64_t sum = 0;
    std::memcpy(&sum, in_.data() + kIdBytes, sizeof(sum));
    in_.erase(in_.begin(), in_.begin() + kIdMessageBytes);
    is_corrupt_ = sum != kernels::kv_checksum(bytes_of(id));
  } else {
    is_corrupt_ = library.get_unique_id(&id) != kernels::kNcclSuccess;
    const uint64_t sum = kernels::kv_checksum(bytes_of(id));
    const auto sum_bytes = std::as_bytes(std::span(&sum, 1));
    out_.insert(out_.end(), bytes_of(id).begin(), bytes_of(id).end());
    out_.insert(out_.end(), sum_bytes.begin(), sum_bytes.end());
  }
  if (!is_corrupt_) link_ = std::make_unique<NcclLink>(library, device, id, is_receiver_ ? 1 : 0);
}

void NcclPair::advance_link(std::vector<uint64_t>& done, uint64_t own_epoch) {
  if (link_ == nullptr) return;
  link_->advance(done);
  if (!is_receiver_ || has_told_ || link_->state() != NcclLink::State::kReady) return;
  KvFrame ready;
  ready.kind = KvFrameKind::kReady;
  ready.epoch = own_epoch;
  write(ready);
  has_told_ = true;
}

bool NcclPair::has_ended() const {
  const bool is_broken = link_ != nullptr && link_->state() == NcclLink::State::kBroken;
  return has_stream_ended_ || is_broken;
}

bool NcclPair::is_corrupt() const {
  const bool has_frame = in_.size() >= kKvFrameBytes && !(is_receiver_ && link_ == nullptr);
  return is_corrupt_ || (has_frame && !peek());
}

void NcclPair::end() {
  stream_.reset();
  if (link_ != nullptr) link_->abort();
}

bool NcclPair::is_moving() const {
  return may_have_more_ || (link_ != nullptr && link_->num_open() > 0);
}

bool NcclPair::is_changing() const {
  return !is_open() || (link_ != nullptr && link_->state() == NcclLink::State::kMaking);
}

}  // namespace sluice
