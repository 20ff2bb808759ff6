// SPDX-License-Identifier: Apache-2.0
#include "engine/weights/causal_flags.h"

#include <nlohmann/json.hpp>

#include "engine/core/config.h"
#include "engine/tokenizer/files/json_parts.h"
#include "engine/weights/checkpoint.h"
#include "engine/weights/file_spec.h"
#include "engine/weights/gguf_parse.h"
#include "engine/weights/override_keys.h"

namespace sluice {
namespace {

using Json = nlohmann::json;

}  // namespace

Expected<std::optional<bool>> causal_override(const Config& config) {
  if (config.hf_overrides.empty()) return std::optional<bool>();
  SLUICE_TRY(const Json overrides, parse_overrides(config.hf_overrides));
  const auto found = overrides.find("is_causal");
  if (found == overrides.end()) return std::optional<bool>();
  if (found->is_boolean()) return std::optional(found->get<bool>());
  return make_error(ErrorCode::kInvalidArgument,
                    "--hf-overrides: is_causal must be true or false",
                    "hf-overrides");
}

Expected<void> check_remote_class(const Checkpoint& checkpoint, const Json& config) {
  const FileSpec* const files = checkpoint.file_spec();
  const Json* const classes = json_field(config, "auto_map");
  const Json* const name = classes == nullptr ? nullptr : json_field(*classes, "AutoModel");
  const bool is_stated = checkpoint.metadata().has("attention.causal") ||
                         checkpoint.metadata().has("attention.sees_behind");
  const bool is_code = name != nullptr && name->is_string();
  if (files == nullptr || !files->may_be_encoder || !is_code || is_stated) return {};
  return make_error(
      ErrorCode::kUnsupported,
      checkpoint.path() + "/config.json: auto_map.AutoModel: found " +
          in_quotes(name->get<std::string>()) +
          ", code that is not run, expected is_causal to say what its tokens see: --hf-overrides "
          "'{\"is_causal\": false}' for those behind them too, as in gte-Qwen2 and stella, or true",
      "hf-overrides");
}

}  // namespace sluice
