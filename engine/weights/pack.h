// SPDX-License-Identifier: Apache-2.0
// Packs one weight of a checkpoint into kernel layout and checks it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "engine/core/status.h"
#include "quant/repack.h"
#include "quant/scheme.h"

namespace sluice {

// num_pack_workers() returns how many threads are worthwhile for so many bytes of weights.
// share_out() runs work(i, begin, end) for the i-th of `num_workers` shares of [0, count), on the
// caller's thread and on threads that end with the call.
int64_t num_pack_workers(int64_t bytes);
void share_out(int64_t count,
               int64_t num_workers,
               const std::function<void(int64_t, int64_t, int64_t)>& work);

// The result layout of a matrix (quant/repack.h); kNone: it is only checked and hashed. The hashes
// of parts (MatrixPlace) add up to that of the whole.
enum class MatrixLayout : uint8_t { kTiles, kRows, kNone };

// Statistics of the examined weights of a matrix of codes.
struct Magnitude {
  double squares = 0;  // sum
  int64_t num_weights = 0;
};

struct MatrixPart {
  MatrixLayout layout = MatrixLayout::kTiles;
  int64_t first_row = 0;  // a multiple of kRowTile
  // For a matrix packed in consecutive pieces: accumulates the statistics; the caller calls
  // warn_of_magnitude() after the last piece. Null: the piece is the whole matrix.
  Magnitude* magnitude = nullptr;
};

// Warns of a root mean square that few trained matrices have, a sign of misread scales or of a dead
// expert; never of a matrix of zeros. Returns whether it did.
bool warn_of_magnitude(const std::string& where, const Magnitude& magnitude);

// Packs n rows of k weights over a few short-lived threads; repacking dominates a start and touches
// every byte once. kDataLoss where a scale or a float weight is infinite or NaN, naming the first,
// as "<where>: row 3 block 7: found scale nan, expected finite scales". Returns a hash of the rows'
// bytes: what the model computes depends on them.
Expected<uint64_t> pack_checked(const std::string& where,
                                WeightFormat format,
                                const std::byte* src,
                                int64_t n,
                                int64_t k,
                                std::byte* dst,
                                const MatrixPart& part = {});

// Packs n rows of a matrix of codes from `first_row` on, hashing all that determines their weights.
// Calls warn_of_magnitude() for one row in 16. With kRows the scales after the rows are left out:
// plain_row_scales().
Expected<uint64_t> pack_checked(const std::string& where,
                                const CodedMatrix& matrix,
                                int64_t first_row,
                                int64_t n,
                                std::byte* dst,
                                const MatrixPart& part = {});

// Returns the scales of n rows that a device reads after the rows, [n][matrix_row_scales]; empty
// for formats without such scales.
std::vector<float> plain_row_scales(const CodedMatrix& matrix, int64_t first_row, int64_t n);

struct DecodedRow {
  std::vector<float> values;
  uint64_t hash = 0;
};

// Decodes one row of k weights to floats, with the same check and hash.
Expected<DecodedRow> decode_checked(const std::string& where,
                                    WeightFormat format,
                                    const std::byte* row,
                                    int64_t k);

}  // namespace sluice
