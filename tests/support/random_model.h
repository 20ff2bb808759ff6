// SPDX-License-Identifier: Apache-2.0
// A small Llama model of random blocks, in any mixture of tensor types, for tests of types that the
// repository's tiny model cannot have: blocks of 256 need wider rows.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "quant/format.h"

namespace sluice::testing {

// Writes the model to `path`: hidden size 256, vocabulary and metadata of `tiny_path`'s file, the
// first `num_tokens` of its tokens in the embedding. The layers' matrices take `formats` in turn,
// the embedding and head `head`; there are enough layers to use each format at least once. Returns
// false if a file could not be read or written.
bool write_random_model(const std::string& tiny_path,
                        const std::string& path,
                        std::span<const WeightFormat> formats,
                        WeightFormat head,
                        int64_t num_tokens = 487);

}  // namespace sluice::testing
