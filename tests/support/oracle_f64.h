// SPDX-License-Identifier: Apache-2.0
// A forward pass of Llama or Gemma 3 in plain double arithmetic over the decoded weights of a GGUF
// file: the reference for kernels, cache and quantized activations. It is written from the
// architecture's definition, and shares only the file reader with the engine.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/core/types.h"
#include "engine/weights/gguf.h"

namespace sluice::testing {

class OracleF64 {
 public:
  explicit OracleF64(const GgufFile& file);

  // Logits of every `stride`-th position from the first on, [positions][vocab]. Two threads.
  [[nodiscard]] std::vector<double> forward(const std::vector<TokenId>& tokens,
                                            size_t stride = 1) const;

  [[nodiscard]] int64_t vocab_size() const { return vocab_; }

 private:
  struct Matrix {
    int64_t n = 0;
    int64_t k = 0;
    std::vector<double> values;
  };

  struct Layer {
    std::vector<double> attention_norm, ffn_norm;
    std::vector<double> q_norm, k_norm, attention_post_norm, ffn_post_norm;  // Gemma
    int64_t window = 0;                                                      // 0: all
    double freq_base = 0;
    Matrix q, k, v, out, gate, up, down;
  };

  Matrix matrix(const GgufFile& file, const std::string& name) const;
  std::vector<double> norm(const std::vector<double>& x, const std::vector<double>& weight) const;
  void rotate(const Layer& layer, std::vector<double>& rows, int64_t num_heads) const;
  void add_half(const std::vector<double>& half,
                const std::vector<double>& post_norm,
                std::vector<double>& x) const;
  void attention(const Layer& layer, std::vector<double>& x) const;

  bool is_gemma_;
  int64_t hidden_, heads_, kv_heads_, head_dim_, vocab_;
  double eps_;
  const GgufTensor *embedding_, *head_;  // decoded row by row, since they are the largest
  std::vector<double> output_norm_;
  std::vector<Layer> layers_;
};

// Returns KL(p || q) in nats for two rows of logits.
double kl_divergence(const double* p_logits, const float* q_logits, int64_t vocab_size);

}  // namespace sluice::testing
