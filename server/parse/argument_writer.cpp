// SPDX-License-Identifier: Apache-2.0
#include "server/parse/argument_writer.h"

#include "server/parse/json_text.h"
#include "server/parse/parse_limits.h"

namespace sluice {
namespace {

// Python's spelling of what JSON has, too; empty: none.
std::string_view json_word(std::string_view text, JsonTypes types) {
  if (text == "True" && (types & kJsonBoolean) != 0) return "true";
  if (text == "False" && (types & kJsonBoolean) != 0) return "false";
  if (text == "None" && (types & kJsonNull) != 0) return "null";
  return {};
}

bool allows(JsonTypes types, JsonTypes type) {
  constexpr JsonTypes kNumbers = kJsonInteger | kJsonNumber;
  return (types & ((type & kNumbers) != 0 ? kNumbers : type)) != 0;
}

}  // namespace

void ArgumentWriter::begin_value(std::string_view key, PieceWriter& out) {
  const bool is_first = keys_.empty();
  is_dropped_ = keys_.size() == kMaxParameters || !keys_.insert(std::string(key)).second;
  if (is_dropped_) return;
  std::string json = is_first ? "{\"" : ", \"";
  append_json_escaped(key, json);
  json += "\": ";
  out.arguments(json);
}

void ArgumentWriter::raw(std::string_view json, PieceWriter& out) const {
  if (!is_dropped_) out.arguments(json);
}

void ArgumentWriter::escaped(std::string_view bytes, PieceWriter& out) const {
  if (is_dropped_) return;
  std::string json;
  append_json_escaped(bytes, json);
  out.arguments(json);
}

void ArgumentWriter::plain(std::string_view text, JsonTypes types, PieceWriter& out) const {
  const std::string_view value = trimmed(text);
  const std::optional<JsonTypes> type = json_type(value);
  // A string among other types is written without quotes, so that quotes are part of it.
  const bool is_text = type == kJsonString && types != kJsonAny && (types & kJsonString) != 0;
  const bool may_be_text = (types & kJsonString) != 0;
  if (type && !is_text && (allows(types, *type) || !may_be_text)) {
    raw(value, out);
    return;
  }
  const std::string_view word = types == kJsonAny ? "" : json_word(value, types);
  if (!word.empty()) {
    raw(word, out);
    return;
  }
  raw("\"", out);
  escaped(text, out);
  raw("\"", out);
}

void ArgumentWriter::end(PieceWriter& out) const { out.arguments(keys_.empty() ? "{}" : "}"); }

}  // namespace sluice
