// SPDX-License-Identifier: Apache-2.0
// Reads NVIDIA modelopt's configuration: quantization_config of a config.json, or "quantization" in
// its own file hf_quant_config.json. Its scales are multipliers.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "engine/weights/known_json_fields.h"
#include "engine/weights/neutral_fields.h"
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

// Checks the cache's format, which does not bind: the run chooses its cache's, whose scales are
// finer than the static ones here.
Expected<void> check_cache(JsonFields& fields) {
  constexpr std::string_view kCaches[] = {"fp8", "int8", "nvfp4", "nvfp4_affine", "none"};
  for (const char* key : {"kv_cache_quant_algo", "kv_cache_scheme"}) {
    const Json* format = fields.find(key);
    if (format == nullptr) continue;
    if (key == std::string_view("kv_cache_quant_algo") || format->is_string()) {
      SLUICE_TRY_VOID(fields.choice(key, kCaches, true));
      continue;
    }
    SLUICE_TRY(JsonFields cache, JsonFields::create(*format, fields.place() + "." + key));
    SLUICE_TRY_VOID(cache.whole("num_bits", 4, 8));
    for (const char* field : {"dynamic", "type"}) cache.any(field);
    SLUICE_TRY_VOID(cache.no_more());
  }
  return {};
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
    // Few of the many layers have more fields.
    if (!one.no_more()) {
      SLUICE_TRY_VOID(take_neutral_fields(one));
      SLUICE_TRY_VOID(one.no_more());
    }
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
  // Without an algorithm only the cache is quantized.
  const bool is_null = fields.find("quant_algo") == nullptr && config.contains("quant_algo");
  std::string algorithm;
  if (!is_null) {
    SLUICE_TRY(algorithm, fields.choice("quant_algo", kAlgorithms, true));
  }
  if (is_null || algorithm == "mixed_precision") {
    fields.any("group_size");
    if (!is_null) SLUICE_TRY_VOID(read_layers(fields, quantization));
    SLUICE_TRY_VOID(take_neutral_fields(fields));
    return fields.no_more();
  }
  SLUICE_TRY(const LayerScheme scheme, read_algorithm(fields, kAlgorithms));
  SLUICE_TRY_VOID(take_neutral_fields(fields));
  SLUICE_TRY_VOID(fields.no_more());
  return quantization.add(scheme, {"Linear"}, place);
}

}  // namespace sluice
