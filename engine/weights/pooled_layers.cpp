// SPDX-License-Identifier: Apache-2.0
#include "engine/weights/pooled_layers.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "engine/weights/checkpoint.h"
#include "engine/weights/gguf_parse.h"
#include "engine/weights/json_file.h"
#include "engine/weights/mapped_file.h"
#include "engine/weights/pack.h"
#include "engine/weights/safetensors.h"
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
Expected<std::vector<float>> read_floats(const std::vector<SafetensorsTensor>& tensors,
                                         const char* name,
                                         std::vector<uint64_t> shape,
                                         const std::string& file) {
  const auto found = std::ranges::find(tensors, name, &SafetensorsTensor::name);
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
  layer.has_tanh = function.ends_with(".Tanh");
  if (!layer.has_tanh && !function.ends_with(".Identity")) {
    return wrong_in_file(config_file, "activation_function", in_quotes(function), "Identity or Tanh");
  }
  const std::string file = folder + "/model.safetensors";
  SLUICE_TRY(const MappedFile mapped, MappedFile::open(file));
  SLUICE_TRY(const std::vector<SafetensorsTensor> tensors, parse_safetensors(mapped.bytes(), file));
  const auto in = static_cast<uint64_t>(layer.in);
  const auto out = static_cast<uint64_t>(layer.out);
  SLUICE_TRY(layer.weight, read_floats(tensors, "linear.weight", {out, in}, file));
  const auto bias = json.find("bias");
  if (bias == json.end() || *bias != false) {
    SLUICE_TRY(layer.bias, read_floats(tensors, "linear.bias", {out}, file));
  }
  return layer;
}

Expected<std::vector<PooledLayer>> read_dense_tensors(const Checkpoint& checkpoint) {
  std::vector<PooledLayer> layers;
  for (const char* name : {"dense_2.weight", "dense_3.weight"}) {
    const CheckpointTensor* const tensor = checkpoint.find(name);
    if (tensor == nullptr) continue;
    const std::string place = checkpoint.place_of(name);
    const auto in = static_cast<int64_t>(tensor->dims[0]);
    const auto out = static_cast<int64_t>(tensor->dims[1]);
    if (tensor->num_dims != 2 || in > kMostWidth || out > kMostWidth || tensor->coded) {
      return make_error(ErrorCode::kDataLoss, place + ": found another shape, expected a matrix");
    }
    PooledLayer& layer = layers.emplace_back();
    layer.in = static_cast<int32_t>(in);
    layer.out = static_cast<int32_t>(out);
    layer.weight.reserve(static_cast<size_t>(in * out));
    for (int64_t row = 0; row < out; ++row) {
      SLUICE_TRY(const DecodedRow decoded,
                 decode_checked(place,
                                tensor->format,
                                tensor->data.data() + row * row_bytes(tensor->format, in),
                                in));
      layer.weight.insert(layer.weight.end(), decoded.values.begin(), decoded.values.end());
    }
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
