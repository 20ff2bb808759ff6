// SPDX-License-Identifier: Apache-2.0
// Tiny Hugging Face checkpoints of random weights, for tests of formats that the repository's
// checkpoints do not have for all matrices.
#pragma once

#include <string>

namespace sluice::testing {

enum class TinyWeights {
  kInt8,         // W8A8 of compressed-tensors, with the head; the embedding is BF16
  kBF16,         // all matrices; the head is tied to the embedding
  kF16,          // kBF16 in F16
  kInt8Experts,  // kInt8 with BF16 routers; layers of Qwen 3 with experts
  kBF16Experts,  // kInt8Experts in BF16
  kInt8Tied,     // kInt8; the head is tied to the embedding, which is INT8 too
};

// Writes config.json and model.safetensors into `folder`, which it makes: two layers of Llama with
// biases (kInt8, kInt8Tied) or of Qwen 3, 5 experts with 2 for each token, hidden size 64, 440
// tokens, a context of 512. The bytes are the same in every run. False: a file could not be
// written.
bool write_tiny_hf_model(const std::string& folder, TinyWeights weights);

}  // namespace sluice::testing
