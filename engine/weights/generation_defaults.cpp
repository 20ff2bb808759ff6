// SPDX-License-Identifier: Apache-2.0
#include "engine/weights/generation_defaults.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>

#include "engine/core/config.h"
#include "engine/core/log.h"
#include "engine/core/suggest.h"
#include "engine/tokenizer/files/json_parts.h"
#include "engine/weights/checkpoint.h"
#include "engine/weights/mapped_file.h"

namespace sluice {
namespace {

using Json = nlohmann::json;

constexpr size_t kMaxFileBytes = 1 << 20;
constexpr size_t kMaxShown = 60;  // characters of a value in a warning
constexpr std::string_view kMaxTokens = "max_new_tokens";
constexpr std::string_view kEndTokens = "eos_token_id";
constexpr const char* kFileName = "generation_config.json";
constexpr const char* kSuppressed = "suppress_tokens";
constexpr const char* kGgufSuppressed = "tokenizer.ggml.suppress_tokens";
constexpr size_t kMostSuppressed = 256;

// The fields that vLLM takes from the file as well.
constexpr std::string_view kFields[] = {
    "temperature", "top_p", "top_k", "min_p", "repetition_penalty"};

struct GgufKey {
  std::string_view key;
  std::string_view field;
};

constexpr GgufKey kGgufKeys[] = {
    {"general.sampling.temp", "temperature"},
    {"general.sampling.top_p", "top_p"},
    {"general.sampling.top_k", "top_k"},
    {"general.sampling.min_p", "min_p"},
    {"general.sampling.penalty_repeat", "repetition_penalty"},
};

tl::unexpected<Error> wrong(const std::string& source, const std::string& what) {
  return make_error(ErrorCode::kDataLoss,
                    source + ": " + what + "; --generation-config vllm leaves it out");
}

Expected<void> set_field(std::string_view name, double value, GenerationDefaults& defaults) {
  const SamplingField* field = find_sampling_field(name);
  CHECK(field != nullptr);
  return set_sampling_field(defaults.sampling, *field, value);
}

void describe(GenerationDefaults& defaults) {
  std::string& text = defaults.summary;
  text.clear();
  const auto add = [&text](std::string_view name, double value) {
    char number[32];
    std::snprintf(number, sizeof number, "%.6g", value);
    text += (text.empty() ? "" : ", ") + std::string(name) + " " + number;
  };
  for (const std::string_view name : kFields) {
    const SamplingField& field = *find_sampling_field(name);
    const double value = field.get(defaults.sampling);
    if (value != field.default_value) add(name, value);
  }
  if (defaults.max_output_tokens > 0) add(kMaxTokens, defaults.max_output_tokens);
  if (!defaults.end_tokens) return;
  text += (text.empty() ? "" : ", ") + std::string(kEndTokens);
  for (const TokenId id : *defaults.end_tokens) text += " " + std::to_string(id);
}

// The file beside the model; empty: there is none.
std::string path_beside(const Checkpoint& checkpoint) {
  namespace fs = std::filesystem;
  if (checkpoint.kind() != CheckpointKind::kHuggingFace) return {};
  std::error_code error;
  std::string path = (fs::path(checkpoint.path()) / kFileName).string();
  return fs::is_regular_file(path, error) ? path : std::string();
}

// The file named by --generation-config; empty: there is none and none is required.
std::string path_of(const Config& config, const Checkpoint& checkpoint) {
  namespace fs = std::filesystem;
  const std::string& path = config.generation_config;
  if (path == "auto") return path_beside(checkpoint);
  std::error_code error;
  return fs::is_directory(path, error) ? (fs::path(path) / kFileName).string() : path;
}

Expected<std::string> read_text(const std::string& path) {
  SLUICE_TRY(const MappedFile file, MappedFile::open(path));
  const auto bytes = file.bytes();
  if (bytes.size() > kMaxFileBytes) {
    return wrong(path, "size: found more than 1 MiB, expected a generation_config.json");
  }
  return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

Expected<void> apply_file(const std::string& path,
                          GenerationSource source,
                          GenerationDefaults& defaults) {
  SLUICE_TRY(const std::string text, read_text(path));
  return apply_generation_config(text, path, source, defaults);
}

// Returns suppress_tokens of a generation_config.json, whose other faults are found elsewhere.
Json suppressed_in_file(const std::string& path) {
  const Expected<std::string> text = read_text(path);
  if (!text) return nullptr;
  const Json root = Json::parse(json_without_nan(*text, ""), nullptr, /*allow_exceptions=*/false);
  const Json* const found = root.is_object() ? json_field(root, kSuppressed) : nullptr;
  return found == nullptr ? Json() : *found;
}

Json suppressed_in_gguf(const Metadata& metadata) {
  if (!metadata.has(kGgufSuppressed)) return nullptr;
  const Expected<std::vector<double>> numbers = metadata.get_numbers(kGgufSuppressed);
  return numbers ? Json(*numbers) : Json(numbers.error().message);
}

void apply_gguf(const Checkpoint& checkpoint, GenerationDefaults& defaults) {
  const Metadata& metadata = checkpoint.metadata();
  for (const auto& [key, field] : kGgufKeys) {
    if (!metadata.has(key)) continue;
    const Expected<double> value = metadata.get_float(key);
    const Expected<void> set =
        value ? set_field(field, *value, defaults) : tl::unexpected(value.error());
    if (!set) warn_of_file(checkpoint.path(), key, set.error().message, "not given");
  }
}

Expected<void> set_number(std::string_view name, const Json& value, GenerationDefaults& defaults) {
  if (!value.is_number()) {
    return make_error(ErrorCode::kDataLoss, std::string(name) + " must be a number");
  }
  return set_field(name, value.get<double>(), defaults);
}

Expected<void> set_max_tokens(const Json& value, GenerationDefaults& defaults) {
  constexpr int32_t kMost = std::numeric_limits<int32_t>::max();
  const std::optional<int64_t> number = json_whole_number(value);
  if (!number || *number < 1 || *number > kMost) {
    return make_error(ErrorCode::kDataLoss,
                      std::string(kMaxTokens) + " must be an integer in [1, 2147483647]");
  }
  defaults.max_output_tokens = static_cast<int32_t>(*number);
  return {};
}

// Takes an id or a list of ids.
Expected<void> set_end_tokens(const Json& value, GenerationDefaults& defaults) {
  std::vector<TokenId> ids;
  const Json list = value.is_array() ? value : Json::array({value});
  for (const Json& item : list) {
    const std::optional<int64_t> id = json_whole_number(item);
    if (!id || *id < 0 || *id > std::numeric_limits<TokenId>::max()) {
      return make_error(ErrorCode::kDataLoss,
                        std::string(kEndTokens) + " must be a token id or a list of them");
    }
    ids.push_back(static_cast<TokenId>(*id));
  }
  defaults.end_tokens = std::move(ids);
  return {};
}

// Warns of unknown keys in a flag's file; a model's own file has many that mean nothing here.
void warn_of_unknown_keys(const Json& root, const std::string& name) {
  std::vector<std::string> known(std::begin(kFields), std::end(kFields));
  known.emplace_back(kMaxTokens);
  known.emplace_back(kEndTokens);
  for (const auto& [key, value] : root.items()) {
    if (std::ranges::find(known, key) != known.end()) continue;
    const std::string nearest = nearest_name(key, known);
    const std::string text = value.dump(-1, ' ', true, Json::error_handler_t::replace);
    warn_of_file(name,
                 key,
                 text.substr(0, kMaxShown),
                 "not given: no such parameter" +
                     (nearest.empty() ? "" : "; did you mean " + nearest + "?"));
  }
}

}  // namespace

Expected<void> apply_generation_config(std::string_view json,
                                       const std::string& name,
                                       GenerationSource source,
                                       GenerationDefaults& defaults) {
  const Json root = Json::parse(json_without_nan(json, name), nullptr, /*allow_exceptions=*/false);
  if (!root.is_object()) return wrong(name, "found no JSON object, expected one of parameters");
  const auto apply = [&](std::string_view key, const auto& set) -> Expected<void> {
    const auto found = root.find(key);
    if (found == root.end() || found->is_null()) return {};
    const Expected<void> done = set(*found);
    if (done) return {};
    if (source == GenerationSource::kFlag) return wrong(name, done.error().message);
    const std::string text = found->dump(-1, ' ', true, Json::error_handler_t::replace);
    warn_of_file(name, key, text.substr(0, kMaxShown), "not given: " + done.error().message);
    return {};
  };
  if (source == GenerationSource::kFlag) warn_of_unknown_keys(root, name);
  for (const std::string_view key : kFields) {
    SLUICE_TRY_VOID(
        apply(key, [&](const Json& value) { return set_number(key, value, defaults); }));
  }
  SLUICE_TRY_VOID(
      apply(kMaxTokens, [&](const Json& value) { return set_max_tokens(value, defaults); }));
  if (source == GenerationSource::kModelFile) return {};  // the tokenizer has its end tokens
  return apply(kEndTokens, [&](const Json& value) { return set_end_tokens(value, defaults); });
}

std::vector<TokenId> read_suppressed_tokens(const Checkpoint& checkpoint, int32_t vocab_size) {
  const bool is_gguf = checkpoint.kind() == CheckpointKind::kGguf;
  const std::string path = is_gguf ? checkpoint.path() : path_beside(checkpoint);
  const char* const key = is_gguf ? kGgufSuppressed : kSuppressed;
  std::vector<TokenId> ids;
  if (path.empty()) return ids;
  const Json list = is_gguf ? suppressed_in_gguf(checkpoint.metadata()) : suppressed_in_file(path);
  if (list.is_null()) return ids;
  if (!list.is_array() || list.size() > kMostSuppressed) {
    const std::string found = list.dump(-1, ' ', true, Json::error_handler_t::replace);
    warn_of_file(path, key, found.substr(0, kMaxShown), "not given: no list of 256 ids or fewer");
    return ids;
  }
  for (const Json& item : list) {
    const std::optional<int64_t> id = json_whole_number(item);
    if (id && *id >= 0 && *id < vocab_size) {
      ids.push_back(static_cast<TokenId>(*id));
    } else {
      const std::string found = item.dump(-1, ' ', true, Json::error_handler_t::replace);
      warn_of_file(path, key, found.substr(0, kMaxShown), "not given: no token of the model");
    }
  }
  std::ranges::sort(ids);
  const auto repeated = std::ranges::unique(ids);
  ids.erase(repeated.begin(), repeated.end());
  return ids;
}

Expected<GenerationDefaults> read_generation_defaults(const Config& config,
                                                      const Checkpoint& checkpoint) {
  GenerationDefaults defaults;
  if (config.generation_config != "vllm") {
    const std::string path = path_of(config, checkpoint);
    const bool is_named = config.generation_config != "auto";
    if (path.empty()) {
      apply_gguf(checkpoint, defaults);
    } else {
      const Expected<void> applied = apply_file(
          path, is_named ? GenerationSource::kNamedFile : GenerationSource::kModelFile, defaults);
      if (!applied && is_named) return tl::unexpected(applied.error());
      if (!applied) warn_of_file(path, "sampling parameters", applied.error().message, "not given");
    }
  }
  if (!config.override_generation_config.empty()) {
    SLUICE_TRY_VOID(apply_generation_config(config.override_generation_config,
                                            "--override-generation-config",
                                            GenerationSource::kFlag,
                                            defaults));
  }
  describe(defaults);
  return defaults;
}

}  // namespace sluice
