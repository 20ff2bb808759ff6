// SPDX-License-Identifier: Apache-2.0
// Reads compressed-tensors' quantization_config: groups of layers, each with arguments for its
// weights and inputs.
#include <array>
#include <nlohmann/json.hpp>

#include "engine/weights/known_json_fields.h"
#include "engine/weights/neutral_fields.h"
#include "engine/weights/quant_methods.h"

namespace sluice {
namespace {

using Json = nlohmann::json;

constexpr int64_t kLargestGroup = 1 << 20;
constexpr int32_t kBlock = 128;

// "int-quantized" and "float-quantized" are the "naive-quantized" format of their types.
constexpr std::string_view kFormats[] = {"int-quantized",
                                         "float-quantized",
                                         "naive-quantized",
                                         "pack-quantized",
                                         "nvfp4-pack-quantized",
                                         "mxfp4-pack-quantized",
                                         "mixed-precision",
                                         "dense"};
constexpr size_t kGroupFormats = 6;  // the first ones, which groups may have

// Arguments for weights or for inputs.
struct Arguments {
  int64_t bits = 0;
  bool is_float = false;
  std::string strategy;
  int64_t group = 0;
  bool is_symmetric = true;
  std::string dynamic;           // "true", "false" or "local"
  bool has_group_index = false;  // weight_g_idx says each column's group
};

// Returns whether columns of one group may be apart; "weight" only orders the work, and the stored
// columns keep their usual order.
Expected<bool> read_order(JsonFields& fields) {
  constexpr std::string_view kOrders[] = {"group", "dynamic", "weight", "static"};
  const Json* order = fields.find("actorder");
  if (order == nullptr) return false;
  if (order->is_boolean()) return order->get<bool>();
  SLUICE_TRY(const std::string name, fields.choice("actorder", kOrders, true));
  return name == "group" || name == "dynamic";
}

Expected<Arguments> read_arguments(JsonFields& fields) {
  constexpr std::string_view kTypes[] = {"int", "float"};
  constexpr std::string_view kStrategies[] = {
      "tensor", "channel", "group", "block", "token", "tensor_group", "attn_head"};
  Arguments arguments;
  SLUICE_TRY(arguments.bits, fields.whole("num_bits", 1, 64));
  SLUICE_TRY(const std::string type, fields.choice("type", kTypes));
  arguments.is_float = type == "float";
  SLUICE_TRY(arguments.strategy, fields.choice("strategy", kStrategies));
  SLUICE_TRY(arguments.group, fields.whole("group_size", -1, kLargestGroup, 0));
  SLUICE_TRY(arguments.is_symmetric, fields.flag("symmetric", true));
  const Json* dynamic = fields.find("dynamic");
  arguments.dynamic = dynamic != nullptr && *dynamic == true      ? "true"
                      : dynamic != nullptr && *dynamic == "local" ? "local"
                                                                  : "false";
  if (dynamic != nullptr && arguments.dynamic == "false" && *dynamic != false) {
    return fields.wrong("dynamic", "true, false or \"local\"");
  }
  const Json* block = fields.find("block_structure");
  if (arguments.strategy == "block" ? block == nullptr || *block != Json({kBlock, kBlock})
                                    : block != nullptr) {
    return fields.wrong("block_structure",
                        arguments.strategy == "block" ? "[128,128]" : "null without blocks");
  }
  SLUICE_TRY(arguments.has_group_index, read_order(fields));
  // How codes and scales were made, and what tensors' types say anyway.
  for (const char* key : {"observer", "observer_kwargs", "zp_dtype"}) fields.any(key);
  SLUICE_TRY_VOID(take_neutral_fields(fields));
  SLUICE_TRY_VOID(fields.no_more());
  const bool needs_group = arguments.strategy == "group" || arguments.strategy == "tensor_group";
  if (needs_group ? arguments.group < 1 : arguments.group > 0) {
    return fields.wrong("group_size", needs_group ? "more than 0" : "null without groups");
  }
  return arguments;
}

// Returns the scheme that a format uses for weights with these arguments.
Expected<LayerScheme> scheme_of_weights(const JsonFields& fields,
                                        const Arguments& weights,
                                        const std::string& format) {
  const auto require = [&](bool is_right, const char* field, const char* expected) {
    return is_right ? Expected<void>() : fields.wrong(field, expected);
  };
  SLUICE_TRY_VOID(require(weights.dynamic == "false", "dynamic", "false"));
  const std::string& strategy = weights.strategy;
  if (format == "nvfp4-pack-quantized" || format == "mxfp4-pack-quantized") {
    const bool nv = format.starts_with("nv");
    SLUICE_TRY_VOID(require(weights.bits == 4, "num_bits", "4"));
    SLUICE_TRY_VOID(require(weights.is_float, "type", "\"float\""));
    SLUICE_TRY_VOID(require(strategy == (nv ? "tensor_group" : "group"),
                            "strategy",
                            nv ? "\"tensor_group\"" : "\"group\""));
    SLUICE_TRY_VOID(require(weights.group == (nv ? 16 : 32), "group_size", nv ? "16" : "32"));
    SLUICE_TRY_VOID(require(weights.is_symmetric, "symmetric", "true"));
    return layer_scheme(nv ? SchemeKind::kNvfp4 : SchemeKind::kMxfp4);
  }
  const bool naive = format == "naive-quantized";
  const bool floats = format == "float-quantized" || (naive && weights.is_float);
  const bool packed = format == "pack-quantized";
  SLUICE_TRY_VOID(require(weights.is_float == floats, "type", floats ? "\"float\"" : "\"int\""));
  // 4-bit integers may be stored in bytes.
  SLUICE_TRY_VOID(require(
      weights.bits == 8 || (!floats && weights.bits == 4), "num_bits", floats ? "8" : "4 or 8"));
  SLUICE_TRY_VOID(require(weights.is_symmetric || !floats, "symmetric", "true"));
  LayerScheme scheme = layer_scheme(floats   ? SchemeKind::kFp8
                                    : packed ? SchemeKind::kPackedInts
                                             : SchemeKind::kInt8);
  WeightScheme& codes = scheme.weights;
  codes.code = floats                        ? CodeKind::kE4M3
               : packed && weights.bits == 4 ? CodeKind::kInt4
                                             : CodeKind::kInt8;
  if (!weights.is_symmetric) codes.zeros = packed ? ZeroPoints::kWords : ZeroPoints::kBytes;
  if (strategy == "tensor") {
    codes.place = ScalePlace::kMatrix;
  } else if (strategy == "channel") {
    codes.place = ScalePlace::kRow;
  } else if (strategy == "group") {
    codes.place = ScalePlace::kGroup;
    codes.group = static_cast<int32_t>(weights.group);
    codes.has_group_index = weights.has_group_index;
    SLUICE_TRY_VOID(require(packed || !codes.has_group_index, "actorder", "null or \"weight\""));
    SLUICE_TRY_VOID(require(!floats || codes.group % kBlock == 0, "group_size", "128"));
  } else {
    SLUICE_TRY_VOID(require(strategy == "block" && floats,
                            "strategy",
                            floats ? "\"tensor\", \"channel\", \"group\" or \"block\""
                                   : "\"tensor\", \"channel\" or \"group\""));
    codes.place = ScalePlace::kBlock;
  }
  return scheme;
}

// Adds to the scheme what its inputs' arguments say.
Expected<void> take_inputs(const JsonFields& fields,
                           const Arguments& inputs,
                           WeightScheme& scheme) {
  const auto require = [&](bool is_right, const char* field, const char* expected) {
    return is_right ? Expected<void>() : fields.wrong(field, expected);
  };
  const bool fp4 = scheme.code == CodeKind::kE2M1;
  const bool fp8 = scheme.code == CodeKind::kE4M3;
  SLUICE_TRY_VOID(require(inputs.is_symmetric, "symmetric", "true"));
  if (inputs.is_float && !fp4 && !fp8) {
    // FP8 beside integers: the inputs stay floats, which are finer. Static scales would be tensors.
    SLUICE_TRY_VOID(require(inputs.bits == 8, "num_bits", "8"));
    return require(inputs.dynamic == "true", "dynamic", "true");
  }
  SLUICE_TRY_VOID(
      require(inputs.is_float == (fp4 || fp8), "type", fp4 || fp8 ? "\"float\"" : "\"int\""));
  SLUICE_TRY_VOID(require(inputs.bits == (fp4 ? 4 : 8), "num_bits", fp4 ? "4" : "8"));
  if (fp4) {
    SLUICE_TRY_VOID(require(inputs.strategy == "tensor_group" || inputs.strategy == "group",
                            "strategy",
                            "\"tensor_group\" or \"group\""));
    SLUICE_TRY_VOID(require(inputs.dynamic != "false", "dynamic", "true or \"local\""));
    scheme.inputs = SchemeInputs::kFp4;
    return {};
  }
  const bool in_blocks =
      fp8 && (scheme.place == ScalePlace::kBlock || scheme.place == ScalePlace::kGroup);
  if (in_blocks) {
    SLUICE_TRY_VOID(require(inputs.strategy == "group", "strategy", "\"group\""));
    SLUICE_TRY_VOID(require(inputs.group == kBlock, "group_size", "128"));
    SLUICE_TRY_VOID(require(inputs.dynamic == "true", "dynamic", "true"));
    scheme.inputs = SchemeInputs::kE4M3Group;
    return {};
  }
  scheme.inputs = fp8 ? SchemeInputs::kE4M3Token : SchemeInputs::kInt8Token;
  if (inputs.strategy == "tensor" && inputs.dynamic == "false") {
    scheme.static_inputs = true;
    return {};
  }
  SLUICE_TRY_VOID(require(
      inputs.strategy == "token", "strategy", "\"token\", or \"tensor\" where it is not dynamic"));
  return require(inputs.dynamic == "true", "dynamic", "true");
}

// Checks a group without weights, such as that of attention: its inputs stay floats, which are
// finer.
Expected<void> check_inputs_alone(JsonFields& fields) {
  if (const Json* inputs = fields.find("input_activations"); inputs != nullptr) {
    SLUICE_TRY(JsonFields input_fields,
               JsonFields::create(*inputs, fields.place() + ".input_activations"));
    SLUICE_TRY(const Arguments arguments, read_arguments(input_fields));
    if (arguments.bits != 4 && arguments.bits != 8) return input_fields.wrong("num_bits", "4 or 8");
    if (!arguments.is_symmetric) return input_fields.wrong("symmetric", "true");
  }
  if (fields.find("output_activations") != nullptr) {
    return fields.wrong("output_activations", "null");
  }
  return fields.no_more();
}

Expected<void> read_group(const Json& group,
                          const std::string& place,
                          const std::string& usual_format,
                          Quantization& quantization) {
  SLUICE_TRY(JsonFields fields, JsonFields::create(group, place));
  SLUICE_TRY(const std::vector<std::string> targets, fields.names("targets"));
  std::string format = usual_format;
  if (fields.find("format") != nullptr) {
    SLUICE_TRY(format, fields.choice("format", std::span(kFormats).first(kGroupFormats)));
  }
  const Json* weights = fields.find("weights");
  if (weights == nullptr) return check_inputs_alone(fields);
  if (format == "mixed-precision" || format == "dense") {
    return fields.wrong("format", "one of a group's formats");
  }
  SLUICE_TRY(JsonFields weight_fields, JsonFields::create(*weights, place + ".weights"));
  SLUICE_TRY(const Arguments of_weights, read_arguments(weight_fields));
  SLUICE_TRY(LayerScheme scheme, scheme_of_weights(weight_fields, of_weights, format));
  scheme.weights.inputs = SchemeInputs::kFloats;
  if (const Json* inputs = fields.find("input_activations"); inputs != nullptr) {
    SLUICE_TRY(JsonFields input_fields, JsonFields::create(*inputs, place + ".input_activations"));
    SLUICE_TRY(const Arguments of_inputs, read_arguments(input_fields));
    SLUICE_TRY_VOID(take_inputs(input_fields, of_inputs, scheme.weights));
  }
  if (fields.find("output_activations") != nullptr) {
    return fields.wrong("output_activations", "null");
  }
  SLUICE_TRY_VOID(fields.no_more());
  return quantization.add(scheme, targets, place + ".targets");
}

bool is_no_sparsity(const Json* value) {
  return value != nullptr && value->is_object() && value->contains("format") &&
         (*value)["format"] == "dense";
}

// The cache's format does not bind: the run chooses its cache's, whose scales are finer than
// static ones of a cache or a head.
Expected<void> check_cache_scheme(JsonFields& fields, const std::string& place) {
  const Json* scheme = fields.find("kv_cache_scheme");
  if (scheme == nullptr) return {};
  SLUICE_TRY(JsonFields cache, JsonFields::create(*scheme, place + ".kv_cache_scheme"));
  SLUICE_TRY(const Arguments arguments, read_arguments(cache));
  if (arguments.bits != 4 && arguments.bits != 8) return cache.wrong("num_bits", "4 or 8");
  if (!arguments.is_symmetric) return cache.wrong("symmetric", "true");
  return {};
}

}  // namespace

Expected<void> read_compressed_tensors(const Json& config,
                                       const std::string& place,
                                       Quantization& quantization) {
  constexpr std::string_view kStates[] = {"compressed", "frozen"};
  SLUICE_TRY(JsonFields fields, JsonFields::create(config, place));
  SLUICE_TRY(const std::string format, fields.choice("format", kFormats));
  SLUICE_TRY_VOID(fields.choice("quantization_status", kStates));
  SLUICE_TRY(const std::vector<std::string> ignored, fields.names("ignore"));
  SLUICE_TRY_VOID(check_cache_scheme(fields, place));
  for (const char* key : {"sparsity_config", "moe_sparsity_config"}) {
    if (config.contains(key) && is_no_sparsity(&config[key])) fields.any(key);
  }
  const Json* groups = fields.find("config_groups");
  const bool is_only_cache = fields.find("kv_cache_scheme") != nullptr;
  if (groups == nullptr || !groups->is_object() || (groups->empty() && !is_only_cache)) {
    return fields.wrong("config_groups", "an object of groups");
  }
  SLUICE_TRY_VOID(take_neutral_fields(fields));
  SLUICE_TRY_VOID(fields.no_more());
  for (const auto& [name, group] : groups->items()) {
    SLUICE_TRY_VOID(read_group(
        group, place + ".config_groups." + shown_json(Json(name)), format, quantization));
  }
  return quantization.ignore(ignored, place + ".ignore");
}

}  // namespace sluice
