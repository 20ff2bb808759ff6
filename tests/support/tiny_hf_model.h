// SPDX-License-Identifier: Apache-2.0
// Tiny Hugging Face checkpoints of random weights, for tests that need matrices in formats which
// the ones in the repository do not have everywhere.
#pragma once

#include <string>

namespace sluice::testing {

enum class TinyWeights {
  kInt8,  // W8A8 of compressed-tensors, the head too; the embedding, which is only looked up, BF16
  kBF16,  // all of them, the head tied to the embedding
  kF16,   // as kBF16
  kInt8Experts,  // as kInt8 but for the routers, which are BF16; layers of Qwen 3 with experts
  kBF16Experts,  // the same in BF16
  kInt8Tied,     // as kInt8, the head tied to the embedding, which is INT8 too
};

// Writes config.json and model.safetensors into `folder`, which it makes: two layers of Llama with
// biases (kInt8, kInt8Tied) or of Qwen 3, 5 experts of which a token has 2, hidden size 64, 440
// tokens, a context of 512. The same bytes in every run. False: a file could not be written.
bool write_tiny_hf_model(const std::string& folder, TinyWeights weights);

}  // namespace sluice::testing
