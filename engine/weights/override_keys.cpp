// SPDX-License-Identifier: Apache-2.0
#include "engine/weights/override_keys.h"

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string_view>

#include "engine/weights/gguf_parse.h"
#include "engine/weights/hf_rows.h"

namespace sluice {
namespace {

using Json = nlohmann::json;

constexpr std::string_view kOfPooling[] = {"architectures",
                                           "is_causal",
                                           "default_prompt_name",
                                           "is_matryoshka",
                                           "matryoshka_dimensions",
                                           "classifier_from_token",
                                           "method",
                                           "is_original_qwen3_reranker"};
// Beside those of hf_rows.h.
constexpr std::string_view kOfModels[] = {"rope_parameters",
                                          "rope_scaling",
                                          "rope_theta",
                                          "original_max_position_embeddings",
                                          "partial_rotary_factor"};

bool is_of_pooling(std::string_view key) {
  return std::ranges::find(kOfPooling, key) != std::end(kOfPooling);
}

bool is_of_model(std::string_view key) {
  const auto is_it = [key](const char* spelling) { return spelling != nullptr && spelling == key; };
  return std::ranges::find(kOfModels, key) != std::end(kOfModels) ||
         std::ranges::any_of(kHfRows, [&is_it](const HfRow& row) {
           return std::ranges::any_of(row.spellings, is_it);
         });
}

// Returns the first key that nothing reads; null: there is none.
const std::string* unread_key(const Json& overrides, bool is_text_model) {
  for (auto item = overrides.begin(); item != overrides.end(); ++item) {
    if (!is_text_model && item.key() == "text_config" && item->is_object()) {
      if (const std::string* const unread = unread_key(*item, true)) return unread;
    } else if (!is_of_model(item.key()) && (is_text_model || !is_of_pooling(item.key()))) {
      return &item.key();
    }
  }
  return nullptr;
}

}  // namespace

Expected<Json> parse_overrides(const std::string& text) {
  Json overrides = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!overrides.is_object()) {
    return make_error(
        ErrorCode::kInvalidArgument, "--hf-overrides must be a JSON object", "hf-overrides");
  }
  if (const std::string* const name = unread_key(overrides, /*is_text_model=*/false)) {
    return make_error(ErrorCode::kUnsupported,
                      "--hf-overrides: " + in_quotes(*name) + " is not supported",
                      "hf-overrides");
  }
  return overrides;
}

Expected<std::string> model_overrides(const std::string& text) {
  if (text.empty()) return std::string();
  SLUICE_TRY(const Json overrides, parse_overrides(text));
  Json kept = Json::object();
  for (const auto& [name, value] : overrides.items()) {
    if (!is_of_pooling(name)) kept[name] = value;
  }
  return kept.empty() ? std::string() : kept.dump(-1, ' ', true, Json::error_handler_t::replace);
}

}  // namespace sluice
