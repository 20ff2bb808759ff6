// SPDX-License-Identifier: Apache-2.0
#include "engine/weights/neutral_fields.h"

#include <algorithm>
#include <nlohmann/json.hpp>

namespace sluice {
namespace {

using Json = nlohmann::json;

// How codes were made, how another engine runs them, or what the tensors show anyway.
constexpr const char* kHistory[] = {
    "quant_method",
    "method",
    "meta",
    "quantizer",
    "producer",
    "provider",
    "version",
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
    "failsafe",
    "fallback",
    "hessian",
    "gptaq",
    "foem",
    "mse",
    "mock_quantization",
    "cache_block_outputs",
    "dataset",
    "tokenizer",
    "block_name_to_quantize",
    "module_name_preceding_first_block",
    "modules_in_block_to_quantize",
    "pad_token_id",
    "model_seqlen",
    "offload_to_disk",
    "offload_to_disk_path",
    "pack_impl",
    // of AWQ
    "n_parallel_calib_samples",
    "max_calib_samples",
    "max_calib_seq_len",
    "duo_scaling",
    "apply_clip",
    "scale_search_chunked_activations",
    "export_compatible",
    "calib_data",
    "split",
    "text_column",
    // of auto-round
    "amp",
    "batch_size",
    "enable_quanted_input",
    "enable_quanted_inputs",
    "to_quant_block_names",
    "quant_block_list",
    "supported_types",
    "iters",
    "nsamples",
    "seqlen",
    "lr",
    "minmax_lr",
    "enable_minmax_tuning",
    "enable_norm_bias_tuning",
    "gradient_accumulate_steps",
    "low_gpu_mem_usage",
    "low_cpu_mem_usage",
    "scale_dtype",
    "static_kv_dtype",
    "static_kv_granularity",
    "static_attention_granularity",
    "act_sym",
    "act_group_size",
    "act_data_type",
    "act_dynamic",
    // of compressed-tensors
    "global_compression_ratio",
    "run_compressed",
    // of other engines
    "backend",
    "is_marlin_format",
    "use_cuda_fp16",
    "use_exllama",
    "disable_exllama",
    "exllama_config",
    "max_input_length",
    "do_fuse",
    "fuse_max_seq_len",
    "modules_to_fuse",
};

// Missing, null, false, an empty list or an empty object.
constexpr const char* kOff[] = {
    "desc_act",
    "dynamic",
    "extra_config",
    "regex_config",
    "adapter",
    "rotation",
    "rotation_config",
    "rotation_configs",
    "preprocessors",
    "transform_config",
    "transforms",
    "sparsity_config",
    "moe_sparsity_config",
    "quantized_layers",
    "has_zero_point",
    "pre_quant_scale",
    "dequantize",
    "modules_to_convert",
    "modules_to_not_convert",
    "super_bits",
    "super_group_size",
    "static_attention_dtype",
    "kv_cache_scheme",
    "kv_cache_quant_algo",
    "weight_per_tensor",
    "act_per_tensor",
};

struct NeutralValues {
  const char* name;
  std::vector<Json> values;
  const char* expected;
};

const std::vector<NeutralValues>& neutral_values() {
  static const std::vector<NeutralValues> kRows = {
      {"pack_dtype", {"int32"}, "\"int32\""},
      {"data_type", {"int"}, "\"int\""},
      {"act_bits", {16, 32}, "16 or 32: inputs without codes"},
      {"expert_dtype", {"fp8"}, "\"fp8\""},
  };
  return kRows;
}

}  // namespace

Expected<void> take_neutral_fields(JsonFields& fields) {
  for (const char* name : kHistory) fields.any(name);
  for (const char* name : kOff) {
    if (!fields.is_known(name)) SLUICE_TRY_VOID(fields.none(name));
  }
  for (const NeutralValues& row : neutral_values()) {
    if (fields.is_known(row.name)) continue;
    const Json* value = fields.find(row.name);
    if (value == nullptr || std::ranges::find(row.values, *value) != row.values.end()) continue;
    return fields.wrong(row.name, row.expected);
  }
  return {};
}

}  // namespace sluice
