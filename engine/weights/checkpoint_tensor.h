// SPDX-License-Identifier: Apache-2.0
// One tensor of a checkpoint, under the name that GGUF has for it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "quant/format.h"
#include "quant/scheme.h"

namespace sluice {

class LatentHalf;

struct CheckpointTensor {
  std::string name;                 // "blk.0.attn_q.weight"
  std::string stored_name = {};     // in the file; empty: combined from several
  std::string file = {};            // empty: the checkpoint's path
  uint32_t num_dims = 0;            // trailing dimensions of 1 do not count
  uint64_t dims[4] = {1, 1, 1, 1};  // fastest first: dims[0] = K
  // Format of its rows in the file, or of what kernels read of a matrix of codes.
  WeightFormat format = WeightFormat::kF32;
  std::span<const std::byte> data;  // mapped
  std::shared_ptr<const CodedMatrix> coded =
      nullptr;  // `data` is its codes; null: rows of floats or blocks
  // Makes the rows from another tensor's (latent_halves.h), and there is no `data`; null: no.
  std::shared_ptr<const LatentHalf> latent = nullptr;
};

}  // namespace sluice
