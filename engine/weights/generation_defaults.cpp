// SPDX-License-Identifier: Apache-2.0
#include "engine/weights/generation_defaults.h"

#include <cstdio>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>

#include "engine/core/config.h"
#include "engine/weights/checkpoint.h"
#include "engine/weights/mapped_file.h"

namespace sluice {
namespace {

using Json = nlohmann::json;

constexpr size_t kMaxFileBytes = 1 << 20;
constexpr std::string_view kMaxTokens = "max_new_tokens";

// Those that vLLM takes from the file as well.
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

Expected<void> set_field(std::string_view name,
                         double value,
                         const std::string& source,
                         GenerationDefaults& defaults) {
  const SamplingField* field = find_sampling_field(name);
  CHECK(field != nullptr);
  if (const auto set = set_sampling_field(defaults.sampling, *field, value); !set) {
    return wrong(source, set.error().message);
  }
  return {};
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
}

// The file that --generation-config means; empty: there is none, and need not be.
std::string path_of(const Config& config, const Checkpoint& checkpoint) {
  namespace fs = std::filesystem;
  constexpr const char* kName = "generation_config.json";
  std::error_code error;
  std::string path = config.generation_config;
  if (path == "auto") {
    path = (fs::path(checkpoint.path()) / kName).string();
    const bool is_there =
        checkpoint.kind() == CheckpointKind::kHuggingFace && fs::is_regular_file(path, error);
    return is_there ? path : std::string();
  }
  return fs::is_directory(path, error) ? (fs::path(path) / kName).string() : path;
}

Expected<void> apply_file(const std::string& path, GenerationDefaults& defaults) {
  SLUICE_TRY(const MappedFile file, MappedFile::open(path));
  const auto bytes = file.bytes();
  if (bytes.size() > kMaxFileBytes) {
    return wrong(path, "size: found more than 1 MiB, expected a generation_config.json");
  }
  return apply_generation_config(
      {reinterpret_cast<const char*>(bytes.data()), bytes.size()}, path, defaults);
}

Expected<void> apply_gguf(const Checkpoint& checkpoint, GenerationDefaults& defaults) {
  const Metadata& metadata = checkpoint.metadata();
  for (const auto& [key, field] : kGgufKeys) {
    if (!metadata.has(key)) continue;
    SLUICE_TRY(const double value, metadata.get_float(key));
    SLUICE_TRY_VOID(set_field(field, value, checkpoint.path() + ": " + std::string(key), defaults));
  }
  return {};
}

}  // namespace

Expected<void> apply_generation_config(std::string_view json,
                                       const std::string& source,
                                       GenerationDefaults& defaults) {
  const Json root = Json::parse(json.begin(), json.end(), nullptr, /*allow_exceptions=*/false);
  if (!root.is_object()) return wrong(source, "found no JSON object, expected one of parameters");
  const auto number_of = [&root](std::string_view name) -> const Json* {
    const auto found = root.find(name);
    return found == root.end() || found->is_null() ? nullptr : &*found;
  };
  for (const std::string_view name : kFields) {
    const Json* value = number_of(name);
    if (value == nullptr) continue;
    if (!value->is_number()) return wrong(source, std::string(name) + " must be a number");
    SLUICE_TRY_VOID(set_field(name, value->get<double>(), source, defaults));
  }
  if (const Json* value = number_of(kMaxTokens)) {
    if (!value->is_number_unsigned() || value->get<uint64_t>() < 1 ||
        value->get<uint64_t>() > std::numeric_limits<int32_t>::max()) {
      return wrong(source, std::string(kMaxTokens) + " must be an integer in [1, 2147483647]");
    }
    defaults.max_output_tokens = value->get<int32_t>();
  }
  return {};
}

Expected<GenerationDefaults> read_generation_defaults(const Config& config,
                                                      const Checkpoint& checkpoint) {
  GenerationDefaults defaults;
  if (config.generation_config != "vllm") {
    const std::string path = path_of(config, checkpoint);
    SLUICE_TRY_VOID(path.empty() ? apply_gguf(checkpoint, defaults) : apply_file(path, defaults));
  }
  if (!config.override_generation_config.empty()) {
    SLUICE_TRY_VOID(apply_generation_config(
        config.override_generation_config, "--override-generation-config", defaults));
  }
  describe(defaults);
  return defaults;
}

}  // namespace sluice
