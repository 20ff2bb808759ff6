// SPDX-License-Identifier: Apache-2.0
#include "engine/quantize/hf_output.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "engine/core/version.h"
#include "engine/quantize/output_file.h"
#include "engine/quantize/tokenizer_output.h"
#include "engine/tokenizer/files/json_parts.h"
#include "engine/weights/generation_defaults.h"
#include "engine/weights/json_file.h"
#include "engine/weights/mapped_file.h"

namespace sluice {
namespace {

using Json = nlohmann::ordered_json;

constexpr uintmax_t kMaxCopiedBytes = 256U << 20;

std::string module_of(const PlannedTensor& planned) {
  constexpr std::string_view kWeight = ".weight";
  const std::string& name = planned.source.stored_name;
  return name.ends_with(kWeight) ? name.substr(0, name.size() - kWeight.size()) : name;
}

// Returns the linear layers that stay floats, including the output layer.
std::vector<std::string> kept_modules(const QuantizePlan& plan) {
  std::vector<std::string> modules;
  for (const PlannedTensor& planned : plan.tensors) {
    const SourceTensor& tensor = planned.source;
    const bool is_matrix = tensor.num_dims >= 2 && tensor.stored_name.ends_with(".weight") &&
                           tensor.name != "token_embd.weight";
    if (is_matrix && planned.target.kind != TargetKind::kCodes)
      modules.push_back(module_of(planned));
  }
  // A tied head has no tensor, but is a module for readers of the names.
  if (std::find(modules.begin(), modules.end(), "lm_head") == modules.end()) {
    const auto has_head = [](const PlannedTensor& planned) {
      return planned.source.stored_name == "lm_head.weight";
    };
    if (std::none_of(plan.tensors.begin(), plan.tensors.end(), has_head)) {
      modules.insert(modules.begin(), "lm_head");
    }
  }
  return modules;
}

const char* format_name(const SchemeInfo& info) {
  switch (info.code) {
    case CodeKind::kInt8:
      return "int-quantized";
    case CodeKind::kInt4:
      return "pack-quantized";
    case CodeKind::kE2M1:
      return info.has_multiplier ? "nvfp4-pack-quantized" : "mxfp4-pack-quantized";
    case CodeKind::kE4M3:
      return "float-quantized";
    default:
      SLUICE_UNREACHABLE("codes that no scheme has");
  }
}

Json weights_of(const Encoding& encoding) {
  const SchemeInfo& info = scheme_info(encoding.scheme);
  const bool is_int = info.code == CodeKind::kInt8 || info.code == CodeKind::kInt4;
  const char* strategy = "channel";
  if (info.place == ScalePlace::kMatrix) strategy = "tensor";
  if (info.place == ScalePlace::kGroup) strategy = info.has_multiplier ? "tensor_group" : "group";
  Json scale_type = nullptr;
  if (info.scales == ScaleType::kE4M3) scale_type = "torch.float8_e4m3fn";
  if (info.scales == ScaleType::kE8M0) scale_type = "torch.uint8";
  return {{"actorder", nullptr},
          {"block_structure", nullptr},
          {"dynamic", false},
          {"group_size", encoding.group == 0 ? Json(nullptr) : Json(encoding.group)},
          {"num_bits", code_bits(info.code)},
          {"observer", encoding.search ? "mse" : "minmax"},
          {"observer_kwargs", Json::object()},
          {"scale_dtype", scale_type},
          {"strategy", strategy},
          {"symmetric", !info.has_zeros},
          {"type", is_int ? "int" : "float"},
          {"zp_dtype", info.has_zeros ? Json("torch.int8") : scale_type}};
}

// Rows of 8-bit schemes get 8-bit inputs with a scale per row; others stay 16 bits.
Json inputs_of(const Encoding& encoding) {
  const SchemeInfo& info = scheme_info(encoding.scheme);
  const bool is_int = info.code == CodeKind::kInt8;
  const bool is_float = info.code == CodeKind::kE4M3 && info.place != ScalePlace::kBlock;
  if (!is_int && !is_float) return nullptr;
  return {{"actorder", nullptr},
          {"block_structure", nullptr},
          {"dynamic", true},
          {"group_size", nullptr},
          {"num_bits", 8},
          {"observer", nullptr},
          {"observer_kwargs", Json::object()},
          {"scale_dtype", nullptr},
          {"strategy", "token"},
          {"symmetric", true},
          {"type", is_int ? "int" : "float"},
          {"zp_dtype", nullptr}};
}

// Makes one group per scheme and group size. A single group targets every linear layer that is not
// ignored; several groups name their modules.
Json compressed_tensors_config(const QuantizePlan& plan) {
  std::map<std::pair<CodeScheme, int32_t>, std::vector<const PlannedTensor*>> by_encoding;
  for (const PlannedTensor& planned : plan.tensors) {
    if (planned.target.kind != TargetKind::kCodes) continue;
    const Encoding& encoding = planned.target.encoding;
    by_encoding[{encoding.scheme, encoding.group}].push_back(&planned);
  }
  Json groups = Json::object();
  std::string format;
  for (const auto& [key, tensors] : by_encoding) {
    const Encoding& encoding = tensors.front()->target.encoding;
    Json targets = Json::array();
    if (by_encoding.size() == 1) {
      targets.push_back("Linear");
    } else {
      for (const PlannedTensor* planned : tensors) targets.push_back(module_of(*planned));
    }
    const std::string name = format_name(scheme_info(encoding.scheme));
    format = format.empty() || format == name ? name : "mixed-precision";
    groups["group_" + std::to_string(groups.size())] = {{"format", name},
                                                        {"input_activations", inputs_of(encoding)},
                                                        {"output_activations", nullptr},
                                                        {"targets", targets},
                                                        {"weights", weights_of(encoding)}};
  }
  return {{"config_groups", groups},
          {"format", format},
          {"global_compression_ratio", nullptr},
          {"ignore", kept_modules(plan)},
          {"kv_cache_scheme", nullptr},
          {"quant_method", "compressed-tensors"},
          {"quantization_status", "compressed"}};
}

Json fp8_config(const QuantizePlan& plan) {
  return {{"activation_scheme", "dynamic"},
          {"fmt", "e4m3"},
          {"modules_to_not_convert", kept_modules(plan)},
          {"quant_method", "fp8"},
          {"weight_block_size", {128, 128}}};
}

Json mxfp4_config(const QuantizePlan& plan) {
  return {{"modules_to_not_convert", kept_modules(plan)}, {"quant_method", "mxfp4"}};
}

// Readers recognise this layout by the producer's name.
Json modelopt_config(const QuantizePlan& plan) {
  return {{"producer", {{"name", "modelopt"}, {"version", "sluice-" + std::string(version())}}},
          {"quantization",
           {{"quant_algo", "W4A16_NVFP4"},
            {"kv_cache_quant_algo", nullptr},
            {"group_size", 16},
            {"exclude_modules", kept_modules(plan)}}}};
}

Expected<void> write_text(const std::string& path, const std::string& text) {
  SLUICE_TRY(OutputFile file, OutputFile::create(path, static_cast<int64_t>(text.size())));
  SLUICE_TRY_VOID(file.write(0, std::as_bytes(std::span(text))));
  return file.close();
}

Expected<void> write_json(const std::string& path, const Json& json) {
  return write_text(path, json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
}

// Whether a file is copied: texts and vocabularies, but no weights and no rewritten files.
bool is_taken_over(const std::filesystem::directory_entry& entry) {
  const std::string name = entry.path().filename().string();
  const std::string extension = entry.path().extension().string();
  std::error_code error;
  if (!entry.is_regular_file(error) || entry.file_size(error) > kMaxCopiedBytes) return false;
  if (name == "config.json" || name == "hf_quant_config.json" || name == "quant_config.json" ||
      name == "quantize_config.json" || name == "recipe.yaml" || name.ends_with(".index.json")) {
    return false;
  }
  return extension == ".json" || extension == ".jinja" || extension == ".txt" ||
         extension == ".model" || extension == ".tiktoken" || name.starts_with("LICENSE");
}

// Whether a file of a module of sentence-transformers is copied, which has weights of its own.
bool is_of_module(const std::filesystem::directory_entry& entry) {
  std::error_code error;
  return entry.is_regular_file(error);
}

using IsCopied = bool (*)(const std::filesystem::directory_entry&);

Expected<void> copy_folder(const std::string& input,
                           const std::string& output,
                           IsCopied is_copied) {
  std::error_code error;
  std::filesystem::directory_iterator files(input, error);
  for (; !error && files != std::filesystem::directory_iterator(); files.increment(error)) {
    if (!is_copied(*files)) continue;
    const std::filesystem::path& path = files->path();
    std::filesystem::copy_file(path, output / path.filename(), error);
    if (error) {
      return make_error(ErrorCode::kInvalidArgument, path.string() + ": copy: " + error.message());
    }
  }
  if (!error) return {};
  return make_error(ErrorCode::kInvalidArgument, input + ": list: " + error.message());
}

// Copies the folder of that name in `input`, if there is one.
Expected<void> copy_inner_folder(const std::string& input,
                                 const std::string& output,
                                 const std::string& name,
                                 IsCopied is_copied) {
  std::error_code error;
  const std::string inner = input + "/" + name;
  const std::string made = output + "/" + name;
  if (!std::filesystem::is_directory(inner, error)) return {};
  if (std::filesystem::create_directory(made, error); error) {
    return make_error(ErrorCode::kInvalidArgument, made + ": create: " + error.message());
  }
  return copy_folder(inner, made, is_copied);
}

// Copies the folders that modules.json names, without which the model does not pool as it says.
Expected<void> copy_modules(const std::string& input, const std::string& output) {
  SLUICE_TRY(const nlohmann::json modules, read_json_file(input + "/modules.json"));
  for (const auto& module : modules) {
    const auto path = module.is_object() ? module.value("path", nlohmann::json()) : module;
    if (!path.is_string()) continue;
    const auto& name = path.get_ref<const std::string&>();
    const bool is_name = !name.empty() && name != "." && name != ".." && name.find('/') == name.npos;
    if (is_name) SLUICE_TRY_VOID(copy_inner_folder(input, output, name, is_of_module));
  }
  return {};
}

Expected<void> copy_files(const std::string& input, const std::string& output) {
  SLUICE_TRY_VOID(copy_folder(input, output, is_taken_over));
  SLUICE_TRY_VOID(copy_inner_folder(input, output, "additional_chat_templates", is_taken_over));
  return copy_modules(input, output);
}

// Returns the objects of a wrapper's text model that are there.
std::vector<Json*> text_configs(Json& config) {
  std::vector<Json*> found;
  for (const char* name : kTextConfigs) {
    if (config.contains(name) && config[name].is_object()) found.push_back(&config[name]);
  }
  return found;
}

Expected<Json> input_config(const std::string& input) {
  const std::string path = input + "/config.json";
  SLUICE_TRY(const MappedFile file, MappedFile::open(path));
  const std::string_view text(reinterpret_cast<const char*>(file.bytes().data()),
                              file.bytes().size());
  Json config = Json::parse(json_without_nan(text, ""), nullptr, false);
  if (!config.is_object()) {
    return make_error(ErrorCode::kDataLoss, path + ": file: found no JSON object, expected one");
  }
  for (const char* key : {"quantization_config", "compression_config"}) {
    config.erase(key);
    for (Json* nested : text_configs(config)) nested->erase(key);
  }
  return config;
}

// The input's output layer is not its embedding, whatever its file says; codes would not show it.
void say_untied(Json& config) {
  constexpr const char* kKey = "tie_word_embeddings";
  config[kKey] = false;
  for (Json* nested : text_configs(config)) (*nested)[kKey] = false;
}

// Returns the configuration of a GGUF file's model, with the type of most of its floats, and its
// token ids, because classes assume others by default.
Json translated_config(const QuantizePlan& plan, const TokenizerFiles& files) {
  Json config = Json::parse(plan.translation->config);
  const auto id = [](TokenId token) {
    return token == kInvalidToken ? Json(nullptr) : Json(token);
  };
  config["bos_token_id"] = id(files.bos);
  config["pad_token_id"] = id(files.padding);
  config["eos_token_id"] = files.ends.empty() ? Json(nullptr) : Json(files.ends);
  const bool are_floats = plan.scheme.kind == TargetKind::kBlocks;
  const WeightFormat format = are_floats ? plan.scheme.format : WeightFormat::kBF16;
  config["torch_dtype"] = format == WeightFormat::kF32   ? "float32"
                          : format == WeightFormat::kF16 ? "float16"
                                                         : "bfloat16";
  return config;
}

}  // namespace

Expected<void> write_hf_files(const Checkpoint& input,
                              const std::string& output,
                              const QuantizePlan& plan) {
  Json config;
  TokenizerFiles files;
  if (plan.translation) {
    SLUICE_TRY(files, tokenizer_files(input));
    config = translated_config(plan, files);
  } else {
    SLUICE_TRY(config, input_config(input.path()));
    SLUICE_TRY(const bool is_tied, input.metadata().get_bool_or("tied_embeddings", false));
    if (is_tied && input.has("output.weight")) say_untied(config);
  }
  if (plan.spelling == Spelling::kCompressedTensors) {
    config["quantization_config"] = compressed_tensors_config(plan);
  } else if (plan.spelling == Spelling::kFp8) {
    config["quantization_config"] = fp8_config(plan);
  } else if (plan.spelling == Spelling::kMxfp4) {
    config["quantization_config"] = mxfp4_config(plan);
  } else if (plan.spelling == Spelling::kModelopt) {
    SLUICE_TRY_VOID(write_json(output + "/hf_quant_config.json", modelopt_config(plan)));
  }
  SLUICE_TRY_VOID(write_json(output + "/config.json", config));
  if (!plan.translation) return copy_files(input.path(), output);
  Json generation = {{"bos_token_id", config["bos_token_id"]},
                     {"eos_token_id", config["eos_token_id"]}};
  const CheckpointTensor* const embedding = input.find("token_embd.weight");
  const auto num_tokens = embedding == nullptr ? 0 : static_cast<int32_t>(embedding->dims[1]);
  const std::vector<TokenId> suppressed = read_suppressed_tokens(input, num_tokens);
  if (!suppressed.empty()) generation["suppress_tokens"] = suppressed;
  SLUICE_TRY_VOID(write_json(output + "/generation_config.json", generation));
  for (const auto& [name, text] : files.texts)
    SLUICE_TRY_VOID(write_text(output + "/" + name, text));
  return {};
}

}  // namespace sluice
