// SPDX-License-Identifier: Apache-2.0
#include "server/tools/tagged_arguments.h"

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

constexpr std::array<std::string_view, 2> kOfStrings = {"enum", "const"};

bool can_be_tagged(std::string_view key) {
  return !key.empty() && key.find_first_of("<>\"\n") == std::string_view::npos;
}

class ArgumentsWriter {
 public:
  ArgumentsWriter(const TaggedForm& form,
                  const ArgumentRules& rules,
                  const Json& schema,
                  TagWriter& writer)
      : form_(form), rules_(rules), schema_(schema), writer_(writer) {}

  Expected<void> add_to(Json& elements) {
    SLUICE_TRY(const std::vector<Argument> arguments,
               arguments_of(schema_, "#", rules_, can_be_tagged));
    for (const Argument& argument : arguments) {
      SLUICE_TRY(Json part, property(argument.key, *argument.schema));
      if (argument.is_required) {
        elements.push_back(TagWriter::sequence(std::move(part)));
      } else {
        writer_.add_optional(std::move(part), elements);
      }
    }
    return {};
  }

 private:
  Expected<Json> property(const std::string& key, const Json& value) {
    Json part = Json::array();
    name_in_end(key);
    writer_.add(form_.key_begin, part);
    writer_.add_text(key, part);
    if (is_json(value)) {
      add_json_key_end(value, part);
      SLUICE_TRY(Json whole, with_definitions(value, schema_, writer_));
      writer_.add_json(
          std::move(whole),
          {.is_exact = rules_.is_strict, .owner = rules_.owner_of(key), .excluded = end_mark()},
          part);
      writer_.add(value_end_, part);
      return part;
    }
    writer_.add(form_.key_end, part);
    SLUICE_TRY_VOID(add_string(key, value, part));
    return part;
  }

  void name_in_end(const std::string& key) {
    value_end_.clear();
    for (const CallPiece& piece : form_.value_end) {
      const CallPiece one = piece.kind == CallPiece::Kind::kKey ? CallPiece{.text = key} : piece;
      if (!one.text.empty() && !value_end_.empty() && !value_end_.back().text.empty()) {
        value_end_.back().text += one.text;
      } else {
        value_end_.push_back(one);
      }
    }
  }

  // The value's types are known, and do not include string.
  static bool is_json(const Json& value) {
    const Json* type = value.is_object() ? find_field(value, "type") : nullptr;
    if (type == nullptr) return false;
    if (type->is_string()) return *type != "string";
    return type->is_array() && !type->empty() && std::ranges::count(*type, Json("string")) == 0;
  }

  void add_json_key_end(const Json& value, Json& part) {
    for (const CallPiece& piece : form_.json_key_end) {
      if (piece.kind != CallPiece::Kind::kJsonType) {
        writer_.add({piece}, part);
        continue;
      }
      const Json& types = value["type"];
      Json names = Json::array();
      for (const Json& type : types.is_array() ? types : Json::array({types})) {
        names.push_back({{"type", "const_string"}, {"value", type}});
      }
      part.push_back({{"type", "or"}, {"elements", std::move(names)}});
    }
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
      SLUICE_TRY_VOID(rules_.refuse("type", place));
    }
    if (value.is_object()) {
      const std::string other = other_keyword(value, kOfStrings);
      if (!other.empty()) SLUICE_TRY_VOID(rules_.refuse(other, place));
      const Json texts = texts_of(value);
      if (!texts.empty()) {
        Json choice = Json::array();
        for (const Json& text : texts) {
          choice.push_back({{"type", "const_string"}, {"value", text}});
        }
        part.push_back({{"type", "or"}, {"elements", std::move(choice)}});
        writer_.add(value_end_, part);
        return {};
      }
      if (is_listed) SLUICE_TRY_VOID(rules_.refuse("enum", place));
    }
    add_any_string(part);
    return {};
  }

  // What the string may be; empty: anything, or what cannot be between tags.
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

  // What ends a value wherever it occurs; empty: a control token does.
  [[nodiscard]] std::string end_mark() const {
    if (value_end_.size() != 1) return {};
    const std::string& text = value_end_.front().text;
    const size_t first = text.find_first_not_of('\n');
    if (first == std::string::npos) return {};
    return text.substr(first, text.find_last_not_of('\n') + 1 - first);
  }

  // The line feed before the end is not part of the value, so text may omit it.
  void add_any_string(Json& part) {
    const std::string mark = end_mark();
    if (mark.empty()) return writer_.add_free_text(value_end_, part);
    const std::string& text = value_end_.front().text;
    writer_.add_free_text({{.text = mark}}, part);
    writer_.add_text(text.substr(text.find(mark) + mark.size()), part);
  }

  const TaggedForm& form_;
  CallPieces value_end_ = {};  // of the property that is written
  const ArgumentRules& rules_;
  const Json& schema_;
  TagWriter& writer_;
};

}  // namespace

Expected<void> add_tagged_arguments(const TaggedForm& form,
                                    const ArgumentRules& rules,
                                    const Json& schema,
                                    TagWriter& writer,
                                    Json& elements) {
  return ArgumentsWriter(form, rules, schema, writer).add_to(elements);
}

}  // namespace sluice
