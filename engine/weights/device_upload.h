// SPDX-License-Identifier: Apache-2.0
// Uploads a checkpoint's bytes to a device through pinned memory: one piece is filled while the
// previous one is copied, so a matrix of any size takes no more host memory than two pieces.
#pragma once

#include <algorithm>
#include <array>
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
  // Size of a pinned piece; smaller if less is uploaded.
  static constexpr int64_t kBytes = int64_t{64} << 20;

  // For matrices and vectors of at most `bytes` in all. `memory` must outlive the result.
  static Expected<DeviceUpload> create(kernels::DeviceMemory& memory, int64_t bytes) {
    DeviceUpload upload;
    for (Piece& piece : upload.pieces_) {
      SLUICE_TRY(piece.bytes,
                 kernels::DeviceBuffer::allocate_pinned(
                     memory, std::clamp(bytes, kValue, kPieceBytes), "weights on their way"));
      piece.sent = memory.make_event();
    }
    return upload;
  }

  // Uploads n rows of `stride` bytes each to `to`. fill(first, count, bytes) writes some of them,
  // `first` being a multiple of kRowTile; its Error ends the upload. kUnsupported, naming `where`:
  // a tile of rows does not fit a piece.
  template <typename Fill>
  Expected<void> rows(const std::string& where,
                      int64_t n,
                      int64_t stride,
                      std::byte* to,
                      const Fill& fill) {
    const int64_t tiles = std::max<int64_t>(1, piece_bytes() / (stride * int64_t{kRowTile}));
    if (std::min(n, tiles * kRowTile) * stride > piece_bytes()) {
      return make_error(ErrorCode::kUnsupported,
                        where + ": found rows of " + std::to_string(stride) +
                            " bytes, expected at most " + std::to_string(kPieceBytes / kRowTile) +
                            " on a device",
                        "device");
    }
    for (int64_t first = 0; first < n; first += tiles * kRowTile) {
      const int64_t count = std::min(n - first, tiles * kRowTile);
      const Piece& piece = free_piece();
      SLUICE_TRY_VOID(fill(first, count, piece.bytes.data()));
      send(piece, to + first * stride, count * stride);
    }
    return {};
  }

  // Uploads values of 4 bytes.
  void values(std::span<const std::byte> from, std::byte* to) {
    const int64_t size = piece_bytes() / kValue * kValue;
    const auto total = static_cast<int64_t>(from.size());
    for (int64_t begin = 0; begin < total; begin += size) {
      const int64_t bytes = std::min(size, total - begin);
      const Piece& piece = free_piece();
      std::copy_n(from.data() + begin, bytes, piece.bytes.data());
      send(piece, to + begin, bytes);
    }
  }

 private:
  static constexpr int64_t kValue = 4;
  static constexpr size_t kPieces = 2;
  static constexpr int64_t kPieceBytes = kBytes / static_cast<int64_t>(kPieces);

  struct Piece {
    kernels::DeviceBuffer bytes;
    std::unique_ptr<kernels::DeviceEvent> sent;
  };

  DeviceUpload() = default;

  [[nodiscard]] int64_t piece_bytes() const {
    return static_cast<int64_t>(pieces_.front().bytes.size());
  }

  const Piece& free_piece() {
    const Piece& piece = pieces_[num_sent_ % kPieces];
    piece.sent->wait();
    return piece;
  }

  void send(const Piece& piece, std::byte* to, int64_t bytes) {
    piece.bytes.memory().upload(to, piece.bytes.data(), bytes);
    piece.sent->record();
    ++num_sent_;
  }

  std::array<Piece, kPieces> pieces_;  // used in turn
  uint64_t num_sent_ = 0;
};

}  // namespace sluice
