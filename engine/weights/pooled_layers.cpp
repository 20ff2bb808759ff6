// SPDX-License-Identifier: Apache-2.0
#include "engine/weights/pooled_layers.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "engine/weights/checkpoint.h"
#include "engine/weights/file_spec.h"
#include "engine/weights/gguf_parse.h"
#include "engine/weights/json_file.h"
#include "engine/weights/pack.h"
#include "engine/weights/weight_files.h"
#include "quant/format.h"

namespace sluice {
namespace {

constexpr int64_t kMostWidth = 1 << 16;

Expected<int32_t> read_width(const nlohmann::json& json,
                             const char* name,
                             const std::string& file) {
  const auto found = json.find(name);
  const bool is_width = found != json.end() && found->is_number_unsigned() &&
                        found->get<uint64_t>() >= 1 && found->get<uint64_t>() <= kMostWidth;
  if (is_width) return found->get<int32_t>();
  return wrong_in_file(
      file, name, found == json.end() ? "nothing" : "no such number", "1 to 65536");
}

// Reads [rows, n] of a tensor of floats.
Expected<std::vector<float>> read_floats(const std::vector<FileTensor>& tensors,
                                         const char* name,
                                         std::vector<uint64_t> shape,
                                         const std::string& file) {
  const auto found = std::ranges::find(tensors, name, &FileTensor::name);
  if (found == tensors.end()) return wrong_in_file(file, name, "no such tensor", "one");
  const std::optional<WeightFormat> format =
      found->type ? float_format(*found->type) : std::nullopt;
  if (!format || found->shape != shape) {
    return wrong_in_file(file, name, "another type or shape", "floats of the module's widths");
  }
  const auto n = static_cast<int64_t>(shape.back());
  const int64_t rows = shape.size() == 2 ? static_cast<int64_t>(shape.front()) : 1;
  std::vector<float> values;
  values.reserve(static_cast<size_t>(rows * n));
  for (int64_t row = 0; row < rows; ++row) {
    SLUICE_TRY(const DecodedRow decoded,
               decode_checked(file + ": " + name,
                              *format,
                              found->data.data() + row * row_bytes(*format, n),
                              n));
    values.insert(values.end(), decoded.values.begin(), decoded.values.end());
  }
  return values;
}

// Appends the rows of a tensor of floats, each of `n` elements.
Expected<void> append_rows(const Checkpoint& checkpoint,
                           const CheckpointTensor& tensor,
                           int64_t rows,
                           int64_t n,
                           std::vector<float>& values) {
  values.reserve(static_cast<size_t>(rows * n));
  for (int64_t row = 0; row < rows; ++row) {
    SLUICE_TRY(const DecodedRow decoded,
               decode_checked(checkpoint.place_of(tensor.name),
                              tensor.format,
                              tensor.data.data() + row * row_bytes(tensor.format, n),
                              n));
    values.insert(values.end(), decoded.values.begin(), decoded.values.end());
  }
  return {};
}

// Reads the matrix of this name.
Expected<PooledLayer> read_matrix(const Checkpoint& checkpoint, const char* name) {
  if (!checkpoint.has(name)) {
    return make_error(ErrorCode::kDataLoss,
                      checkpoint.place_of(name) + ": found nothing, expected a matrix");
  }
  const CheckpointTensor& tensor = *checkpoint.find(name);
  const auto in = static_cast<int64_t>(tensor.dims[0]);
  const auto out = static_cast<int64_t>(tensor.num_dims == 1 ? 1 : tensor.dims[1]);
  if (tensor.num_dims > 2 || in > kMostWidth || out > kMostWidth || tensor.coded) {
    return make_error(ErrorCode::kDataLoss,
                      checkpoint.place_of(name) + ": found another shape, expected a matrix");
  }
  PooledLayer layer;
  layer.in = static_cast<int32_t>(in);
  layer.out = static_cast<int32_t>(out);
  SLUICE_TRY_VOID(append_rows(checkpoint, tensor, out, in, layer.weight));
  return layer;
}

// Reads a vector of `n` elements; empty: there is none.
Expected<std::vector<float>> read_optional_vector(const Checkpoint& checkpoint,
                                                  const char* name,
                                                  int32_t n) {
  std::vector<float> values;
  const CheckpointTensor* const tensor = checkpoint.find(name);
  if (tensor == nullptr) return values;
  if (tensor->num_dims != 1 || tensor->dims[0] != static_cast<uint64_t>(n) || tensor->coded) {
    return make_error(ErrorCode::kDataLoss,
                      checkpoint.place_of(name) + ": found another shape, expected " +
                          std::to_string(n) + " elements");
  }
  SLUICE_TRY_VOID(append_rows(checkpoint, *tensor, 1, n, values));
  return values;
}

}  // namespace

Expected<PooledLayer> read_dense_module(const std::string& folder) {
  const std::string config_file = folder + "/config.json";
  SLUICE_TRY(const nlohmann::json json, read_json_file(config_file));
  if (!json.is_object()) return wrong_in_file(config_file, "file", "no object", "an object");
  PooledLayer layer;
  SLUICE_TRY(layer.in, read_width(json, "in_features", config_file));
  SLUICE_TRY(layer.out, read_width(json, "out_features", config_file));
  const auto named = json.find("activation_function");
  const std::string function = named == json.end() ? "torch.nn.modules.activation.Tanh"
                               : named->is_string() ? named->get<std::string>()
                                                    : named->dump();
  if (function.ends_with(".Tanh")) {
    layer.function = PooledFunction::kTanh;
  } else if (function.ends_with(".GELU")) {
    layer.function = PooledFunction::kGelu;
  } else if (!function.ends_with(".Identity")) {
    return wrong_in_file(
        config_file, "activation_function", in_quotes(function), "Identity, Tanh or GELU");
  }
  SLUICE_TRY(const WeightFile opened, open_single_weight_file(folder));
  const std::string file = folder + "/" + opened.name;
  const auto in = static_cast<uint64_t>(layer.in);
  const auto out = static_cast<uint64_t>(layer.out);
  SLUICE_TRY(layer.weight, read_floats(opened.tensors, "linear.weight", {out, in}, file));
  const auto bias = json.find("bias");
  if (bias == json.end() || *bias != false) {
    SLUICE_TRY(layer.bias, read_floats(opened.tensors, "linear.bias", {out}, file));
  }
  const auto residual = json.find("use_residual");
  layer.adds_input = residual != json.end() && *residual == true;
  if (layer.adds_input && in != out) {
    SLUICE_TRY(layer.residual, read_floats(opened.tensors, "residual.weight", {out, in}, file));
  }
  return layer;
}

Expected<void> read_norm_module(const std::string& folder, PooledLayer& layer) {
  constexpr double kEpsilon = 1e-5;  // PyTorch's, which the module's files do not name
  SLUICE_TRY(const WeightFile opened, open_single_weight_file(folder));
  const std::string file = folder + "/" + opened.name;
  const auto width = static_cast<uint64_t>(layer.out);
  SLUICE_TRY(layer.norm_weight, read_floats(opened.tensors, "norm.weight", {width}, file));
  SLUICE_TRY(layer.norm_bias, read_floats(opened.tensors, "norm.bias", {width}, file));
  layer.norm_epsilon = kEpsilon;
  return {};
}

Expected<std::vector<PooledLayer>> read_dense_tensors(const Checkpoint& checkpoint) {
  std::vector<PooledLayer> layers;
  for (const auto& [weight, bias] : {std::pair("dense_2.weight", "dense_2.bias"),
                                     std::pair("dense_3.weight", "dense_3.bias")}) {
    if (!checkpoint.has(weight)) continue;
    SLUICE_TRY(PooledLayer layer, read_matrix(checkpoint, weight));
    SLUICE_TRY(layer.bias, read_optional_vector(checkpoint, bias, layer.out));
    layers.push_back(std::move(layer));
  }
  return layers;
}

bool has_scoring_head(const Checkpoint& checkpoint) {
  const FileSpec* const spec = checkpoint.file_spec();
  const std::string_view before = spec == nullptr ? std::string_view() : spec->before_scores;
  return checkpoint.has("cls.output.weight") && (before.empty() || checkpoint.has(before));
}

Expected<std::vector<PooledLayer>> read_scoring_head(const Checkpoint& checkpoint) {
  std::vector<PooledLayer> layers;
  if (!has_scoring_head(checkpoint)) return layers;
  if (checkpoint.has("cls.norm.weight")) {
    SLUICE_TRY(PooledLayer dense, read_matrix(checkpoint, "cls.weight"));
    SLUICE_TRY(dense.bias, read_optional_vector(checkpoint, "cls.bias", dense.out));
    dense.function = PooledFunction::kGelu;
    SLUICE_TRY(dense.norm_weight, read_optional_vector(checkpoint, "cls.norm.weight", dense.out));
    SLUICE_TRY(dense.norm_bias, read_optional_vector(checkpoint, "cls.norm.bias", dense.out));
    SLUICE_TRY(dense.norm_epsilon, checkpoint.metadata().get_float("attention.layer_norm_epsilon"));
    layers.push_back(std::move(dense));
  } else if (checkpoint.has("cls.relu.weight")) {
    SLUICE_TRY(PooledLayer dense, read_matrix(checkpoint, "cls.relu.weight"));
    SLUICE_TRY(dense.bias, read_optional_vector(checkpoint, "cls.relu.bias", dense.out));
    dense.function = PooledFunction::kRelu;
    layers.push_back(std::move(dense));
  }
  SLUICE_TRY(PooledLayer labels, read_matrix(checkpoint, "cls.output.weight"));
  SLUICE_TRY(labels.bias, read_optional_vector(checkpoint, "cls.output.bias", labels.out));
  layers.push_back(std::move(labels));
  return layers;
}

Expected<std::vector<PooledLayer>> read_token_layer(const Checkpoint& checkpoint) {
  std::vector<PooledLayer> layers;
  if (checkpoint.has("cls.tokens.weight")) {
    SLUICE_TRY(PooledLayer layer, read_matrix(checkpoint, "cls.tokens.weight"));
    layers.push_back(std::move(layer));
  }
  return layers;
}

Expected<void> check_pooled_layers(const std::string& file,
                                   int32_t width,
                                   const std::vector<PooledLayer>& layers) {
  for (const PooledLayer& layer : layers) {
    if (layer.in != width) {
      return make_error(ErrorCode::kDataLoss,
                        file + ": found a layer behind the pooling that takes " +
                            std::to_string(layer.in) + " elements, expected " +
                            std::to_string(width));
    }
    width = layer.out;
  }
  return {};
}

}  // namespace sluice
