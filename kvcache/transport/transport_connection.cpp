// SPDX-License-Identifier: Apache-2.0
#include "kvcache/transport/transport_connection.h"

#include <sys/uio.h>

#include <algorithm>

namespace sluice {
namespace {

constexpr size_t kMostParts = 1024;  // parts of one vectored write: IOV_MAX

iovec part_of(std::span<const std::byte> bytes, size_t offset) {
  return {.iov_base = const_cast<std::byte*>(bytes.data() + offset),
          .iov_len = bytes.size() - offset};
}

}  // namespace

size_t KvConnection::read(size_t budget, std::vector<KvDone>& done) {
  size_t total = 0;
  while (total < budget && may_read && failure_ == Failure::kNone &&
         header_bytes_ < header_.size()) {
    total += read_part(budget - total, done);
  }
  return total;
}

size_t KvConnection::read_into(std::span<std::byte> out, kernels::KvChecksum* sum) {
  const std::optional<size_t> count = stream_->read(out, sum);
  if (!count) fail(Failure::kLost);
  may_read = count.value_or(0) > 0;
  return count.value_or(0);
}

size_t KvConnection::read_header() {
  const size_t count = read_into(std::span(header_).subspan(header_bytes_), nullptr);
  header_bytes_ += count;
  return count;
}

std::optional<KvFrame> KvConnection::take_frame() {
  if (header_bytes_ < header_.size()) return std::nullopt;
  header_bytes_ = 0;
  const auto frame = decode_kv_frame(header_);
  if (!frame) fail(Failure::kRefused);
  return frame ? std::optional(*frame) : std::nullopt;
}

void KvConnection::put(const KvFrame& frame) {
  out_.resize(out_.size() + kKvFrameBytes);
  encode_kv_frame(frame, std::span(out_).last<kKvFrameBytes>());
}

bool KvConnection::write_out(std::span<const std::span<const std::byte>> payload) {
  const size_t num_parts = out_.empty() ? 0 : 1 + payload.size();
  const auto bytes_of = [&](size_t part) {
    return part == 0 ? std::span<const std::byte>(out_) : payload[part - 1];
  };
  std::array<iovec, kMostParts> parts;
  while (out_part_ < num_parts) {
    if (!may_write || failure_ != Failure::kNone) return false;
    size_t count = 0;
    for (size_t part = out_part_; part < num_parts && count < parts.size(); ++part) {
      parts[count++] = part_of(bytes_of(part), part == out_part_ ? out_offset_ : 0);
    }
    const std::optional<size_t> written = stream_->write(std::span(parts).first(count));
    if (!written) fail(Failure::kLost);
    may_write = written.value_or(0) > 0;
    out_offset_ += written.value_or(0);
    while (out_part_ < num_parts && out_offset_ >= bytes_of(out_part_).size()) {
      out_offset_ -= bytes_of(out_part_).size();
      ++out_part_;
    }
  }
  out_.clear();
  out_part_ = 0;
  out_offset_ = 0;
  return true;
}

bool KvConnection::moves(const KvTransferRef& ref) const {
  const auto is_of = [&](const KvFrame& frame) {
    return frame.kind == KvFrameKind::kData && frame.ref == ref;
  };
  return std::ranges::any_of(sending, [&](const KvOutgoing& one) { return is_of(one.frame); }) ||
         std::ranges::any_of(landing, [&](const Landing& one) { return is_of(one.frame); });
}

void KvConnection::end() {
  is_open_ = false;
  stream_.reset();
}

}  // namespace sluice
