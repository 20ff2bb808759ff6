// SPDX-License-Identifier: Apache-2.0
// Outputs of models under two ways to cut them, for every family: the same pieces, which are valid
// UTF-8, whole calls, and, where no call began, all of the text. Markers of the family are parts of
// the input, so that calls are found. SLUICE_FUZZ_MECHANISM: the index of an alternative of
// Mechanism, whose families alone are tried.
#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <iterator>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/core/status.h"
#include "engine/tokenizer/text/byte_level.h"
#include "engine/tokenizer/text/utf8.h"
#include "server/tools/json_text.h"
#include "server/tools/output_format.h"
#include "server/tools/output_parser.h"
#include "server/tools/parse_limits.h"
#include "tests/fuzz/target.h"

namespace sluice {
namespace {

// A vocabulary of bytes, with or without the families' markers as special tokens.
std::unique_ptr<Tokenizer> make_tokenizer(bool has_specials) {
  Vocabulary vocabulary;
  vocabulary.model = "gpt2";
  vocabulary.pre = "gpt-2";
  for (int byte = 0; byte < 256; ++byte) {
    vocabulary.tokens.push_back(spell_byte(static_cast<uint8_t>(byte)));
    vocabulary.token_types.push_back(TokenType::kNormal);
  }
  std::vector<std::string> names = {"<|pad|>", "｜DSML｜"};
  for (const CallFamily& family : call_families()) {
    for (const MarkerText& marker : family.markers) names.emplace_back(marker.text);
  }
  std::ranges::sort(names);
  names.erase(std::unique(names.begin(), names.end()), names.end());
  for (const std::string& name : names) {
    if (!has_specials || name.size() < 5 || name.find_first_of(" \n") != std::string::npos)
      continue;
    vocabulary.tokens.push_back(name);
    vocabulary.token_types.push_back(TokenType::kControl);
  }
  return std::move(create_tokenizer(std::move(vocabulary)).value());
}

// Those that the environment names; else all.
std::vector<const CallFamily*> chosen_families() {
  const char* mechanism = std::getenv("SLUICE_FUZZ_MECHANISM");
  std::vector<const CallFamily*> families;
  for (const CallFamily& family : call_families()) {
    const std::string number = std::to_string(family.mechanism.index());
    if (mechanism == nullptr || number == mechanism) families.push_back(&family);
  }
  CHECK(!families.empty());
  return families;
}

struct Part {
  TokenId token = 0;
  std::string bytes;
  bool is_special = false;
};

Pieces parse(const std::shared_ptr<const OutputFormat>& format,
             const std::vector<Part>& parts,
             std::string_view tail,
             const ParserOptions& options,
             FinishReason reason,
             size_t joins) {
  OutputParser parser(format, nullptr, tail, options);
  Pieces pieces;
  for (size_t at = 0; at < parts.size();) {
    std::string bytes = parts[at].bytes;
    size_t end = at + 1;
    while (!parts[at].is_special && end < parts.size() && !parts[end].is_special &&
           (joins >> (end % 64) & 1) != 0) {
      bytes += parts[end++].bytes;
    }
    Pieces delta;
    parser.feed(parts[at].token, bytes, parts[at].is_special, delta);
    for (const Piece& piece : delta) {
      CHECK_EQ(find_invalid_utf8(piece.text, 0), piece.text.size());
      CHECK_EQ(find_invalid_utf8(piece.model_id, 0), piece.model_id.size());
    }
    pieces.insert(
        pieces.end(), std::make_move_iterator(delta.begin()), std::make_move_iterator(delta.end()));
    at = end;
    if (joins % 16 == 3) {
      const OutputParser copy = parser;
      parser = copy;
    }
  }
  parser.finish(reason, pieces);
  Pieces joined;
  for (const Piece& piece : pieces) {
    if (piece.kind == PieceKind::kCallBegin || piece.kind == PieceKind::kCallEnd) {
      joined.push_back(piece);
    } else {
      append_text(joined, piece.kind, piece.call_idx, piece.text);
    }
  }
  return joined;
}

// Calls are numbered, never interleave, and have one end at most, which only the last may lack.
void check_order(const Pieces& pieces, FinishReason reason) {
  int32_t begun = 0;
  bool is_open = false;
  for (const Piece& piece : pieces) {
    switch (piece.kind) {
      case PieceKind::kReasoning:
      case PieceKind::kContent:
        CHECK(!is_open && piece.call_idx == -1 && !piece.text.empty());
        break;
      case PieceKind::kCallBegin:
        CHECK(!is_open && piece.call_idx == begun && !piece.text.empty());
        is_open = true;
        ++begun;
        break;
      case PieceKind::kArguments:
        CHECK(is_open && piece.call_idx == begun - 1);
        break;
      case PieceKind::kCallEnd:
        CHECK(is_open && piece.call_idx == begun - 1);
        is_open = false;
        break;
    }
  }
  CHECK(begun <= kMaxCalls);
  CHECK(!is_open || reason != FinishReason::kStop);
}

// Letters of the text but white space and what markers of reasoning may hold.
std::string visible(std::string_view text) {
  std::string letters;
  for (const char c : text) {
    if (!is_json_space(c)) letters += c;
  }
  return letters;
}

// Bytes from 0xE0 on are markers of the family, or usual parts of calls. `all`: the text without
// special tokens.
std::vector<Part> parts_of(std::span<const uint8_t> bytes,
                           const OutputFormat& format,
                           const Tokenizer& tokenizer,
                           std::string& all) {
  constexpr std::string_view kUsual[] = {"{\"name\": \"f\", \"arguments\": {",
                                         "\"a\": \"",
                                         "call:f{",
                                         "f(a=",
                                         "\"\"\"",
                                         "\\ud83d\\ude00",
                                         "😀",
                                         "é"};
  std::vector<Part> parts;
  for (const uint8_t byte : bytes) {
    std::string text(1, static_cast<char>(byte));
    if (byte >= 0xE0) {
      const size_t idx = byte - 0xE0u;
      text = idx < format.markers().size() ? format.markers()[idx].text
                                           : kUsual[idx % std::size(kUsual)];
    }
    const TokenId token = text.size() > 1 ? tokenizer.find_token(text) : kInvalidToken;
    if (token != kInvalidToken && tokenizer.is_special(token)) {
      parts.push_back({token, text, true});
      continue;
    }
    all += text;
    for (const char c : text) parts.push_back({static_cast<uint8_t>(c), std::string(1, c), false});
  }
  return parts;
}

// A text without calls and markers of reasoning is all there, but for the markup of a call that is
// cut before its name has ended: it begins with a marker and goes to the end.
void check_nothing_is_lost(const Pieces& pieces,
                           std::string_view all,
                           const OutputFormat& format,
                           FinishReason reason) {
  std::string found;
  for (const Piece& piece : pieces) found += piece.text;
  found = visible(found);
  const std::string wanted = visible(all);
  if (found == wanted) return;
  const bool is_cut =
      reason == FinishReason::kLength && wanted.starts_with(found) &&
      std::ranges::any_of(format.markers(), [&](const auto& marker) {
        return std::string_view(wanted).substr(found.size()).starts_with(visible(marker.text));
      });
  // A list without calls stands for none, with its markers.
  CHECK(is_cut || all.find("[") != std::string_view::npos);
}

}  // namespace
}  // namespace sluice

