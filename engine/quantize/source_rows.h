// SPDX-License-Identifier: Apache-2.0
// Rows of an output's tensor as floats, and as the fp64 values that the input's codes stand for,
// whatever tensors of the input they are in and whatever those are made of.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/core/status.h"
#include "engine/weights/checkpoint.h"
#include "quant/scheme.h"

namespace sluice {

// [num_rows, width]: all dimensions but the fastest are rows.
struct TensorRows {
  int64_t rows = 0;
  int64_t width = 0;
};

// Rows of a tensor of the input.
struct RowPiece {
  const CheckpointTensor* tensor = nullptr;
  int64_t first = 0;
  int64_t count = 0;
};

enum class RowOrder : uint8_t {
  kAsStored,  // pieces one behind the other
  kToPairs,   // of each head, rows that rotate together become neighbours: GGUF's q and k of Llama
  kToHalves,  // the same undone
  kAlternating,  // a row of each piece in turn
};

// A tensor of the output, as rows of the input's.
struct SourceTensor {
  std::string name;             // GGUF's; what its parts are called follows from `stored_name`
  std::string stored_name;      // in the output
  std::string input_name = {};  // in the input, for people and expressions
  uint32_t num_dims = 0;
  uint64_t dims[4] = {1, 1, 1, 1};    // fastest first: dims[0] = width
  std::vector<RowPiece> pieces = {};  // of one width
  RowOrder order = RowOrder::kAsStored;
  int32_t heads = 1;               // of a tensor whose rows change places
  float offset = 0;                // added to every weight
  std::vector<float> values = {};  // all there is where there are no pieces
  // Names that the output's reader gives it: several where it takes a tensor of alternating rows
  // apart.
  std::vector<std::string> read_names = {};
  bool is_fused = false;  // experts as transformers' class for gpt-oss has them

  [[nodiscard]] TensorRows shape() const;
  // Of rows that can be copied as they are stored; none: they are codes with companions, are of
  // several formats, or change.
  [[nodiscard]] std::optional<WeightFormat> format() const;
  // Whether a piece is codes with companions, which a file of another spelling cannot have.
  [[nodiscard]] bool is_coded() const;
  [[nodiscard]] int64_t bytes() const;  // in the input
};

// The stored row behind row `row` of so many that lie in another order by heads.
int64_t row_behind(RowOrder order, int64_t rows, int32_t heads, int64_t row);

// All of a tensor as it is.
SourceTensor source_of(const CheckpointTensor& tensor);

// For one thread.
class SourceRows {
 public:
  // `file` is for messages. The tensors must outlive it.
  SourceRows(const std::string& file, const SourceTensor& tensor);

  // out: [num_rows][width]. kDataLoss: a weight is infinite or NaN.
  Expected<void> read(int64_t first_row, int64_t num_rows, float* out);
  // The same, unrounded.
  void read_f64(int64_t first_row, int64_t num_rows, double* out);
  // Bytes of rows that have a format().
  void copy(int64_t first_row, int64_t num_rows, std::byte* out) const;

 private:
  struct Place {
    size_t piece = 0;
    int64_t row = 0;  // in the piece's tensor
  };

  [[nodiscard]] Place place_of(int64_t row) const;

  const std::string& file_;
  const SourceTensor& tensor_;
  std::vector<std::optional<PlainReader>> readers_;  // of pieces that are codes
};

}  // namespace sluice
