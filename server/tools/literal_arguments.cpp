// SPDX-License-Identifier: Apache-2.0
#include "server/tools/literal_arguments.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "server/json/json_fields.h"
#include "server/tools/gemma_literals.h"
#include "server/tools/literal_list.h"

namespace sluice {
namespace {

using Json = nlohmann::ordered_json;

// Python reads "\/" as both characters, JSON as the second.
constexpr const char* kNoPythonEscape = "\\/";

bool is_python_name(std::string_view key) {
  const auto is_letter = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
  };
  return !key.empty() && is_letter(key.front()) &&
         std::ranges::all_of(key, [&](char c) { return is_letter(c) || (c >= '0' && c <= '9'); });
}

// Python's words for what the schema allows; empty: JSON has to say it.
std::vector<std::string_view> python_words(const Json& schema) {
  if (!schema.is_object() || !schema.contains("type") || !other_keyword(schema, {}).empty()) {
    return {};
  }
  if (schema["type"] == "boolean") return {"True", "False"};
  if (schema["type"] == "null") return {"None"};
  return {};
}

Expected<void> add_python_value(const Json& value,
                                const std::string& key,
                                const ArgumentRules& rules,
                                const Json& schema,
                                TagWriter& writer,
                                Json& elements) {
  Json words = Json::array();
  for (const std::string_view word : python_words(value)) {
    writer.add_text(word, words.emplace_back(Json::array()));
    words.back() = TagWriter::sequence(words.back());
  }
  if (!words.empty()) {
    elements.push_back(TagWriter::choice(std::move(words)));
    return {};
  }
  SLUICE_TRY(Json whole, with_definitions(value, schema, writer));
  writer.add_json(
      std::move(whole),
      {.is_exact = rules.is_strict, .owner = rules.owner_of(key), .excluded = kNoPythonEscape},
      elements);
  return {};
}

Expected<void> add_python_arguments(const ArgumentRules& rules,
                                    const Json& schema,
                                    TagWriter& writer,
                                    Json& elements) {
  SLUICE_TRY(const std::vector<Argument> arguments,
             arguments_of(schema, "#", rules, is_python_name));
  Json items = Json::array();
  std::vector<bool> required;
  for (const auto& [key, value, is_required] : arguments) {
    Json item = Json::array();
    writer.add_text(key + "=", item);
    SLUICE_TRY_VOID(add_python_value(*value, key, rules, schema, writer, item));
    items.push_back(TagWriter::sequence(std::move(item)));
    required.push_back(is_required);
  }
  return add_list(items, required, ", ", writer, elements);
}

}  // namespace

Expected<void> add_literal_arguments(const CallForm& form,
                                     const ArgumentRules& rules,
                                     const Json& schema,
                                     TagWriter& writer,
                                     Json& elements) {
  if (form.style == ArgumentStyle::kPython) {
    return add_python_arguments(rules, schema, writer, elements);
  }
  return GemmaLiterals(form.quote, rules, schema, writer).add_members(schema, "#", elements);
}

}  // namespace sluice
