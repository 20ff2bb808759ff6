// SPDX-License-Identifier: Apache-2.0
#include "engine/quantize/tokenizer_output.h"

#include <algorithm>
#include <filesystem>
#include <iterator>

#include "engine/core/log.h"
#include "engine/quantize/hf_vocabulary.h"
#include "engine/tokenizer/files/hf_tokenizer.h"
#include "engine/tokenizer/files/tiktoken.h"
#include "engine/tokenizer/files/tokenizer_json.h"
#include "engine/weights/generation_defaults.h"
#include "engine/weights/gguf_split.h"
#include "engine/weights/mapped_file.h"

namespace sluice {

namespace {

Expected<std::string> text_of(const std::string& path) {
  SLUICE_TRY(const MappedFile file, MappedFile::open(path));
  return std::string(reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size());
}

}  // namespace

Expected<void> put_tokenizer(const Checkpoint& input, GgufMetadata& metadata) {
  std::error_code error;
  const auto has = [&](const std::string& file) { return std::filesystem::exists(file, error); };
  const auto* const name = std::ranges::find_if(
      kRankedFiles, [&](const std::string& file) { return has(input.path() + "/" + file); });
  SLUICE_TRY(std::string json, load_tokenizer_json(input.path()));
  const bool is_ranked = json.empty() && name != std::end(kRankedFiles);
  const std::string path = input.path() + "/" + (is_ranked ? *name : "tokenizer.json");
  if (json.empty() && !is_ranked) {
    warn_of_file(input.path(), "tokenizer.json", "no file", "a model without a tokenizer");
    return {};
  }
  SLUICE_TRY(const CheckpointText text, input.text());
  if (is_ranked) {
    SLUICE_TRY(json, text_of(path));
    const std::string config_path = input.path() + "/tokenizer_config.json";
    std::string config;
    if (has(config_path)) {
      SLUICE_TRY(config, text_of(config_path));
    }
    SLUICE_TRY(json, tiktoken_as_json(json, config));
  }
  const CheckpointTensor* embedding = input.find("token_embd.weight");
  const int64_t num_rows = embedding == nullptr ? 0 : static_cast<int64_t>(embedding->dims[1]);
  SLUICE_TRY(const Vocabulary vocabulary,
             read_hf_vocabulary(json, *text.tokenizer, num_rows, path));
  put_vocabulary(vocabulary, metadata);
  const auto suppressed = read_suppressed_tokens(input, static_cast<int32_t>(num_rows));
  if (!suppressed.empty()) metadata.put_ints("tokenizer.ggml.suppress_tokens", suppressed);
  if (!text.chat_template.empty()) {
    metadata.put_text("tokenizer.chat_template", text.chat_template);
  }
  return {};
}

Expected<TokenizerFiles> tokenizer_files(const Checkpoint& input) {
  TokenizerFiles files;
  SLUICE_TRY(const auto parts, open_gguf_parts(input.path()));
  if (parts.front()->find("tokenizer.ggml.model") == nullptr) {
    warn_of_file(
        input.path(), "tokenizer.ggml.model", "no such key", "a model without a tokenizer");
    return files;
  }
  SLUICE_TRY(const CheckpointText text, input.text());
  SLUICE_TRY(const Vocabulary vocabulary, read_vocabulary(*parts.front()));
  SLUICE_TRY(files.texts["tokenizer.json"], tokenizer_json(vocabulary));
  files.texts["tokenizer_config.json"] = tokenizer_config_json(vocabulary, text.chat_template);
  files.bos = vocabulary.bos;
  files.padding = vocabulary.padding;
  files.ends = text.tokenizer->end_tokens();
  return files;
}

}  // namespace sluice
