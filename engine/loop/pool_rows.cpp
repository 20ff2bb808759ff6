// SPDX-License-Identifier: Apache-2.0
#include "engine/loop/pool_rows.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "kernels/gemm.h"
#include "quant/repack.h"

namespace sluice {
namespace {

// e^x within 1e-15 of it, by operations that are the same everywhere; libm's differ. x <= 0.
double exp_below(double x) {
  constexpr double kLn2High = 0x1.62e42fee00000p-1;
  constexpr double kLn2Low = 0x1.a39ef35793c76p-33;
  constexpr int kTerms = 14;
  if (x < -700) return 0;
  const double count = std::nearbyint(x * 0x1.71547652b82fep+0);
  const double rest = (x - count * kLn2High) - count * kLn2Low;
  double sum = 1;
  for (int i = kTerms; i > 0; --i) sum = 1 + sum * rest / i;
  return std::ldexp(sum, static_cast<int>(count));
}

float sigmoid(float logit) {
  const double small = exp_below(-std::abs(static_cast<double>(logit)));
  return static_cast<float>((logit < 0 ? small : 1) / (1 + small));
}

void softmax(std::span<float> logits) {
  const auto top = static_cast<double>(*std::ranges::max_element(logits));
  double sum = 0;
  for (const float x : logits) sum += exp_below(static_cast<double>(x) - top);
  for (float& x : logits) {
    x = static_cast<float>(exp_below(static_cast<double>(x) - top) / sum);
  }
}

// Divides by the length; a zero vector stays.
void normalize(std::span<float> vector) {
  double sum = 0;
  for (const float x : vector) sum += static_cast<double>(x) * static_cast<double>(x);
  const double length = std::max(std::sqrt(sum), 1e-12);
  for (float& x : vector) x = static_cast<float>(static_cast<double>(x) / length);
}

// tanh by exp_below(), within a float's precision.
float tanh_of(float x) {
  const double small = exp_below(-2 * std::abs(static_cast<double>(x)));
  const double value = (1 - small) / (1 + small);
  return static_cast<float>(x < 0 ? -value : value);
}

// x times the normal distribution's share below x. erf is 2 / sqrt(pi) e^(-z^2) times a sum whose
// terms are all positive.
float gelu_of(float x) {
  constexpr double kTwoOverRootPi = 1.1283791670955126;
  const double z = std::abs(static_cast<double>(x)) * 0.7071067811865476;
  double erf = 1;
  if (z < 6) {
    double term = z;
    double sum = z;
    for (int i = 1; term > sum * 0x1p-54; ++i) {
      term *= 2 * z * z / (2 * i + 1);
      sum += term;
    }
    erf = kTwoOverRootPi * exp_below(-z * z) * sum;
  }
  return static_cast<float>(0.5 * static_cast<double>(x) * (x < 0 ? 1 - erf : 1 + erf));
}

float value_of(PooledFunction function, float x) {
  switch (function) {
    case PooledFunction::kTanh: return tanh_of(x);
    case PooledFunction::kGelu: return gelu_of(x);
    case PooledFunction::kRelu: return x < 0 ? 0 : x;
    case PooledFunction::kIdentity: break;
  }
  return x;
}

// Norms a layer's output, in doubles.
void norm(const PooledLayer& layer, std::span<float> vector) {
  double sum = 0;
  for (const float x : vector) sum += static_cast<double>(x);
  const double mean = sum / static_cast<double>(vector.size());
  double squares = 0;
  for (const float x : vector) {
    const double distance = static_cast<double>(x) - mean;
    squares += distance * distance;
  }
  const double variance = squares / static_cast<double>(vector.size());
  const double scale = std::sqrt(variance + layer.norm_epsilon);
  for (size_t i = 0; i < vector.size(); ++i) {
    const auto bias = layer.norm_bias.empty() ? 0.0 : static_cast<double>(layer.norm_bias[i]);
    const double normed = (static_cast<double>(vector[i]) - mean) / scale;
    vector[i] = static_cast<float>(normed * static_cast<double>(layer.norm_weight[i]) + bias);
  }
}

// Keeps the first `count` elements of each vector of `width`.
void cut(size_t width, size_t count, std::vector<float>& vectors) {
  size_t to = 0;
  for (size_t from = 0; from < vectors.size(); from += width) {
    std::copy_n(vectors.begin() + static_cast<ptrdiff_t>(from),
                count,
                vectors.begin() + static_cast<ptrdiff_t>(to));
    to += count;
  }
  vectors.resize(to);
}

// A value that is no number stays, so that the answer is an error.
void take_larger(std::span<const float> state, std::vector<float>& pooled) {
  for (size_t i = 0; i < state.size(); ++i) {
    if (state[i] > pooled[i] || std::isnan(state[i])) pooled[i] = state[i];
  }
}

// 1 + 2 + ... + n, rounded once.
float sum_to(int32_t n) { return static_cast<float>(int64_t{n} * (n + 1) / 2); }

}  // namespace

PooledRows rows_to_pool(const PoolingInfo& info, const PoolingParams& params) {
  if (params.every_token) return PooledRows::kAll;
  switch (info.type) {
    case PoolingType::kCls: return PooledRows::kFirst;
    case PoolingType::kLast: return PooledRows::kLast;
    case PoolingType::kMean:
    case PoolingType::kMax:
    case PoolingType::kMeanSqrt:
    case PoolingType::kWeightedMean:
    case PoolingType::kEvery: break;
  }
  return PooledRows::kAll;
}

void cut_padding(TokenId padding, std::vector<TokenId>& prompt) {
  if (padding == kInvalidToken) return;
  while (prompt.size() > 1 && prompt.back() == padding) prompt.pop_back();
}

void pool_row(const PoolingInfo& info,
              const PoolingParams& params,
              int32_t position,
              std::span<const float> state,
              std::vector<float>& pooled) {
  if (params.every_token || info.type == PoolingType::kEvery) {
    pooled.insert(pooled.end(), state.begin(), state.end());
    return;
  }
  const bool is_one = info.type == PoolingType::kCls || info.type == PoolingType::kLast;
  if (is_one || pooled.empty()) {  // a first row's weight is 1
    pooled.assign(state.begin(), state.end());
    return;
  }
  if (info.type == PoolingType::kMax) return take_larger(state, pooled);
  const float weight =
      info.type == PoolingType::kWeightedMean ? static_cast<float>(position + 1) : 1.0F;
  for (size_t i = 0; i < state.size(); ++i) pooled[i] += weight * state[i];
}

void end_rows(const PoolingInfo& info,
              const PoolingParams& params,
              int32_t num_tokens,
              std::vector<float>& pooled) {
  if (params.every_token) return;
  const auto count = static_cast<float>(num_tokens);
  float divisor = 1;
  if (info.type == PoolingType::kMean) divisor = count;
  if (info.type == PoolingType::kMeanSqrt) divisor = std::sqrt(count);
  if (info.type == PoolingType::kWeightedMean) divisor = sum_to(num_tokens);
  if (divisor == 1) return;
  for (float& x : pooled) x /= divisor;
}

// --- Layers ----------------------------------------------------------------------------------

PooledOperators::Lines PooledOperators::pack(const PooledLayer& layer,
                                             const std::vector<float>& matrix) {
  if (matrix.empty()) return {};
  const int64_t bytes = packed_bytes(WeightFormat::kF32, layer.out, layer.in);
  Lines lines(static_cast<size_t>(ceil_div(bytes, sizeof(Line))));
  pack_weight(WeightFormat::kF32,
              reinterpret_cast<const std::byte*>(matrix.data()),
              layer.out,
              layer.in,
              0,
              ceil_div(layer.out, kRowTile),
              reinterpret_cast<std::byte*>(lines.data()));
  return lines;
}

Expected<PooledOperators> PooledOperators::create(std::vector<PooledLayer> layers,
                                                  const std::string& isa) {
  PooledOperators operators;
  if (layers.empty()) return operators;
  SLUICE_TRY(operators.device_, kernels::Device::create({.isa = isa, .threads = 1}));
  for (PooledLayer& from : layers) {
    Layer& layer = operators.layers_.emplace_back();
    layer.weight = pack(from, from.weight);
    layer.residual = pack(from, from.residual);
    layer.rest = std::move(from);
    std::vector<float>().swap(layer.rest.weight);
    std::vector<float>().swap(layer.rest.residual);
  }
  return operators;
}

void PooledOperators::apply(std::span<std::vector<float>* const> texts) const {
  if (layers_.empty() || texts.empty()) return;
  std::vector<float> vectors;
  for (const std::vector<float>* text : texts) {
    vectors.insert(vectors.end(), text->begin(), text->end());
  }
  const auto width = static_cast<size_t>(layers_.front().rest.in);
  const size_t num_rows = vectors.size() / width;
  if (num_rows == 0) return;
  for (const Layer& layer : layers_) run(layer, static_cast<int64_t>(num_rows), vectors);
  const auto* next = vectors.data();
  for (std::vector<float>* text : texts) {
    const size_t count = text->size() / width * static_cast<size_t>(layers_.back().rest.out);
    text->assign(next, next + count);
    next += count;
  }
}

void PooledOperators::run(const Layer& layer, int64_t num_rows, std::vector<float>& vectors) const {
  const PooledLayer& rest = layer.rest;
  const int64_t stride = align_up(rest.in, kQuantGroup);
  Lines input(static_cast<size_t>(ceil_div(num_rows * stride, 16)));
  float* const rows = input.data()->values;
  for (int64_t row = 0; row < num_rows; ++row) {
    std::copy_n(vectors.data() + row * rest.in, rest.in, rows + row * stride);
  }
  std::vector<float> result(static_cast<size_t>(num_rows * rest.out));
  const auto multiply = [&](const Lines& matrix,
                            const std::vector<float>& bias,
                            kernels::Epilogue epilogue) {
    const PackedWeight weight = {.format = WeightFormat::kF32,
                                 .n = rest.out,
                                 .k = rest.in,
                                 .data = reinterpret_cast<const std::byte*>(matrix.data())};
    const kernels::RowGroup group = {.weight = &weight,
                                     .out = result.data(),
                                     .out_stride = rest.out,
                                     .bias = bias.empty() ? nullptr : bias.data()};
    kernels::linear(device_->context(),
                    {.x = {.format = kernels::ActivationFormat::kFloat,
                           .num_rows = static_cast<int32_t>(num_rows),
                           .k = rest.in,
                           .data = rows},
                     .groups = {&group, 1},
                     .epilogue = epilogue});
  };
  multiply(layer.weight, rest.bias, kernels::Epilogue::kStore);
  for (float& x : result) x = value_of(rest.function, x);
  for (int64_t row = 0; row < num_rows && !rest.norm_weight.empty(); ++row) {
    norm(rest, std::span(result).subspan(static_cast<size_t>(row * rest.out),
                                         static_cast<size_t>(rest.out)));
  }
  if (!layer.residual.empty()) multiply(layer.residual, {}, kernels::Epilogue::kAdd);
  const bool adds_itself = rest.adds_input && layer.residual.empty();
  for (size_t i = 0; i < result.size() && adds_itself; ++i) result[i] += vectors[i];
  vectors = std::move(result);
}

// --- Answers ---------------------------------------------------------------------------------

bool finish_pooling(const PoolingInfo& info,
                    const PoolingParams& params,
                    std::vector<float>& pooled) {
  if (pooled.empty()) return false;
  if (!std::ranges::all_of(pooled, [](float x) { return std::isfinite(x); })) return false;
  if (info.is_classifier) {
    if (info.label_tokens.size() == 2) pooled = {pooled.back() - pooled.front()};
    if (!params.activates) return true;
    ScoreFunction function = info.function;
    if (params.forces_scale && function == ScoreFunction::kIdentity) {
      function = info.width == 1 ? ScoreFunction::kSigmoid : ScoreFunction::kSoftmax;
    }
    if (function == ScoreFunction::kSoftmax) softmax(pooled);
    if (function == ScoreFunction::kSigmoid) {
      for (float& x : pooled) x = sigmoid(x);
    }
    return true;
  }
  auto width = static_cast<size_t>(info.width);
  if (params.dimensions > 0) {
    cut(width, static_cast<size_t>(params.dimensions), pooled);
    width = static_cast<size_t>(params.dimensions);
  }
  const bool normalizes = params.activates && (info.normalizes || params.forces_scale);
  if (!normalizes) return true;
  for (size_t begin = 0; begin < pooled.size(); begin += width) {
    normalize(std::span(pooled).subspan(begin, width));
  }
  return true;
}

}  // namespace sluice
