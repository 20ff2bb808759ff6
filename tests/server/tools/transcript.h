// SPDX-License-Identifier: Apache-2.0
// Outputs of models as tests write them: text in which the names of a vocabulary's special tokens
// are those tokens. Parsed whole, byte by byte, or cut anywhere.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/tokenizer/tokenizer.h"
#include "server/tools/output_parser.h"

namespace sluice {

// Bytes, and the given special tokens.
std::unique_ptr<Tokenizer> make_byte_tokenizer(std::span<const std::string_view> specials);

// A family's parser for one vocabulary.
struct TestFormat {
  std::unique_ptr<Tokenizer> tokenizer;
  std::shared_ptr<const OutputFormat> format;
  std::string calls;
  std::string reasoning;
  std::vector<std::string> specials;

  // Names as the flags take them; "": none.
  TestFormat(std::string_view call_family,
             std::string_view reasoning_family,
             std::span<const std::string_view> special_tokens);
};

// Tools of a request.
struct TestTools {
  std::shared_ptr<const ToolSchemas> schemas = nullptr;  // null: none
  nlohmann::ordered_json parameters = nullptr;           // JSON schemas by the tools' names
};

TestTools make_tools(const nlohmann::ordered_json& parameters);

struct Transcript {
  std::string text;
  std::string prompt_tail = {};
  FinishReason reason = FinishReason::kStop;
  TestTools tools = {};
  ParserOptions options = {};
};

// A part of an output that arrives as one token.
struct Chunk {
  TokenId token = 0;
  std::string_view bytes;
  bool is_special = false;
};

// Special tokens, and every byte between them on its own.
std::vector<Chunk> split_bytes(const TestFormat& format, std::string_view text);

// Neighbours of one kind joined.
Pieces joined(const Pieces& pieces);

// Parses `chunks`, with bytes of those between two of `cuts` (ascending indices into chunks) as one
// token: no special token is joined.
Pieces parse_cut(const TestFormat& format,
                 const Transcript& transcript,
                 std::span<const Chunk> chunks,
                 std::span<const size_t> cuts);

Pieces parse_whole(const TestFormat& format, const Transcript& transcript);

// Parses under single cuts (all, but in long texts a sample without SLUICE_FULL), pairs of them (a
// sample; all with SLUICE_FULL), byte by byte and under random cuts; expects that all give the
// same, and returns it. SLUICE_RECORD_TRANSCRIPTS names a file to which each transcript and its
// pieces are appended as a line of JSON, which bench/tool_peers.py reads.
Pieces parse_every_way(const TestFormat& format, const Transcript& transcript);

// "R{thought}C{text}0 name{"a": 1};1 other #id{...": reasoning, content, calls with their index;
// ';' is a call's end.
std::string describe(const Pieces& pieces);

}  // namespace sluice
