// SPDX-License-Identifier: Apache-2.0
#include "tests/server/tools/transcript.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <random>

#include "engine/tokenizer/text/byte_level.h"
#include "engine/tokenizer/text/utf8.h"
#include "tests/support/tier.h"

namespace sluice {

std::unique_ptr<Tokenizer> make_byte_tokenizer(std::span<const std::string_view> specials) {
  Vocabulary vocabulary;
  vocabulary.model = "gpt2";
  vocabulary.pre = "gpt-2";
  for (int byte = 0; byte < 256; ++byte) {
    vocabulary.tokens.push_back(spell_byte(static_cast<uint8_t>(byte)));
    vocabulary.token_types.push_back(TokenType::kNormal);
  }
  for (const std::string_view special : specials) {
    vocabulary.tokens.emplace_back(special);
    vocabulary.token_types.push_back(TokenType::kControl);
  }
  return std::move(create_tokenizer(std::move(vocabulary)).value());
}

TestFormat::TestFormat(std::string_view call_family,
                       std::string_view reasoning_family,
                       std::span<const std::string_view> special_tokens)
    : tokenizer(make_byte_tokenizer(special_tokens)),
      calls(call_family),
      reasoning(reasoning_family),
      specials(special_tokens.begin(), special_tokens.end()) {
  const CallFamily* call_row = calls.empty() ? nullptr : find_call_family(calls);
  const ReasoningFamily* reasoning_row =
      reasoning.empty() ? nullptr : find_reasoning_family(reasoning);
  EXPECT_TRUE(calls.empty() || call_row != nullptr) << calls;
  EXPECT_TRUE(reasoning.empty() || reasoning_row != nullptr) << reasoning;
  format = resolve_format(call_row, reasoning_row, *tokenizer);
}

TestTools make_tools(const nlohmann::ordered_json& parameters) {
  auto schemas = std::make_shared<ToolSchemas>();
  for (const auto& [name, schema] : parameters.items()) schemas->add(name, schema);
  return {std::move(schemas), parameters};
}

std::vector<Chunk> split_bytes(const TestFormat& format, std::string_view text) {
  const Tokenizer& tokenizer = *format.tokenizer;
  std::vector<Chunk> chunks;
  for (size_t at = 0; at < text.size();) {
    TokenId found = kInvalidToken;
    size_t length = 0;
    for (TokenId id = 256; id < tokenizer.vocab_size(); ++id) {
      const std::string_view name = tokenizer.token_bytes(id);
      if (name.size() > length && text.substr(at).starts_with(name)) {
        found = id;
        length = name.size();
      }
    }
    if (found != kInvalidToken) {
      chunks.push_back({found, text.substr(at, length), true});
      at += length;
    } else {
      chunks.push_back({static_cast<uint8_t>(text[at]), text.substr(at, 1), false});
      ++at;
    }
  }
  return chunks;
}

Pieces joined(const Pieces& pieces) {
  Pieces result;
  for (const Piece& piece : pieces) {
    const bool is_text = piece.kind != PieceKind::kCallBegin && piece.kind != PieceKind::kCallEnd;
    if (is_text) {
      append_text(result, piece.kind, piece.call_idx, piece.text);
    } else {
      result.push_back(piece);
    }
  }
  return result;
}

Pieces parse_cut(const TestFormat& format,
                 const Transcript& transcript,
                 std::span<const Chunk> chunks,
                 std::span<const size_t> cuts) {
  OutputParser parser(
      format.format, transcript.tools.schemas, transcript.prompt_tail, transcript.options);
  Pieces pieces;
  size_t next_cut = 0;
  for (size_t at = 0; at < chunks.size();) {
    while (next_cut < cuts.size() && cuts[next_cut] <= at) ++next_cut;
    const size_t limit =
        next_cut < cuts.size() ? std::min(cuts[next_cut], chunks.size()) : chunks.size();
    size_t end = at + 1;
    while (!chunks[at].is_special && end < limit && !chunks[end].is_special) ++end;
    const std::string_view bytes(chunks[at].bytes.data(),
                                 chunks[end - 1].bytes.end() - chunks[at].bytes.begin());
    Pieces delta;
    parser.feed(chunks[at].token, bytes, chunks[at].is_special, delta);
    for (const Piece& piece : delta) {
      EXPECT_EQ(find_invalid_utf8(piece.text, 0), piece.text.size());
    }
    pieces.insert(pieces.end(), delta.begin(), delta.end());
    at = end;
  }
  parser.finish(transcript.reason, pieces);
  return joined(pieces);
}

Pieces parse_whole(const TestFormat& format, const Transcript& transcript) {
  return parse_cut(format, transcript, split_bytes(format, transcript.text), {});
}

namespace {

void record(const TestFormat& format, const Transcript& transcript, const Pieces& pieces) {
  const char* path = std::getenv("SLUICE_RECORD_TRANSCRIPTS");
  if (path == nullptr) return;
  using Json = nlohmann::ordered_json;
  Json list = Json::array();
  for (const Piece& piece : pieces) {
    constexpr const char* kNames[] = {"reasoning", "content", "call", "arguments", "end"};
    list.push_back({kNames[static_cast<int>(piece.kind)], piece.text, piece.model_id});
  }
  const Json line = {{"calls", format.calls},
                     {"reasoning", format.reasoning},
                     {"specials", format.specials},
                     {"text", transcript.text},
                     {"prompt_tail", transcript.prompt_tail},
                     {"is_cut", transcript.reason == FinishReason::kLength},
                     {"parses_calls", transcript.options.parse_calls},
                     {"tools", transcript.tools.parameters},
                     {"pieces", list}};
  std::ofstream(path, std::ios::app)
      << line.dump(-1, ' ', false, Json::error_handler_t::replace) << "\n";
}

}  // namespace

Pieces parse_every_way(const TestFormat& format, const Transcript& transcript) {
  const std::vector<Chunk> chunks = split_bytes(format, transcript.text);
  const size_t count = chunks.size();
  const Pieces whole = parse_cut(format, transcript, chunks, {});
  int num_differences = 0;
  const auto check = [&](std::vector<size_t> cuts) {
    std::ranges::sort(cuts);
    if (parse_cut(format, transcript, chunks, cuts) != whole) ++num_differences;
  };
  std::vector<size_t> all(count);
  for (size_t i = 0; i < count; ++i) all[i] = i;
  check(all);
  std::mt19937 random(static_cast<uint32_t>(count * 7919));
  const bool is_full = testing::is_full();
  const size_t stride = is_full || count <= 120 ? 1 : count / 60;
  for (size_t i = 1 + random() % stride; i < count; i += stride) check({i});
  if (is_full) {
    for (size_t i = 1; i < count; ++i) {
      for (size_t j = i + 1; j < count; ++j) check({i, j});
    }
  } else {
    for (int i = 0; i < 30 && count > 2; ++i)
      check({1 + random() % (count - 1), 1 + random() % (count - 1)});
  }
  for (int i = 0; i < 10; ++i) {
    std::vector<size_t> cuts;
    const uint32_t every = 2 + random() % 12;
    for (size_t at = 1; at < count; ++at) {
      if (random() % every == 0) cuts.push_back(at);
    }
    check(cuts);
  }
  EXPECT_EQ(num_differences, 0) << transcript.text;
  record(format, transcript, whole);
  return whole;
}

std::string describe(const Pieces& pieces) {
  std::string text;
  for (const Piece& piece : pieces) {
    switch (piece.kind) {
      case PieceKind::kReasoning:
        text += "R{" + piece.text + "}";
        break;
      case PieceKind::kContent:
        text += "C{" + piece.text + "}";
        break;
      case PieceKind::kCallBegin:
        text += std::to_string(piece.call_idx) + " " + piece.text;
        if (!piece.model_id.empty()) text += " #" + piece.model_id;
        text += " ";
        break;
      case PieceKind::kArguments:
        text += piece.text;
        break;
      case PieceKind::kCallEnd:
        text += ";";
        break;
    }
  }
  return text;
}

}  // namespace sluice
