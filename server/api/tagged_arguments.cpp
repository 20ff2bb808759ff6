// SPDX-License-Identifier: Apache-2.0
#include "server/api/tagged_arguments.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <span>
#include <string_view>
#include <utility>

#include "server/json/json_fields.h"

namespace sluice {
namespace {

using Json = nlohmann::ordered_json;

// Keywords that bind nothing.
constexpr std::array<std::string_view, 13> kNotes = {"title",
                                                     "description",
                                                     "default",
                                                     "examples",
                                                     "$schema",
                                                     "$id",
                                                     "$comment",
                                                     "deprecated",
                                                     "readOnly",
                                                     "writeOnly",
                                                     "$defs",
                                                     "definitions",
                                                     "type"};
constexpr std::array<std::string_view, 3> kOfObjects = {
    "properties", "required", "additionalProperties"};
constexpr std::array<std::string_view, 2> kOfStrings = {"enum", "const"};

// The first keyword that is neither a note nor one of `known`; empty: there is none.
std::string other_keyword(const Json& schema, std::span<const std::string_view> known) {
  for (const auto& [key, value] : schema.items()) {
    const auto is_key = [&wanted = key](std::string_view name) { return name == wanted; };
    if (!std::ranges::any_of(kNotes, is_key) && !std::ranges::any_of(known, is_key)) return key;
  }
  return {};
}

class ArgumentsWriter {
 public:
  ArgumentsWriter(const TaggedForm& form,
                  const std::string& tool,
                  const Json& schema,
                  bool is_strict,
                  TagWriter& writer)
      : form_(form), tool_(tool), schema_(schema), is_strict_(is_strict), writer_(writer) {}

  Expected<void> add_to(Json& elements) {
    const std::string other = other_keyword(schema_, kOfObjects);
    if (!other.empty()) SLUICE_TRY_VOID(refuse(other, "#"));
    if (schema_["type"] != "object") SLUICE_TRY_VOID(refuse("type", "#"));
    const Json* properties = find_field(schema_, "properties");
    const bool has_properties = properties != nullptr && properties->is_object();
    const Json none = Json::object();
    const Json& given = has_properties ? *properties : none;
    for (const std::string& name : required()) {
      if (!given.contains(name)) SLUICE_TRY_VOID(refuse("required", "#"));
    }
    for (const auto& [key, value] : given.items()) {
      if (key.empty() || key.find_first_of("<>\"\n") != std::string::npos) {
        SLUICE_TRY_VOID(refuse(key, "#/properties"));
        continue;
      }
      SLUICE_TRY(Json part, property(key, value));
      if (std::ranges::count(required(), key) > 0) {
        elements.push_back(TagWriter::sequence(std::move(part)));
      } else {
        writer_.add_optional(std::move(part), elements);
      }
    }
    return {};
  }

 private:
  // Nothing, where the schema need not be kept exactly.
  [[nodiscard]] Expected<void> refuse(const std::string& keyword, const std::string& place) const {
    if (!is_strict_) return {};
    return make_error(ErrorCode::kUnsupported,
                      "unsupported keyword '" + show_text(keyword) + "' at " + show_text(place) +
                          " of tool '" + tool_ +
                          "': the model writes arguments in tags, where it cannot be kept",
                      "tools");
  }

  [[nodiscard]] std::vector<std::string> required() const {
    std::vector<std::string> names;
    const Json* list = find_field(schema_, "required");
    if (list == nullptr || !list->is_array()) return names;
    for (const Json& name : *list) {
      if (name.is_string()) names.push_back(name.get<std::string>());
    }
    return names;
  }

  Expected<Json> property(const std::string& key, const Json& value) {
    Json part = Json::array();
    writer_.add(form_.key_begin, part);
    writer_.add_text(key, part);
    if (is_json(value)) {
      writer_.add(form_.json_key_end, part);
      writer_.add_json(with_definitions(value),
                       {.is_exact = is_strict_,
                        .owner = "#/properties/" + show_text(key) + " of tool '" + tool_ + "'",
                        .excluded = end_mark()},
                       part);
      writer_.add(form_.value_end, part);
      return part;
    }
    writer_.add(form_.key_end, part);
    SLUICE_TRY_VOID(add_string(key, value, part));
    return part;
  }

