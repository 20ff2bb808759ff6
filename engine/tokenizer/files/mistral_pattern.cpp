// SPDX-License-Identifier: Apache-2.0
#include "engine/tokenizer/files/mistral_pattern.h"

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "engine/core/log.h"
#include "engine/tokenizer/files/json_parts.h"
#include "engine/tokenizer/files/pretokenizer_names.h"

namespace sluice {
namespace {

using Json = nlohmann::json;

std::string text_of(const Json& object, std::string_view key) {
  const Json* const field = json_field(object, key);
  return field != nullptr && field->is_string() ? field->get<std::string>() : "";
}

// Whether the version that wrote the files is before 5, or not stated.
bool is_before_5(std::string_view version) {
  int major = 0;
  std::from_chars(version.data(), version.data() + version.size(), major);
  return major < 5 || version.starts_with("5.0.0.dev") || version.starts_with("5.0.0rc");
}

// Returns the expression of the first stage; empty: it does not split by one.
std::string first_expression(const Json& tokenizer) {
  const Json* stage = json_field(tokenizer, "pre_tokenizer");
  if (stage == nullptr) return {};
  if (const Json* stages = json_field(*stage, "pretokenizers"); stages != nullptr) {
    if (!stages->is_array() || stages->empty()) return {};
    stage = &stages->front();
  }
  const Json* const pattern = json_field(*stage, "pattern");
  return text_of(*stage, "type") == "Split" && pattern != nullptr ? text_of(*pattern, "Regex") : "";
}

}  // namespace

void warn_of_mistral_pattern(const Json& tokenizer, const Json& config) {
  constexpr std::string_view kTypes[] = {"mistral", "mistral3", "voxtral", "ministral", "pixtral"};
  const bool is_mistral =
      std::ranges::find(kTypes, text_of(config, "model_type")) != std::end(kTypes);
  if (!is_mistral || !is_before_5(text_of(config, "transformers_version"))) return;
  // SentencePiece's vocabularies, of Mistral's older models, are split nowhere or by whole pieces.
  const Json* const model = json_field(tokenizer, "model");
  const Json* const bytes = model == nullptr ? nullptr : json_field(*model, "byte_fallback");
  if (bytes != nullptr && *bytes == true) return;
  const std::string found = first_expression(tokenizer);
  const Expected<NamedPretokenizer> tekken = pretokenizer_by_name("tekken");
  if (found.empty() || !tekken || found == tekken->patterns.front()) return;
  warn_of_file("tokenizer.json",
               "pre_tokenizer.pattern",
               "an incorrect expression, by which text becomes other tokens than in training",
               "it is, as in transformers without fix_mistral_regex=True; a file saved with that "
               "flag is right");
}

}  // namespace sluice
