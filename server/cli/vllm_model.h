// SPDX-License-Identifier: Apache-2.0
// What a command line of vLLM says of the model, held against the model's own files, and the file
// of flags that --config names.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "engine/core/status.h"

namespace sluice {

// Returns the model's path: of a folder that holds one GGUF file, or the parts of one, that file.
// kInvalidArgument: a folder with several, or with none.
Expected<std::string> vllm_model_file(const std::string& model);

// Tells whether the tokenizer is the model's own: the same name or place, the folder around its
// file, or another folder with the same tokenizer.json.
bool is_tokenizer_of(const std::string& tokenizer, const std::string& model);

// Returns how the model's files say that it is quantized: "gguf", the quant_method of config.json,
// or "" for not at all. nullopt: it is not on this machine.
std::optional<std::string> quantization_of(const std::string& model);
// Tells whether vLLM's name of a scheme means `own`, as awq_marlin means awq.
bool is_quantization(const std::string& name, const std::string& own);

// Returns the words of the command line that a YAML file means to vLLM: `key: value` is
// --key value, lists are several values, maps JSON, true and false --key and --no-key.
// kNotFound, kInvalidArgument: no such file, or not a file of flags.
Expected<std::vector<std::string>> vllm_config_words(const std::string& path);

}  // namespace sluice