static int tool_parser_input(const uint8_t* data, size_t size) {
  using namespace sluice;
  static const std::unique_ptr<Tokenizer> plain = make_tokenizer(false);
  static const std::unique_ptr<Tokenizer> special = make_tokenizer(true);
  if (size < 4) return 0;
  static const std::vector<const CallFamily*> families = chosen_families();
  const CallFamily& calls = *families[data[0] % families.size()];
  const size_t num_reasoning = reasoning_families().size();
  const size_t reasoning_idx = data[1] % (num_reasoning + 1);
  const ReasoningFamily* reasoning =
      reasoning_idx == num_reasoning ? nullptr : &reasoning_families()[reasoning_idx];
  const uint8_t flags = data[2];
  const Tokenizer& tokenizer = (flags & 1) != 0 ? *special : *plain;
  const ParserOptions options{.parse_calls = (flags & 6) != 0,
                              .skip_special_tokens = (flags & 8) == 0};
  const FinishReason reason = (flags & 16) != 0 ? FinishReason::kStop : FinishReason::kLength;
  constexpr std::string_view kTails[] = {"",
                                         "<think>\n",
                                         "</think>",
                                         "<|start|>assistant",
                                         "<|start|>assistant<|channel|>final<|message|>",
                                         "<|open|>think<|sep|>",
                                         ">>>",
                                         "[THINK]"};
  const std::string_view tail = kTails[flags >> 5];
  static std::map<std::array<const void*, 3>, std::shared_ptr<const OutputFormat>> formats;
  std::shared_ptr<const OutputFormat>& format = formats[{&calls, reasoning, &tokenizer}];
  if (format == nullptr) format = resolve_format(&calls, reasoning, tokenizer);

  std::string all;
  const std::vector<Part> parts =
      parts_of(std::span(data, std::min<size_t>(size, 4096)).subspan(3), *format, tokenizer, all);
  uint64_t joins = 0x9E3779B97F4A7C15u * (size + data[size - 1]);
  const Pieces whole = parse(format, parts, tail, options, reason, ~size_t{0});
  CHECK(parse(format, parts, tail, options, reason, 0) == whole);
  CHECK(parse(format, parts, tail, options, reason, joins) == whole);
  check_order(whole, reason);

  // Nothing is lost where nothing was found: no call, and no marker of reasoning to leave out.
  const bool has_call = std::ranges::any_of(
      whole, [](const Piece& piece) { return piece.kind == PieceKind::kCallBegin; });
  const auto* json = std::get_if<JsonCalls>(&calls.mechanism);
  const bool says_none =
      calls.prompt_begins_call() || (json != nullptr && !json->no_call_name.empty() &&
                                     all.find(json->no_call_name) != std::string::npos);
  if (has_call || reasoning != nullptr || calls.has_channels() || says_none ||
      !options.skip_special_tokens || find_invalid_utf8(all, 0) != all.size() || (flags & 1) != 0) {
    return 0;
  }
  check_nothing_is_lost(whole, all, *format, reason);
  return 0;
}

const sluice::fuzz::Target tool_parser_target("tool_parser_fuzz", tool_parser_input);
