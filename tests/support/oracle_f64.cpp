// SPDX-License-Identifier: Apache-2.0
#include "tests/support/oracle_f64.h"

#include <algorithm>
#include <cmath>
#include <thread>

#include "engine/core/status.h"
#include "tests/support/gguf_tensor.h"

namespace sluice::testing {
namespace {

// y[m, n] = sum_k x[m, k] * w[n, k]; eight partial sums let the compiler vectorize.
std::vector<double> multiply(const std::vector<double>& x,
                             int64_t k,
                             const double* weights,
                             int64_t n) {
  const int64_t rows = static_cast<int64_t>(x.size()) / k;
  std::vector<double> y(static_cast<size_t>(rows * n));
  const auto dot = [k](const double* a, const double* b) {
    double sums[8] = {};
    int64_t i = 0;
    for (; i + 8 <= k; i += 8) {
      for (int lane = 0; lane < 8; ++lane) sums[lane] += a[i + lane] * b[i + lane];
    }
    for (; i < k; ++i) sums[0] += a[i] * b[i];
    double total = 0;
    for (const double sum : sums) total += sum;
    return total;
  };
  constexpr int64_t kRowBlock = 64;  // rows of x that stay in the second-level cache
  const auto work = [&](int64_t begin, int64_t end) {
    for (int64_t block = 0; block < rows; block += kRowBlock) {
      for (int64_t j = begin; j < end; ++j) {
        for (int64_t m = block; m < std::min(rows, block + kRowBlock); ++m) {
          y[static_cast<size_t>(m * n + j)] = dot(x.data() + m * k, weights + j * k);
        }
      }
    }
  };
  std::thread other(work, int64_t{0}, n / 2);
  work(n / 2, n);
  other.join();
  return y;
}

std::string architecture(const GgufFile& file) {
  return std::string(*file.get_string("general.architecture")) + ".";
}

int64_t uint_value(const GgufFile& file, const std::string& key) {
  return static_cast<int64_t>(*file.get_uint(architecture(file) + key));
}

double float_value(const GgufFile& file, const std::string& key, double fallback) {
  return *file.get_float_or(architecture(file) + key, fallback);
}

std::vector<double> decoded_row(const GgufTensor& tensor, int64_t row) {
  const auto k = static_cast<int64_t>(tensor.dims[0]);
  std::vector<double> values(static_cast<size_t>(k));
  dequantize_row_f64(
      tensor.format, tensor.data.data() + row * row_bytes(tensor.format, k), k, values.data());
  return values;
}

}  // namespace

OracleF64::OracleF64(const GgufFile& file)
    : is_gemma_(architecture(file) == "gemma3."),
      hidden_(uint_value(file, "embedding_length")),
      heads_(uint_value(file, "attention.head_count")),
      kv_heads_(uint_value(file, "attention.head_count_kv")),
      head_dim_(is_gemma_ ? uint_value(file, "attention.key_length") : hidden_ / heads_),
      vocab_(static_cast<int64_t>(find_tensor(file, "token_embd.weight")->dims[1])),
      eps_(float_value(file, "attention.layer_norm_rms_epsilon", 1e-5)),
      embedding_(find_tensor(file, "token_embd.weight")),
      head_(find_tensor(file, "output.weight")) {
  if (head_ == nullptr) head_ = embedding_;
  output_norm_ = matrix(file, "output_norm.weight").values;
  const int64_t num_layers = uint_value(file, "block_count");
  for (int64_t i = 0; i < num_layers; ++i) {
    const std::string prefix = "blk." + std::to_string(i) + ".";
    Layer layer;
    layer.freq_base = float_value(file, "rope.freq_base", 10000.0);
    layer.attention_norm = matrix(file, prefix + "attn_norm.weight").values;
    layer.ffn_norm = matrix(file, prefix + "ffn_norm.weight").values;
    layer.q = matrix(file, prefix + "attn_q.weight");
    layer.k = matrix(file, prefix + "attn_k.weight");
    layer.v = matrix(file, prefix + "attn_v.weight");
    layer.out = matrix(file, prefix + "attn_output.weight");
    layer.gate = matrix(file, prefix + "ffn_gate.weight");
    layer.up = matrix(file, prefix + "ffn_up.weight");
    layer.down = matrix(file, prefix + "ffn_down.weight");
    if (is_gemma_) {
      layer.q_norm = matrix(file, prefix + "attn_q_norm.weight").values;
      layer.k_norm = matrix(file, prefix + "attn_k_norm.weight").values;
      layer.attention_post_norm = matrix(file, prefix + "post_attention_norm.weight").values;
      layer.ffn_post_norm = matrix(file, prefix + "post_ffw_norm.weight").values;
      if ((i + 1) % 6 != 0) {
        layer.window = uint_value(file, "attention.sliding_window");
        layer.freq_base = 10000.0;
      }
    }
    layers_.push_back(std::move(layer));
  }
}

OracleF64::Matrix OracleF64::matrix(const GgufFile& file, const std::string& name) const {
  const GgufTensor* tensor = find_tensor(file, name);
  CHECK(tensor != nullptr);
  Matrix result;
  result.k = static_cast<int64_t>(tensor->dims[0]);
  result.n = static_cast<int64_t>(tensor->dims[1]);
  result.values.resize(static_cast<size_t>(result.n * result.k));
  const int64_t bytes = row_bytes(tensor->format, result.k);
  for (int64_t row = 0; row < result.n; ++row) {
    dequantize_row_f64(tensor->format,
                       tensor->data.data() + row * bytes,
                       result.k,
                       result.values.data() + row * result.k);
  }
  return result;
}

std::vector<double> OracleF64::norm(const std::vector<double>& x,
                                    const std::vector<double>& weight) const {
  const size_t n = weight.size();
  std::vector<double> y(x.size());
  for (size_t row = 0; row < x.size() / n; ++row) {
    double sum = 0;
    for (size_t i = 0; i < n; ++i) sum += x[row * n + i] * x[row * n + i];
    const double scale = 1.0 / std::sqrt(sum / static_cast<double>(n) + eps_);
    for (size_t i = 0; i < n; ++i) y[row * n + i] = x[row * n + i] * scale * weight[i];
  }
  return y;
}

// Llama's pairs are neighbours in GGUF, Gemma's are half a head apart.
void OracleF64::rotate(const Layer& layer, std::vector<double>& rows, int64_t num_heads) const {
  const int64_t pairs = head_dim_ / 2;
  const auto tokens = static_cast<int64_t>(rows.size()) / (num_heads * head_dim_);
  for (int64_t t = 0; t < tokens; ++t) {
    for (int64_t h = 0; h < num_heads; ++h) {
      double* head = rows.data() + (t * num_heads + h) * head_dim_;
      for (int64_t i = 0; i < pairs; ++i) {
        const double exponent = -2.0 * static_cast<double>(i) / static_cast<double>(head_dim_);
        const double angle = static_cast<double>(t) * std::pow(layer.freq_base, exponent);
        double& x = head[is_gemma_ ? i : 2 * i];
        double& y = head[is_gemma_ ? i + pairs : 2 * i + 1];
        const double a = x;
        const double b = y;
        x = a * std::cos(angle) - b * std::sin(angle);
        y = a * std::sin(angle) + b * std::cos(angle);
      }
    }
  }
}

void OracleF64::add_half(const std::vector<double>& half,
                         const std::vector<double>& post_norm,
                         std::vector<double>& x) const {
  const std::vector<double> y = post_norm.empty() ? half : norm(half, post_norm);
  for (size_t i = 0; i < x.size(); ++i) x[i] += y[i];
}

void OracleF64::attention(const Layer& layer, std::vector<double>& x) const {
  const int64_t tokens = static_cast<int64_t>(x.size()) / hidden_;
  const std::vector<double> normed = norm(x, layer.attention_norm);
  std::vector<double> q = multiply(normed, hidden_, layer.q.values.data(), layer.q.n);
  std::vector<double> k = multiply(normed, hidden_, layer.k.values.data(), layer.k.n);
  const std::vector<double> v = multiply(normed, hidden_, layer.v.values.data(), layer.v.n);
  if (is_gemma_) {
    q = norm(q, layer.q_norm);
    k = norm(k, layer.k_norm);
  }
  rotate(layer, q, heads_);
  rotate(layer, k, kv_heads_);
  std::vector<double> mixed(static_cast<size_t>(tokens * heads_ * head_dim_));
  std::vector<double> scores(static_cast<size_t>(tokens));
  for (int64_t t = 0; t < tokens; ++t) {
    const int64_t first = layer.window > 0 ? std::max<int64_t>(0, t - layer.window + 1) : 0;
    for (int64_t h = 0; h < heads_; ++h) {
      const int64_t kv_head = h / (heads_ / kv_heads_);
      const double* query = q.data() + (t * heads_ + h) * head_dim_;
      double best = -1e300;
      for (int64_t s = first; s <= t; ++s) {
        const double* key = k.data() + (s * kv_heads_ + kv_head) * head_dim_;
        double dot = 0;
        for (int64_t d = 0; d < head_dim_; ++d) dot += query[d] * key[d];
        scores[static_cast<size_t>(s)] = dot / std::sqrt(static_cast<double>(head_dim_));
        best = std::max(best, scores[static_cast<size_t>(s)]);
      }
      double total = 0;
      double* out = mixed.data() + (t * heads_ + h) * head_dim_;
      for (int64_t s = first; s <= t; ++s) {
        const double weight = std::exp(scores[static_cast<size_t>(s)] - best);
        const double* value = v.data() + (s * kv_heads_ + kv_head) * head_dim_;
        total += weight;
        for (int64_t d = 0; d < head_dim_; ++d) out[d] += weight * value[d];
      }
      for (int64_t d = 0; d < head_dim_; ++d) out[d] /= total;
    }
  }
  add_half(multiply(mixed, heads_ * head_dim_, layer.out.values.data(), hidden_),
           layer.attention_post_norm,
           x);
}

std::vector<double> OracleF64::forward(const std::vector<TokenId>& tokens, size_t stride) const {
  std::vector<double> x;
  for (const TokenId token : tokens) {
    const std::vector<double> row = decoded_row(*embedding_, token);
    x.insert(x.end(), row.begin(), row.end());
  }
  if (is_gemma_) {
    for (double& value : x) value *= std::sqrt(static_cast<double>(hidden_));
  }
  const auto gate_function = [this](double g) {
    if (!is_gemma_) return g / (1 + std::exp(-g));
    return 0.5 * g * (1 + std::tanh(std::sqrt(2 / M_PI) * (g + 0.044715 * g * g * g)));
  };
  for (const Layer& layer : layers_) {
    attention(layer, x);
    const std::vector<double> normed = norm(x, layer.ffn_norm);
    std::vector<double> gate = multiply(normed, hidden_, layer.gate.values.data(), layer.gate.n);
    const std::vector<double> up = multiply(normed, hidden_, layer.up.values.data(), layer.up.n);
    for (size_t i = 0; i < gate.size(); ++i) gate[i] = gate_function(gate[i]) * up[i];
    add_half(
        multiply(gate, layer.gate.n, layer.down.values.data(), hidden_), layer.ffn_post_norm, x);
  }
  std::vector<double> chosen;
  for (size_t t = 0; t < tokens.size(); t += stride) {
    const auto row = x.begin() + static_cast<int64_t>(t) * hidden_;
    chosen.insert(chosen.end(), row, row + hidden_);
  }
  chosen = norm(chosen, output_norm_);
  const size_t num_rows = chosen.size() / static_cast<size_t>(hidden_);
  std::vector<double> logits(num_rows * static_cast<size_t>(vocab_));
  constexpr int64_t kPiece = 4096;  // rows of the output layer decoded at a time
  std::vector<double> piece;
  for (int64_t begin = 0; begin < vocab_; begin += kPiece) {
    const int64_t count = std::min(kPiece, vocab_ - begin);
    piece.clear();
    for (int64_t row = begin; row < begin + count; ++row) {
      const std::vector<double> weights = decoded_row(*head_, row);
      piece.insert(piece.end(), weights.begin(), weights.end());
    }
    const std::vector<double> part = multiply(chosen, hidden_, piece.data(), count);
    for (size_t t = 0; t < num_rows; ++t) {
      std::copy_n(part.begin() + static_cast<int64_t>(t) * count,
                  count,
                  logits.begin() + static_cast<int64_t>(t) * vocab_ + begin);
    }
  }
  return logits;
}

double kl_divergence(const double* p_logits, const float* q_logits, int64_t vocab_size) {
  const double p_max = *std::max_element(p_logits, p_logits + vocab_size);
  const double q_max = *std::max_element(q_logits, q_logits + vocab_size);
  double p_sum = 0;
  double q_sum = 0;
  for (int64_t i = 0; i < vocab_size; ++i) {
    p_sum += std::exp(p_logits[i] - p_max);
    q_sum += std::exp(static_cast<double>(q_logits[i]) - q_max);
  }
  const double p_log = p_max + std::log(p_sum);
  const double q_log = q_max + std::log(q_sum);
  double kl = 0;
  for (int64_t i = 0; i < vocab_size; ++i) {
    const double log_p = p_logits[i] - p_log;
    kl += std::exp(log_p) * (log_p - (static_cast<double>(q_logits[i]) - q_log));
  }
  return kl;
}

}  // namespace sluice::testing
