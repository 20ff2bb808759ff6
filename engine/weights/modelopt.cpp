// SPDX-License-Identifier: Apache-2.0
// Reads NVIDIA modelopt's configuration: quantization_config of a config.json, or "quantization" in
// its own file hf_quant_config.json. Its scales are multipliers.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "engine/weights/known_json_fields.h"
#include "engine/weights/quant_methods.h"

namespace sluice {
namespace {

using Json = nlohmann::json;

constexpr std::string_view kAlgorithms[] = {
    "fp8", "fp8_per_channel_per_token", "nvfp4", "w4a16_nvfp4", "mixed_precision"};
constexpr size_t kNumLayerAlgorithms = 4;  // leading ones: allowed for a layer

LayerScheme scheme_of_algorithm(const std::string& algorithm) {
  LayerScheme scheme =
      layer_scheme(algorithm.starts_with("fp8") ? SchemeKind::kFp8 : SchemeKind::kModeloptNvfp4);
  if (algorithm == "fp8") {
    scheme.weights.place = ScalePlace::kMatrix;
    scheme.weights.static_inputs = true;
  } else if (algorithm == "nvfp4") {
    scheme.weights.inputs = SchemeInputs::kFp4;
  }
  return scheme;
}

Expected<LayerScheme> read_algorithm(JsonFields& fields, std::span<const std::string_view> known) {
  SLUICE_TRY(const std::string algorithm, fields.choice("quant_algo", known, true));
  const bool fp4 = algorithm.ends_with("nvfp4");
  SLUICE_TRY_VOID(fields.whole("group_size", fp4 ? 16 : 0, fp4 ? 16 : 1 << 20, fp4 ? 16 : 0));
  return scheme_of_algorithm(algorithm);
}

// Checks the cache's format; its own scales are finer than a matrix's and replace static ones.
Expected<void> check_cache(JsonFields& fields) {
  constexpr std::string_view kCaches[] = {"fp8", "int8", "none"};
  if (fields.find("kv_cache_quant_algo") != nullptr) {
    SLUICE_TRY_VOID(fields.choice("kv_cache_quant_algo", kCaches, true));
  }
  const Json* scheme = fields.find("kv_cache_scheme");
  if (scheme == nullptr) return {};
  SLUICE_TRY(JsonFields cache, JsonFields::create(*scheme, fields.place() + ".kv_cache_scheme"));
  SLUICE_TRY_VOID(cache.whole("num_bits", 8, 8));
  for (const char* key : {"dynamic", "type"}) cache.any(key);
  return cache.no_more();
}

Expected<void> read_layers(JsonFields& fields, Quantization& quantization) {
  const Json* layers = fields.find("quantized_layers");
  if (layers == nullptr || !layers->is_object() || layers->empty()) {
    return fields.wrong("quantized_layers", "an object of layers");
  }
  for (const auto& [name, layer] : layers->items()) {
    const std::string place = fields.place() + ".quantized_layers." + shown_json(Json(name));
    SLUICE_TRY(JsonFields one, JsonFields::create(layer, place));
    SLUICE_TRY(const LayerScheme scheme,
               read_algorithm(one, std::span(kAlgorithms).first(kNumLayerAlgorithms)));
    SLUICE_TRY_VOID(one.no_more());
    SLUICE_TRY_VOID(quantization.add(scheme, {name}, place));
  }
  return {};
}

}  // namespace

Expected<void> read_modelopt(const Json& config,
                             const std::string& place,
                             Quantization& quantization) {
  SLUICE_TRY(JsonFields whole, JsonFields::create(config, place));
  for (const char* key : {"quant_method", "producer"}) whole.any(key);
  if (const Json* nested = whole.find("quantization"); nested != nullptr) {
    SLUICE_TRY_VOID(whole.no_more());
    return read_modelopt(*nested, place + ".quantization", quantization);
  }
  JsonFields& fields = whole;
  for (const char* key : {"exclude_modules", "ignore"}) {
    SLUICE_TRY(const std::vector<std::string> kept, fields.names(key));
    SLUICE_TRY_VOID(quantization.ignore(kept, place + "." + key));
  }
  SLUICE_TRY_VOID(check_cache(fields));
  // These repeat what the algorithm means.
  fields.any("config_groups");
  SLUICE_TRY(const std::string algorithm, fields.choice("quant_algo", kAlgorithms, true));
  if (algorithm == "mixed_precision") {
    fields.any("group_size");
    SLUICE_TRY_VOID(read_layers(fields, quantization));
    return fields.no_more();
  }
  SLUICE_TRY_VOID(fields.none("quantized_layers"));
  SLUICE_TRY_VOID(fields.none("has_zero_point"));
  SLUICE_TRY_VOID(fields.none("pre_quant_scale"));
  SLUICE_TRY(const LayerScheme scheme, read_algorithm(fields, kAlgorithms));
  SLUICE_TRY_VOID(fields.no_more());
  return quantization.add(scheme, {"Linear"}, place);
}

Expected<Quantization> read_modelopt_file(const Json& config, const std::string& place) {
  Quantization quantization;
  SLUICE_TRY_VOID(read_modelopt(config, place, quantization));
  return quantization;
}

}  // namespace sluice
