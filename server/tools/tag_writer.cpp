// SPDX-License-Identifier: Apache-2.0
#include "server/tools/tag_writer.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

namespace sluice {
namespace {

// Runs of white space between the tokens of JSON, in which models without a bound stay for ever.
constexpr int kMaxWhitespace = 16;
// About the bytes of memory of a value without its text.
constexpr int64_t kValueBytes = 64;

int64_t bytes_of(const nlohmann::ordered_json& json) {
  int64_t bytes = kValueBytes;
  if (json.is_string()) {
    bytes += static_cast<int64_t>(json.get_ref<const std::string&>().size());
  } else if (json.is_array()) {
    for (const auto& element : json) bytes += bytes_of(element);
  } else if (json.is_object()) {
    for (const auto& [key, value] : json.items()) {
      bytes += static_cast<int64_t>(key.size()) + bytes_of(value);
    }
  }
  return bytes;
}

}  // namespace

Expected<void> TagWriter::spend(const Json& part) { return spend(bytes_of(part)); }

Expected<void> TagWriter::spend(int64_t bytes) {
  room_ -= bytes;
  if (room_ >= 0) return {};
  return make_error(ErrorCode::kInvalidArgument,
                    "The schemas of the tools become too large a grammar; have fewer optional "
                    "parameters, or references to definitions, in the tools of one request.",
                    "tools");
}

void TagWriter::note(TokenId token) {
  auto& tokens = spec_.control_tokens;
  const auto place = std::ranges::lower_bound(tokens, token);
  if (place == tokens.end() || *place != token) tokens.insert(place, token);
}

void TagWriter::add_text(std::string_view text, Json& elements) const {
  if (text.empty()) return;
  if (!elements.empty() && elements.back()["type"] == "const_string") {
    elements.back()["value"].get_ref<std::string&>().append(text);
  } else {
    elements.push_back({{"type", "const_string"}, {"value", std::string(text)}});
  }
}

void TagWriter::add(const CallPieces& pieces, Json& elements) {
  for (const CallPiece& piece : pieces) {
    if (piece.kind == CallPiece::Kind::kNumber) {
      elements.push_back({{"type", "regex"}, {"pattern", "0|[1-9][0-9]{0,3}"}});
      continue;
    }
    if (piece.token == kInvalidToken) {
      add_text(piece.text, elements);
      continue;
    }
    elements.push_back({{"type", "token"}, {"token", piece.token}});
    note(piece.token);
  }
}

void TagWriter::add_free_text(const CallPieces& end, Json& elements) {
  const Json any = {{"type", "any_text"}};
  // A token ends the text anywhere, text alone at its first occurrence.
  const bool has_token =
      std::ranges::any_of(end, [](const CallPiece& piece) { return piece.token != kInvalidToken; });
  if (has_token) {
    elements.push_back(any);
    add(end, elements);
    return;
  }
  elements.push_back({{"type", "tag"}, {"begin", ""}, {"content", any}, {"end", end[0].text}});
}

void TagWriter::add_text_with(const CallPiece& marker,
                              std::vector<std::string> excluded,
                              Json behind,
                              bool repeats,
                              Json& elements) {
  // A control token is in no text that does not name it.
  if (marker.token == kInvalidToken) excluded.push_back(marker.text);
  const Json text = {{"type", "any_text"}, {"excludes", std::move(excluded)}};
  Json part = Json::array({text});
  add({marker}, part);
  part.push_back(std::move(behind));
  part = sequence(std::move(part));
  if (repeats) {
    elements.push_back({{"type", "star"}, {"content", std::move(part)}});
    elements.push_back(text);
  } else {
    elements.push_back({{"type", "or"}, {"elements", Json::array({std::move(part), text})}});
  }
}

void TagWriter::add_format(const GrammarSpec& format, Json& elements) const {
  Json schema = Json::object({{"type", "object"}});
  if (format.kind == GrammarKind::kJsonSchema) schema = Json::parse(format.text);
  add_json(
      std::move(schema), {.is_exact = !format.is_best_effort, .owner = format.param}, elements);
}

void TagWriter::add_json(Json schema, const JsonRules& rules, Json& elements) const {
  elements.push_back({{"type", "json_schema"},
                      {"json_schema", std::move(schema)},
                      {"is_best_effort", !rules.is_exact},
                      {"owner", rules.owner},
                      {"max_whitespace_cnt", kMaxWhitespace}});
  if (!rules.excluded.empty()) elements.back()["excludes"] = Json::array({rules.excluded});
}

void TagWriter::add_optional(Json part, Json& elements) const {
  if (part.empty()) return;
  elements.push_back({{"type", "optional"}, {"content", sequence(std::move(part))}});
}

TagWriter::Json TagWriter::choice(Json elements) {
  if (elements.size() == 1) return std::move(elements[0]);
  return {{"type", "or"}, {"elements", std::move(elements)}};
}

TagWriter::Json TagWriter::sequence(Json elements) {
  if (elements.empty()) return {{"type", "const_string"}, {"value", ""}};
  if (elements.size() == 1) return std::move(elements[0]);
  return {{"type", "sequence"}, {"elements", std::move(elements)}};
}

}  // namespace sluice
