// SPDX-License-Identifier: Apache-2.0
// One weight of a checkpoint into kernel layout, checked on the way.
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

// How many threads what is made of so many bytes of weights is worth, and work(i, begin, end) for
// the i-th of `num_workers` shares of [0, count), on threads that end with the call and the
// caller's.
int64_t num_pack_workers(int64_t bytes);
void share_out(int64_t count,
               int64_t num_workers,
               const std::function<void(int64_t, int64_t, int64_t)>& work);

// What becomes of a matrix (quant/repack.h), nothing where it is only checked and hashed, and which
// of its rows the n are: hashes of parts add up to that of the whole, and messages name the row.
enum class MatrixLayout : uint8_t { kTiles, kRows, kNone };

// Weights of a matrix of codes that were looked at.
struct Magnitude {
  double squares = 0;  // summed
  int64_t num_weights = 0;
};

struct MatrixPart {
  MatrixLayout layout = MatrixLayout::kTiles;
  int64_t first_row = 0;  // a multiple of kRowTile
  // Of a matrix that is packed in pieces, one after the other: what was looked at is added to it,
  // and check_magnitude() is the caller's to call after the last. Null: the piece is the matrix.
  Magnitude* magnitude = nullptr;
};

// kDataLoss: a root mean square that no trained matrix has: scales that were read the wrong way. A
// matrix of zeros is one.
Expected<void> check_magnitude(const std::string& where, const Magnitude& magnitude);

// Packs n rows of k weights over a few short-lived threads; repacking is the largest part of a
// start and touches every byte once. kDataLoss where a scale or a float weight is infinite or NaN:
// the first of them, as "<where>: row 3 block 7: found scale nan, expected finite scales". Returns
// a hash of the rows' bytes: what the model computes depends on them.
Expected<uint64_t> pack_checked(const std::string& where,
                                WeightFormat format,
                                const std::byte* src,
                                int64_t n,
                                int64_t k,
                                std::byte* dst,
                                const MatrixPart& part = {});

// The same for n rows of a matrix of codes from `first_row` on, with the hash of all that makes
// their weights. kDataLoss as well by check_magnitude(), for which one row in 16 is looked at. As
// rows, what lies behind them is left out: plain_row_scales().
Expected<uint64_t> pack_checked(const std::string& where,
                                const CodedMatrix& matrix,
                                int64_t first_row,
                                int64_t n,
                                std::byte* dst,
                                const MatrixPart& part = {});

// The scales of n rows that a device reads behind the rows, [n][matrix_row_scales]; none of formats
// that have none there.
std::vector<float> plain_row_scales(const CodedMatrix& matrix, int64_t first_row, int64_t n);

struct DecodedRow {
  std::vector<float> values;
  uint64_t hash = 0;
};

// One row of k weights as floats, with the same check and hash.
Expected<DecodedRow> decode_checked(const std::string& where,
                                    WeightFormat format,
                                    const std::byte* row,
                                    int64_t k);

}  // namespace sluice
