// SPDX-License-Identifier: Apache-2.0
#include "engine/weights/quant_methods.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "engine/weights/known_json_fields.h"

namespace sluice {
namespace {

using Json = nlohmann::json;

constexpr int64_t kLargestGroup = 1 << 20;
const std::vector<std::string> kAllLayers = {"Linear"};

// Adds the matches of transformers for names of layers that stay floats: as prefixes and inner
// parts, on boundaries between a name's parts.
std::vector<std::string> with_parts(const std::vector<std::string>& names) {
  std::vector<std::string> targets;
  for (const std::string& name : names) {
    targets.push_back(name);
    if (name.find_first_of("*?[") != std::string::npos) continue;
    targets.push_back(name + ".*");
    targets.push_back("*." + name);
    targets.push_back("*." + name + ".*");
  }
  return targets;
}

// Reads gpt-oss's method: only its experts have codes, under special names (fused_experts.h).
Expected<void> read_mxfp4(const Json& config, const std::string& place, Quantization&) {
  SLUICE_TRY(JsonFields fields, JsonFields::create(config, place));
  fields.any("quant_method");
  SLUICE_TRY_VOID(fields.names("modules_to_not_convert"));
  SLUICE_TRY_VOID(fields.none("dequantize"));
  return fields.no_more();
}

// Reads FP8 as in DeepSeek-V3 and Qwen 3, or with one scale per matrix.
Expected<void> read_fp8(const Json& config, const std::string& place, Quantization& quantization) {
  constexpr std::string_view kFormats[] = {"e4m3", "float8_e4m3fn"};
  constexpr std::string_view kInputs[] = {"dynamic", "static"};
  constexpr std::string_view kScaleFormats[] = {"ue8m0", "float"};
  SLUICE_TRY(JsonFields fields, JsonFields::create(config, place));
  fields.any("quant_method");
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
    SLUICE_TRY_VOID(quantization.ignore(with_parts(kept), place + "." + key));
  }
  SLUICE_TRY_VOID(fields.none("dequantize"));
  SLUICE_TRY_VOID(fields.none("modules_to_convert"));
  SLUICE_TRY_VOID(fields.no_more());
  return quantization.add(scheme, kAllLayers, place);
}

// Reads group_size of GPTQ and AWQ: -1 is one group for all of k.
Expected<void> take_group_size(JsonFields& fields, const std::string& name, WeightScheme& scheme) {
  SLUICE_TRY(const int64_t size, fields.whole(name, -1, kLargestGroup));
  if (size == 0) return fields.wrong(name, "-1 or more than 0");
  scheme.place = size < 0 ? ScalePlace::kRow : ScalePlace::kGroup;
  scheme.group = size < 0 ? 0 : static_cast<int32_t>(size);
  return {};
}

// Accepts the fields of GPTQ and AWQ that describe how codes were made or how other engines run
// them, and those that the tensors show: lm_head, order of columns.
void take_history(JsonFields& fields) {
  for (const char* key : {"quant_method",
                          "method",
                          "meta",
                          "quantizer",
                          "provider",
                          "autoround_version",
                          "model_name_or_path",
                          "model_file_base_name",
                          // of GPTQ
                          "damp_percent",
                          "damp_auto_increment",
                          "static_groups",
                          "true_sequential",
                          "lm_head",
                          "act_group_aware",
                          "hyb_act",
                          "fail_safe",
                          "mse",
                          "mock_quantization",
                          "cache_block_outputs",
                          "dataset",
                          "tokenizer",
                          "block_name_to_quantize",
                          "module_name_preceding_first_block",
                          "pad_token_id",
                          "model_seqlen",
                          "offload_to_disk",
                          "pack_impl",
                          // of auto-round
                          "enable_quanted_input",
                          "to_quant_block_names",
                          "iters",
                          "nsamples",
                          "seqlen",
                          "batch_size",
                          "lr",
                          "minmax_lr",
                          "enable_minmax_tuning",
                          "enable_norm_bias_tuning",
                          "gradient_accumulate_steps",
                          "low_gpu_mem_usage",
                          "scale_dtype",
                          // of other engines
                          "backend",
                          "is_marlin_format",
                          "use_cuda_fp16",
                          "use_exllama",
                          "exllama_config",
                          "max_input_length",
                          "do_fuse",
                          "fuse_max_seq_len",
                          "modules_to_fuse"}) {
    fields.any(key);
  }
}

// Rejects float codes, which auto-round lists under integer methods.
Expected<void> check_data_type(JsonFields& fields) {
  constexpr std::string_view kTypes[] = {"int"};
  if (fields.find("data_type") == nullptr) return {};
  SLUICE_TRY_VOID(fields.choice("data_type", kTypes));
  return {};
}

Expected<void> read_gptq(const Json& config, const std::string& place, Quantization& quantization) {
  constexpr std::string_view kFormats[] = {"gptq", "gptq_v2"};
  constexpr std::string_view kPackTypes[] = {"int32"};
  SLUICE_TRY(JsonFields fields, JsonFields::create(config, place));
  LayerScheme scheme = layer_scheme(SchemeKind::kGptq);
  SLUICE_TRY(const int64_t bits, fields.whole("bits", 4, 8));
  if (bits != 4 && bits != 8) return fields.wrong("bits", "4 or 8");
  scheme.weights.code = bits == 4 ? CodeKind::kInt4 : CodeKind::kInt8;
  SLUICE_TRY_VOID(take_group_size(fields, "group_size", scheme.weights));
  SLUICE_TRY(scheme.weights.symmetric, fields.flag("sym", true));
  for (const char* key : {"checkpoint_format", "format"}) {
    if (fields.find(key) == nullptr) continue;
    SLUICE_TRY(const std::string format, fields.choice(key, kFormats));
    if (format == "gptq_v2") scheme.weights.zeros = ZeroPoints::kGptqV2;
  }
  if (fields.find("pack_dtype") != nullptr) {
    SLUICE_TRY_VOID(fields.choice("pack_dtype", kPackTypes));
  }
  // The columns' order is in g_idx; a single group has none.
  SLUICE_TRY(const bool is_ordered, fields.flag("desc_act", false));
  scheme.weights.has_group_index = is_ordered && scheme.weights.place == ScalePlace::kGroup;
  SLUICE_TRY_VOID(check_data_type(fields));
  SLUICE_TRY_VOID(fields.none("dynamic"));
  SLUICE_TRY_VOID(fields.none("adapter"));
  SLUICE_TRY_VOID(fields.none("rotation"));
  SLUICE_TRY_VOID(fields.none("modules_in_block_to_quantize"));
  take_history(fields);
  SLUICE_TRY_VOID(fields.no_more());
  return quantization.add(scheme, kAllLayers, place);
}

Expected<void> read_awq(const Json& config, const std::string& place, Quantization& quantization) {
  constexpr std::string_view kVersions[] = {"gemm"};
  SLUICE_TRY(JsonFields fields, JsonFields::create(config, place));
  LayerScheme scheme = layer_scheme(SchemeKind::kAwq);
  // Older names of the fields.
  const bool is_old = fields.find("w_bit") != nullptr;
  SLUICE_TRY_VOID(fields.whole(is_old ? "w_bit" : "bits", 4, 4));
  SLUICE_TRY_VOID(take_group_size(fields, is_old ? "q_group_size" : "group_size", scheme.weights));
  SLUICE_TRY(const bool zeros, fields.flag("zero_point", true));
  if (!zeros) return fields.wrong("zero_point", "true");
  SLUICE_TRY_VOID(fields.choice("version", kVersions, true));
  SLUICE_TRY_VOID(fields.flag("sym", false));
  SLUICE_TRY_VOID(check_data_type(fields));
  SLUICE_TRY(const std::vector<std::string> kept, fields.names("modules_to_not_convert"));
  SLUICE_TRY_VOID(quantization.ignore(with_parts(kept), place + ".modules_to_not_convert"));
  take_history(fields);
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
    {"mxfp4", read_mxfp4},
};

}  // namespace

Expected<Quantization> read_quantization(const Json& config, const std::string& place) {
  const Json* method = nullptr;
  if (config.is_object() && config.contains("quant_method")) method = &config["quant_method"];
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
