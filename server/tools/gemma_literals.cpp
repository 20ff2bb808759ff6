// SPDX-License-Identifier: Apache-2.0
#include "server/tools/gemma_literals.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "server/json/json_fields.h"
#include "server/tools/literal_list.h"

namespace sluice {
namespace {

using Json = GemmaLiterals::Json;

constexpr std::string_view kSeparator = ",";
constexpr int64_t kNoLimit = -1;  // of a repetition, as the grammar library has it
constexpr int kMaxDepth = 5;      // of values whose schemas are followed
constexpr int kMaxAnyDepth = 2;   // of lists and objects of which no schema says anything
constexpr int64_t kReferenceBytes = 1024;  // what following a reference counts as
constexpr const char* kKeyPattern = "[A-Za-z_][A-Za-z0-9_]{0,63}";

bool is_key(std::string_view key) {
  return !key.empty() && key.find_first_of("{}[]:,<>|\"' \t\r\n") == std::string_view::npos;
}

bool is_atom(const Json& type) {
  return type == "integer" || type == "number" || type == "boolean" || type == "null";
}

}  // namespace

const Json* GemmaLiterals::target_of(const Json& schema) const {
  const Json* reference = find_field(schema, "$ref");
  if (reference == nullptr || !reference->is_string()) return nullptr;
  const std::string& text = reference->get_ref<const std::string&>();
  for (const std::string name : {"$defs", "definitions"}) {
    const std::string prefix = "#/" + name + "/";
    if (!text.starts_with(prefix)) continue;
    const Json* definitions = find_field(root_, name);
    return definitions == nullptr ? nullptr : find_field(*definitions, text.substr(prefix.size()));
  }
  return nullptr;
}

bool GemmaLiterals::can_be_written(const Json& value) const {
  if (value.is_string()) {
    return std::ranges::none_of(quote_, [&](const CallPiece& piece) {
      return piece.token == kInvalidToken &&
             value.get_ref<const std::string&>().find(piece.text) != std::string::npos;
    });
  }
  for (const auto& [key, item] : value.items()) {
    if (!value.is_structured()) break;
    if ((value.is_object() && !is_key(key)) || !can_be_written(item)) return false;
  }
  return true;
}

void GemmaLiterals::add_literal(const Json& value, Json& elements) {
  if (value.is_string()) {
    writer_.add(quote_, elements);
    writer_.add_text(value.get_ref<const std::string&>(), elements);
    writer_.add(quote_, elements);
    return;
  }
  if (!value.is_structured()) {
    writer_.add_text(value.dump(), elements);
    return;
  }
  writer_.add_text(value.is_object() ? "{" : "[", elements);
  bool is_first = true;
  for (const auto& [key, item] : value.items()) {
    if (!is_first) writer_.add_text(kSeparator, elements);
    if (value.is_object()) writer_.add_text(key + ":", elements);
    add_literal(item, elements);
    is_first = false;
  }
  writer_.add_text(value.is_object() ? "}" : "]", elements);
}

void GemmaLiterals::add_string(Json& elements) {
  writer_.add(quote_, elements);
  writer_.add_free_text(quote_, elements);
}

// Items of any number, consecutive.
void GemmaLiterals::add_any_list(int depth, Json& elements) {
  Json item = Json::array();
  add_any(depth, item);
  Json more = Json::array();
  writer_.add_text(kSeparator, more);
  more.push_back(TagWriter::sequence(item));
  item.push_back({{"type", "star"}, {"content", TagWriter::sequence(std::move(more))}});
  writer_.add_text("[", elements);
  writer_.add_optional(std::move(item), elements);
  writer_.add_text("]", elements);
}

void GemmaLiterals::add_any_object(int depth, Json& elements) {
  Json member = Json::array({{{"type", "regex"}, {"pattern", kKeyPattern}}});
  writer_.add_text(":", member);
  add_any(depth, member);
  Json more = Json::array();
  writer_.add_text(kSeparator, more);
  more.push_back(TagWriter::sequence(member));
  member.push_back({{"type", "star"}, {"content", TagWriter::sequence(std::move(more))}});
  writer_.add_text("{", elements);
  writer_.add_optional(std::move(member), elements);
  writer_.add_text("}", elements);
}

void GemmaLiterals::add_any(int depth, Json& elements) {
  Json choices = Json::array();
  Json text = Json::array();
  add_string(text);
  choices.push_back(TagWriter::sequence(std::move(text)));
  Json atom = Json::array();
  const Json atoms = {{"type", Json::array({"number", "boolean", "null"})}};
  writer_.add_json(atoms, {.is_exact = true, .owner = "tool '" + rules_.tool + "'"}, atom);
  choices.push_back(TagWriter::sequence(std::move(atom)));
  if (depth > 0) {
    Json list = Json::array();
    add_any_list(depth - 1, list);
    choices.push_back(TagWriter::sequence(std::move(list)));
    Json object = Json::array();
    add_any_object(depth - 1, object);
    choices.push_back(TagWriter::sequence(std::move(object)));
  }
  elements.push_back(TagWriter::choice(std::move(choices)));
}

Expected<void> GemmaLiterals::add_anything(Json& elements) {
  Json any = Json::array();
  add_any(kMaxAnyDepth, any);
  SLUICE_TRY_VOID(writer_.spend(any));
  elements.push_back(std::move(any.front()));
  return {};
}

Expected<void> GemmaLiterals::add_listed(const Json& values,
                                         const std::string& place,
                                         Json& elements) {
  SLUICE_TRY_VOID(writer_.spend(values));
  Json choices = Json::array();
  for (const Json& value : values) {
    if (!can_be_written(value)) {
      SLUICE_TRY_VOID(rules_.refuse("enum", place));
      continue;
    }
    Json literal = Json::array();
    add_literal(value, literal);
    choices.push_back(TagWriter::sequence(std::move(literal)));
  }
  if (choices.empty()) return add_anything(elements);
  elements.push_back(TagWriter::choice(std::move(choices)));
  return {};
}

Expected<void> GemmaLiterals::add_alternatives(const Json& schemas,
                                               const std::string& place,
                                               Json& elements) {
  Json choices = Json::array();
  for (const Json& schema : schemas) {
    Json choice = Json::array();
    SLUICE_TRY_VOID(add_value(schema, place, choice));
    choices.push_back(TagWriter::sequence(std::move(choice)));
  }
  elements.push_back(TagWriter::choice(std::move(choices)));
  return {};
}

// `fallback` where the schema says nothing, or more than can be counted.
Expected<int64_t> GemmaLiterals::count_of(const Json& schema,
                                          const char* keyword,
                                          int64_t fallback,
                                          const std::string& place) const {
  constexpr int64_t kMost = 1000;
  const Json* value = find_field(schema, keyword);
  if (value == nullptr) return fallback;
  if (value->is_number_integer() && *value >= 0 && *value <= kMost) return value->get<int64_t>();
  SLUICE_TRY_VOID(rules_.refuse(keyword, place));
  return fallback;
}

Expected<void> GemmaLiterals::add_array(const Json& schema,
                                        const std::string& place,
                                        Json& elements) {
  constexpr std::array<std::string_view, 3> kKnown = {"items", "minItems", "maxItems"};
  const std::string other = other_keyword(schema, kKnown);
  if (!other.empty()) SLUICE_TRY_VOID(rules_.refuse(other, place));
  SLUICE_TRY(const int64_t min_items, count_of(schema, "minItems", 0, place));
  SLUICE_TRY(const int64_t max_items, count_of(schema, "maxItems", kNoLimit, place));
  if (max_items == 0) {
    writer_.add_text("[]", elements);
    return {};
  }
  Json item = Json::array();
  const Json* items = find_field(schema, "items");
  SLUICE_TRY_VOID(add_value(items == nullptr ? Json(true) : *items, place + "/items", item));
  Json more = Json::array();
  writer_.add_text(kSeparator, more);
  more.push_back(TagWriter::sequence(item));
  item.push_back({{"type", "repeat"},
                  {"min", std::max<int64_t>(min_items - 1, 0)},
                  {"max", max_items == kNoLimit ? kNoLimit : max_items - 1},
                  {"content", TagWriter::sequence(std::move(more))}});
  writer_.add_text("[", elements);
  if (min_items > 0) {
    elements.push_back(TagWriter::sequence(std::move(item)));
  } else {
    writer_.add_optional(std::move(item), elements);
  }
  writer_.add_text("]", elements);
  return {};
}

Expected<void> GemmaLiterals::add_object(const Json& schema,
                                         const std::string& place,
                                         Json& elements) {
  const bool names_some = find_field(schema, "properties") != nullptr;
  const Json* others = find_field(schema, "additionalProperties");
  if (!names_some && (others == nullptr || *others != false)) {
    if (others != nullptr && others->is_object()) {
      SLUICE_TRY_VOID(rules_.refuse("additionalProperties", place));
    }
    if (find_field(schema, "required") != nullptr) {
      SLUICE_TRY_VOID(rules_.refuse("required", place));
    }
    Json any = Json::array();
    add_any_object(kMaxAnyDepth - 1, any);
    SLUICE_TRY_VOID(writer_.spend(any));
    elements.insert(elements.end(), any.begin(), any.end());
    return {};
  }
  writer_.add_text("{", elements);
  SLUICE_TRY_VOID(add_members(schema, place, elements));
  writer_.add_text("}", elements);
  return {};
}

Expected<void> GemmaLiterals::add_typed(const Json& schema,
                                        const Json& type,
                                        const std::string& place,
                                        Json& elements) {
  SLUICE_TRY_VOID(writer_.spend(schema));
  if (is_atom(type)) {
    Json atom = schema;
    atom["type"] = type;
    writer_.add_json(std::move(atom),
                     {.is_exact = rules_.is_strict,
                      .owner = show_text(place) + " of tool '" + rules_.tool + "'"},
                     elements);
    return {};
  }
  if (type == "array") return add_array(schema, place, elements);
  if (type == "object") return add_object(schema, place, elements);
  const std::string other = other_keyword(schema, {});
  if (!other.empty() || type != "string") {
    SLUICE_TRY_VOID(rules_.refuse(other.empty() ? "type" : other, place));
  }
  add_string(elements);
  return {};
}

Expected<void> GemmaLiterals::add_value(const Json& schema,
                                        const std::string& place,
                                        Json& elements) {
  if (schema == false) SLUICE_TRY_VOID(rules_.refuse("false", place));
  if (!schema.is_object() || depth_ == kMaxDepth) {
    if (depth_ == kMaxDepth) SLUICE_TRY_VOID(rules_.refuse("type", place));
    return add_anything(elements);
  }
  if (const Json* target = target_of(schema)) {
    SLUICE_TRY_VOID(writer_.spend(kReferenceBytes));
    ++depth_;
    auto added = add_value(*target, place, elements);
    --depth_;
    return added;
  }
  const auto only = [&](std::string_view keyword) {
    return schema.contains(keyword) && other_keyword(schema, std::array{keyword}).empty();
  };
  if (only("enum") && schema["enum"].is_array() && !schema["enum"].empty()) {
    return add_listed(schema["enum"], place, elements);
  }
  if (only("const")) return add_listed(Json::array({schema["const"]}), place, elements);
  if (only("anyOf") && schema["anyOf"].is_array() && !schema.contains("type") &&
      !schema["anyOf"].empty()) {
    return add_alternatives(schema["anyOf"], place, elements);
  }
  const Json* type = find_field(schema, "type");
  if (type == nullptr) {
    const std::string other = other_keyword(schema, {});
    if (!other.empty()) SLUICE_TRY_VOID(rules_.refuse(other, place));
    return add_anything(elements);
  }
  ++depth_;
  Json choices = Json::array();
  for (const Json& one : type->is_array() ? *type : Json::array({*type})) {
    Json choice = Json::array();
    auto added = add_typed(schema, one, place, choice);
    if (!added) return added;
    choices.push_back(TagWriter::sequence(std::move(choice)));
  }
  --depth_;
  if (choices.empty()) return add_anything(elements);
  elements.push_back(TagWriter::choice(std::move(choices)));
  return {};
}

Expected<void> GemmaLiterals::add_members(const Json& schema,
                                          const std::string& place,
                                          Json& elements) {
  SLUICE_TRY(const std::vector<Argument> members, arguments_of(schema, place, rules_, is_key));
  Json items = Json::array();
  std::vector<bool> required;
  for (const auto& [key, value, is_required] : members) {
    Json item = Json::array();
    writer_.add_text(key + ":", item);
    SLUICE_TRY_VOID(add_value(*value, place + "/properties/" + key, item));
    items.push_back(TagWriter::sequence(std::move(item)));
    required.push_back(is_required);
  }
  return add_list(items, required, kSeparator, writer_, elements);
}

}  // namespace sluice
