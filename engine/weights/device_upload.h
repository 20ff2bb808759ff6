// SPDX-License-Identifier: Apache-2.0
// Bytes of a checkpoint on their way to a device: through pinned memory, a piece at a time, so that
// a matrix of any size takes no more of the host than a piece.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "engine/core/status.h"
#include "engine/core/types.h"
#include "kernels/device_memory.h"
#include "quant/repack.h"

namespace sluice {

class DeviceUpload {
 public:
  static constexpr int64_t kPieceBytes = int64_t{32} << 20;

  // `memory` must outlive it. For matrices and vectors of at most `bytes` in all.
  static Expected<DeviceUpload> create(kernels::DeviceMemory& memory, int64_t bytes) {
    DeviceUpload upload;
    SLUICE_TRY(upload.piece_,
               kernels::DeviceBuffer::allocate_pinned(
                   memory, std::clamp(bytes, kFloat, kPieceBytes), "weights on their way"));
    upload.sent_ = memory.make_event();
    return upload;
  }

  // n rows of `stride` bytes each to `to`. fill(first, count, bytes) writes some of them, `first` a
  // multiple of kRowTile; its Error ends the upload. kUnsupported, about `where`: a tile of rows is
  // no piece.
  template <typename Fill>
  Expected<void> rows(const std::string& where,
                      int64_t n,
                      int64_t stride,
                      std::byte* to,
                      const Fill& fill) {
    const int64_t tiles =
        std::max<int64_t>(1, static_cast<int64_t>(piece_.size()) / (stride * int64_t{kRowTile}));
    if (std::min(n, tiles * kRowTile) * stride > static_cast<int64_t>(piece_.size())) {
      return make_error(ErrorCode::kUnsupported,
                        where + ": found rows of " + std::to_string(stride) +
                            " bytes, expected at most " + std::to_string(kPieceBytes / kRowTile) +
                            " on a device",
                        "device");
    }
    for (int64_t first = 0; first < n; first += tiles * kRowTile) {
      const int64_t count = std::min(n - first, tiles * kRowTile);
      sent_->wait();
      SLUICE_TRY_VOID(fill(first, count, piece_.data()));
      piece_.memory()->upload(to + first * stride, piece_.data(), count * stride);
      sent_->record();
    }
    return {};
  }

  void floats(std::span<const float> values, std::byte* to) {
    const auto* const from = reinterpret_cast<const std::byte*>(values.data());
    const auto size = static_cast<int64_t>(piece_.size()) / kFloat * kFloat;
    const auto total = static_cast<int64_t>(values.size_bytes());
    for (int64_t begin = 0; begin < total; begin += size) {
      const int64_t bytes = std::min(size, total - begin);
      sent_->wait();
      std::copy_n(from + begin, bytes, piece_.data());
      piece_.memory()->upload(to + begin, piece_.data(), bytes);
      sent_->record();
    }
  }

 private:
  static constexpr int64_t kFloat = sizeof(float);

  DeviceUpload() = default;

  kernels::DeviceBuffer piece_;
  std::unique_ptr<kernels::DeviceEvent> sent_;  // the piece
};

}  // namespace sluice