  // The value's types are known, and none of them is a string.
  static bool is_json(const Json& value) {
    const Json* type = value.is_object() ? find_field(value, "type") : nullptr;
    if (type == nullptr) return false;
    if (type->is_string()) return *type != "string";
    return type->is_array() && !type->empty() && std::ranges::count(*type, Json("string")) == 0;
  }

  // Its references lead into the definitions of the whole.
  [[nodiscard]] Json with_definitions(Json value) const {
    for (const char* name : {"$defs", "definitions"}) {
      if (const Json* definitions = find_field(schema_, name)) value[name] = *definitions;
    }
    return value;
  }

  Expected<void> add_string(const std::string& key, const Json& value, Json& part) {
    const std::string place = "#/properties/" + key;
    const Json* type = value.is_object() ? find_field(value, "type") : nullptr;
    const bool is_string = type != nullptr && *type == "string";
    // A text that spells no value of the other types is a string.
    const bool may_be_string =
        type != nullptr && type->is_array() && std::ranges::count(*type, Json("string")) > 0;
    const bool is_listed = value.is_object() && (value.contains("enum") || value.contains("const"));
    if (!is_string && (is_listed ? type != nullptr : !may_be_string)) {
      SLUICE_TRY_VOID(refuse("type", place));
    }
    if (value.is_object()) {
      const std::string other = other_keyword(value, kOfStrings);
      if (!other.empty()) SLUICE_TRY_VOID(refuse(other, place));
      const Json texts = texts_of(value);
      if (!texts.empty()) {
        Json choice = Json::array();
        for (const Json& text : texts) {
          choice.push_back({{"type", "const_string"}, {"value", text}});
        }
        part.push_back({{"type", "or"}, {"elements", std::move(choice)}});
        writer_.add(form_.value_end, part);
        return {};
      }
      if (is_listed) SLUICE_TRY_VOID(refuse("enum", place));
    }
    add_any_string(part);
    return {};
  }

  // What the string may be; empty: anything, or what cannot stand between tags.
  static Json texts_of(const Json& value) {
    Json texts = Json::array();
    const Json* list = find_field(value, "enum");
    const Json* constant = find_field(value, "const");
    if (list != nullptr && list->is_array() && constant == nullptr) texts = *list;
    if (constant != nullptr && list == nullptr) texts.push_back(*constant);
    const bool are_plain = std::ranges::all_of(texts, [](const Json& text) {
      return text.is_string() && !text.get_ref<const std::string&>().empty() &&
             text.get_ref<const std::string&>().find('<') == std::string::npos &&
             text.get_ref<const std::string&>().find('\n') == std::string::npos;
    });
    return are_plain ? texts : Json::array();
  }

  // What a value ends with wherever it stands; empty: a control token does.
  [[nodiscard]] std::string end_mark() const {
    if (form_.value_end.size() != 1) return {};
    const std::string& text = form_.value_end.front().text;
    const size_t first = text.find_first_not_of('\n');
    if (first == std::string::npos) return {};
    return text.substr(first, text.find_last_not_of('\n') + 1 - first);
  }

  // The line feed before the end is none of the value, so that text may go without.
  void add_any_string(Json& part) {
    const std::string mark = end_mark();
    if (mark.empty()) return writer_.add_free_text(form_.value_end, part);
    const std::string& text = form_.value_end.front().text;
    writer_.add_free_text({{.text = mark}}, part);
    writer_.add_text(text.substr(text.find(mark) + mark.size()), part);
  }

  const TaggedForm& form_;
  const std::string& tool_;
  const Json& schema_;
  const bool is_strict_;
  TagWriter& writer_;
};

}  // namespace

Expected<void> add_tagged_arguments(const TaggedForm& form,
                                    const std::string& tool,
                                    const Json& schema,
                                    bool is_strict,
                                    TagWriter& writer,
                                    Json& elements) {
  return ArgumentsWriter(form, tool, schema, is_strict, writer).add_to(elements);
}

}  // namespace sluice
