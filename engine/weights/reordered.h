// SPDX-License-Identifier: Apache-2.0
// Matrices that directories have in an order of their own.
#pragma once

#include <array>
#include <cstddef>
#include <string>
#include <vector>

#include "engine/core/status.h"
#include "engine/weights/checkpoint_tensor.h"
#include "engine/weights/metadata.h"

namespace sluice {

struct SplitQkv {
  std::vector<CheckpointTensor> tensors;       // of q, k and v
  std::vector<std::vector<std::byte>> memory;  // storage of the tensors' data
};

// Takes apart a matrix whose rows are those of the queries that share a KV head, then its key and
// its value, head by head (InternLM 2, GPT-NeoX, Falcon).
// `whole`: floats of "blk.0.attn_qkv.weight" or ".bias".
// kDataLoss: another number of rows than the heads of `metadata` have. kUnsupported: codes.
Expected<SplitQkv> split_grouped_qkv(const CheckpointTensor& whole, const Metadata& metadata);

// Takes apart a matrix with as many rows of q as of k and of v, in this order (Baichuan): the parts
// are views of it. kDataLoss: another number of rows. kUnsupported: codes.
Expected<std::array<CheckpointTensor, 3>> split_equal_qkv(const CheckpointTensor& whole);

// Divides each row of floats by its length, of at least 1e-12, and rounds to the same format; its
// data go to a new element of `memory`. kUnsupported: codes.
Expected<void> normalize_rows(CheckpointTensor& matrix,
                              std::vector<std::vector<std::byte>>& memory);

// Gives a matrix of floats that has a row for each input (GPT-2) one for each output; its data go
// to a new element of `memory`. kUnsupported: codes.
Expected<void> transpose(CheckpointTensor& matrix, std::vector<std::vector<std::byte>>& memory);

}  // namespace sluice
