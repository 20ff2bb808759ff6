// SPDX-License-Identifier: Apache-2.0
// Reads rows of an output's tensor as floats, or as the fp64 values of the input's codes, from
// whatever tensors and formats the input has.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/core/status.h"
#include "engine/weights/checkpoint.h"
#include "quant/scheme.h"

namespace sluice {

// Shape [num_rows, width]: all dimensions but the fastest are rows.
struct TensorRows {
  int64_t rows = 0;
  int64_t width = 0;
};

// A range of rows of an input tensor.
struct RowPiece {
  const CheckpointTensor* tensor = nullptr;
  int64_t first = 0;
  int64_t count = 0;
};

enum class RowOrder : uint8_t {
  kAsStored,     // pieces one after the other
  kToPairs,      // per head, rows that rotate together become neighbours: GGUF's q and k of Llama
  kToHalves,     // the inverse of kToPairs
  kAlternating,  // one row of each piece in turn
};

// A tensor of the output, composed of rows of the input's tensors.
struct SourceTensor {
  std::string name;             // in GGUF; `stored_name` determines its parts' names
  std::string stored_name;      // in the output
  std::string input_name = {};  // in the input, for people and expressions
  uint32_t num_dims = 0;
  uint64_t dims[4] = {1, 1, 1, 1};    // fastest first: dims[0] = width
  std::vector<RowPiece> pieces = {};  // equally wide
  RowOrder order = RowOrder::kAsStored;
  int32_t heads = 1;               // used if rows are reordered
  float offset = 0;                // added to every weight
  std::vector<float> values = {};  // the contents if there are no pieces
  // Names given by the output's reader: several if it splits a tensor of gate and up.
  std::vector<std::string> read_names = {};
  bool is_fused = false;  // experts as in transformers' classes for gpt-oss and Llama 4

  [[nodiscard]] TensorRows shape() const;
  // The format of rows that can be copied as stored; none: rows are codes with companions, have
  // several formats, or change.
  [[nodiscard]] std::optional<WeightFormat> format() const;
  // Whether a piece is codes with companions, which another spelling cannot store.
  [[nodiscard]] bool is_coded() const;
  [[nodiscard]] int64_t bytes() const;  // in the input
};

// Returns the stored row for row `row` of `rows`, reordered by heads.
int64_t row_behind(RowOrder order, int64_t rows, int32_t heads, int64_t row);

// Returns the source that is all of a tensor, unchanged.
SourceTensor source_of(const CheckpointTensor& tensor);

// One thread.
class SourceRows {
 public:
  // `file` is for messages. The tensor and its pieces must outlive the reader.
  SourceRows(const std::string& file, const SourceTensor& tensor);

  // Fills out[num_rows][width]. kDataLoss: a weight is infinite or NaN.
  Expected<void> read(int64_t first_row, int64_t num_rows, float* out);
  // Like read(), unrounded.
  void read_f64(int64_t first_row, int64_t num_rows, double* out);
  // Copies the bytes of rows that have a format().
  void copy(int64_t first_row, int64_t num_rows, std::byte* out);

 private:
  struct Place {
    size_t piece = 0;
    int64_t row = 0;  // in the piece's tensor
  };

  [[nodiscard]] Place place_of(int64_t row) const;
  // The bytes of a row that is not stored as codes, valid until the next call.
  const std::byte* stored_row(const Place& place);

  const std::string& file_;
  const SourceTensor& tensor_;
  std::vector<std::optional<PlainReader>> readers_;  // for pieces that are codes
  // Rows of one head of a piece that is made of another tensor.
  std::vector<std::byte> head_rows_;
  Place head_ = {.piece = 0, .row = -1};
};

}  // namespace sluice
