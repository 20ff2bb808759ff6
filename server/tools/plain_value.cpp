// SPDX-License-Identifier: Apache-2.0
#include "server/tools/plain_value.h"

#include <optional>
#include <string>

#include "server/tools/json_text.h"
#include "server/tools/literal_value.h"

namespace sluice {
namespace {

// Python's spelling of what JSON has, too; empty: none.
std::string_view json_word(std::string_view text, JsonTypes types) {
  if (text == "True" && (types & kJsonBoolean) != 0) return "true";
  if (text == "False" && (types & kJsonBoolean) != 0) return "false";
  if (text == "None" && (types & kJsonNull) != 0) return "null";
  return {};
}

// JSON of a list or dictionary as Python writes it.
std::optional<std::string> json_of_python(std::string_view text) {
  if (text.empty() || std::string_view("[{(").find(text[0]) == std::string_view::npos) return {};
  Pieces pieces;
  PieceWriter out;
  out.write_to(&pieces);
  const ArgumentWriter arguments;
  LiteralValue value(LiteralValue::Dialect::kPython);
  LiteralValue::Place place = LiteralValue::Place::kInside;
  for (const char c : text) {
    if (place != LiteralValue::Place::kInside) return {};
    place = value.feed(c, arguments, out);
  }
  out.flush();
  if (place != LiteralValue::Place::kLast) return {};
  std::string json;
  for (const Piece& piece : pieces) json += piece.text;
  return json_type(json) ? std::optional(json) : std::nullopt;
}

bool allows(JsonTypes types, JsonTypes type) {
  constexpr JsonTypes kNumbers = kJsonInteger | kJsonNumber;
  return (types & ((type & kNumbers) != 0 ? kNumbers : type)) != 0;
}

}  // namespace

void write_plain(std::string_view text,
                 JsonTypes types,
                 const ArgumentWriter& arguments,
                 PieceWriter& out) {
  const std::string_view value = without_space_around(text);
  const std::optional<JsonTypes> type = json_type(value);
  // A string among other types is written without quotes, so that quotes are part of it.
  const bool is_text = type == kJsonString && types != kJsonAny && (types & kJsonString) != 0;
  const bool may_be_text = (types & kJsonString) != 0;
  if (type && !is_text && (allows(types, *type) || !may_be_text)) {
    arguments.raw(value, out);
    return;
  }
  const std::string_view word = types == kJsonAny ? "" : json_word(value, types);
  if (!word.empty()) {
    arguments.raw(word, out);
    return;
  }
  if (!may_be_text && (types & (kJsonObject | kJsonArray)) != 0) {
    if (const std::optional<std::string> json = json_of_python(value)) {
      arguments.raw(*json, out);
      return;
    }
  }
  arguments.raw("\"", out);
  arguments.escaped(text, out);
  arguments.raw("\"", out);
}

}  // namespace sluice
