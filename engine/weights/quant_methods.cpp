// SPDX-License-Identifier: Apache-2.0
#include "engine/weights/quant_methods.h"

#include <nlohmann/json.hpp>

#include "engine/weights/known_json_fields.h"
#include "engine/weights/neutral_fields.h"

namespace sluice {
namespace {

using Json = nlohmann::json;

const std::vector<std::string> kAllLayers = {"Linear"};

// Reads gpt-oss's method: only its experts have codes, under special names (fused_experts.h).
Expected<void> read_mxfp4(const Json& config, const std::string& place, Quantization&) {
  SLUICE_TRY(JsonFields fields, JsonFields::create(config, place));
  SLUICE_TRY_VOID(fields.names("modules_to_not_convert"));
  SLUICE_TRY_VOID(take_neutral_fields(fields));
  return fields.no_more();
}

// Reads FP8 as in DeepSeek-V3 and Qwen 3, or with one scale per matrix.
Expected<void> read_fp8(const Json& config, const std::string& place, Quantization& quantization) {
  constexpr std::string_view kFormats[] = {"e4m3", "float8_e4m3fn"};
  constexpr std::string_view kInputs[] = {"dynamic", "static"};
  constexpr std::string_view kScaleFormats[] = {"ue8m0", "float"};
  SLUICE_TRY(JsonFields fields, JsonFields::create(config, place));
  // GPTQModel's, whose weight_scale_inv divides.
  if (fields.find("weight_scale_semantics") != nullptr) {
    return fields.wrong("weight_scale_semantics", "none: scales that multiply");
  }
  if (fields.find("fmt") != nullptr) SLUICE_TRY_VOID(fields.choice("fmt", kFormats));
  SLUICE_TRY(const std::string inputs, fields.choice("activation_scheme", kInputs));
  const Json* block = fields.find("weight_block_size");
  if (block != nullptr && *block != Json({128, 128})) {
    return fields.wrong("weight_block_size", "[128,128] or null");
  }
  // Scales of either format may be stored as floats: their tensor's type tells how to read them.
  if (fields.find("scale_fmt") != nullptr) {
    SLUICE_TRY_VOID(fields.choice("scale_fmt", kScaleFormats));
  }
  LayerScheme scheme = layer_scheme(block != nullptr ? SchemeKind::kFp8Block : SchemeKind::kFp8);
  if (block == nullptr) {
    scheme.weights.place = ScalePlace::kMatrix;
    scheme.weights.static_inputs = inputs == "static";
  } else if (inputs != "dynamic") {
    return fields.wrong("activation_scheme", "\"dynamic\" beside weight_block_size");
  }
  for (const char* key : {"modules_to_not_convert", "ignored_layers"}) {
    SLUICE_TRY(const std::vector<std::string> kept, fields.names(key));
    SLUICE_TRY_VOID(quantization.ignore_parts(kept, place + "." + key));
  }
  SLUICE_TRY_VOID(take_neutral_fields(fields));
  SLUICE_TRY_VOID(fields.no_more());
  return quantization.add(scheme, kAllLayers, place);
}

struct QuantMethod {
  std::string_view name;
  Expected<void> (*read)(const Json& config, const std::string& place, Quantization& quantization);
};

constexpr QuantMethod kMethods[] = {
    {"compressed-tensors", read_compressed_tensors},
    {"fp8", read_fp8},
    {"modelopt", read_modelopt},
    {"gptq", read_gptq},
    {"awq", read_awq},
    {"auto-round", read_auto_round},
    {"intel/auto-round", read_auto_round},
    {"mxfp4", read_mxfp4},
};

}  // namespace

Expected<Quantization> read_quantization(const Json& config,
                                         const std::string& place,
                                         std::string_view usual_method) {
  const Json* method = nullptr;
  // modelopt's own files name the method by what wrote them.
  const bool is_modelopt = config.is_object() && config.contains("producer") &&
                           config["producer"].is_object() &&
                           config["producer"].value("name", Json()) == "modelopt";
  const Json usual = is_modelopt ? "modelopt" : usual_method;
  if (config.is_object() && config.contains("quant_method")) method = &config["quant_method"];
  if (method == nullptr && config.is_object() && usual != "") method = &usual;
  for (const QuantMethod& known : kMethods) {
    if (method == nullptr || *method != known.name) continue;
    Quantization quantization;
    SLUICE_TRY_VOID(known.read(config, place, quantization));
    return quantization;
  }
  std::string names;
  for (const QuantMethod& known : kMethods) names += std::string(known.name) + ", ";
  return make_error(ErrorCode::kUnsupported,
                    place + ".quant_method: found " +
                        (method == nullptr ? "nothing" : shown_json(*method)) + ", expected " +
                        names + "or no quantization");
}

}  // namespace sluice
