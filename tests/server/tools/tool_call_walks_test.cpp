// SPDX-License-Identifier: Apache-2.0
// Random texts that the grammar of each family's calls allows, and what the parser reads in them.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "server/tools/output_format.h"
#include "server/tools/tool_call_grammar.h"
#include "tests/server/tools/tool_call_rig.h"
#include "tests/server/tools/transcript.h"
#include "tests/support/byte_grammar.h"

namespace sluice {
namespace {

using testing::compile;

using Json = nlohmann::ordered_json;

// Ends where it can, three times of four; otherwise any byte that may come next.
std::string random_walk(const Grammar& grammar, std::mt19937& random) {
  constexpr size_t kLongest = 20'000;
  const auto matcher = grammar.match();
  std::string text;
  while (text.size() < kLongest) {
    const std::vector<TokenId> allowed = testing::allowed_tokens(*matcher);
    if (allowed.empty()) break;
    const bool can_end = std::ranges::count(allowed, testing::kByteEnd) > 0;
    if (can_end && (allowed.size() == 1 || random() % 4 != 0)) return text;
    TokenId next = testing::kByteEnd;
    while (next == testing::kByteEnd) next = allowed[random() % allowed.size()];
    EXPECT_TRUE(matcher->accept(next));
    text += static_cast<char>(next);
  }
  ADD_FAILURE() << "no end: " << text.substr(0, 500);
  return text;
}

// A schema without text that only its end marker ends, which a walk would not find.
constexpr const char* kWeather =
    R"({"type":"object","properties":{"city":{"type":"string","enum":["Paris","Rome \"x\""]},)"
    R"("days":{"type":"integer","minimum":1,"maximum":9},"units":{"type":"array","items":)"
    R"({"type":"boolean"}},"at":{"type":"object","properties":{"x":{"type":"integer"},)"
    R"("y":{"type":"null"}}},"now":{"type":"boolean"}},"required":["days"]})";

void expect_weather(const Json& arguments) {
  ASSERT_TRUE(arguments.is_object()) << arguments;
  ASSERT_TRUE(arguments.contains("days")) << arguments;
  EXPECT_TRUE(arguments["days"] >= 1 && arguments["days"] <= 9) << arguments;
  for (const auto& [key, value] : arguments.items()) {
    if (key == "city") {
      EXPECT_TRUE(value == "Paris" || value == "Rome \"x\"") << value;
    } else if (key == "units") {
      EXPECT_TRUE(value.is_array() && std::ranges::all_of(value, &Json::is_boolean)) << value;
    } else if (key == "at") {
      ASSERT_TRUE(value.is_object()) << value;
      EXPECT_TRUE(value.value("x", Json(0)).is_number() && value.value("y", Json()).is_null());
    } else if (key == "now") {
      EXPECT_TRUE(value.is_boolean()) << value;
    } else {
      EXPECT_EQ(key, "days") << arguments;
    }
  }
}

// Each family's grammar allows only calls, with arguments of the schema.
TEST(ToolCallGrammar, WhatIsForcedIsParsed) {
  const auto tokenizer = make_byte_tokenizer({});
  auto schemas = std::make_shared<ToolSchemas>();
  schemas->add("weather", Json::parse(kWeather));
  const std::vector<CallableTool> list = {
      {"weather", kWeather}, {"now", R"({"type":"object","additionalProperties":false})"}};
  for (const CallFamily& family : call_families()) {
    SCOPED_TRACE(family.name);
    const auto grammar = compile(tool_call_grammar(call_form(family, *tokenizer), list, {}));
    ASSERT_NE(grammar, nullptr);
    std::mt19937 random(3);
    for (int i = 0; i < 30; ++i) {
      const std::string text = random_walk(*grammar, random);
      SCOPED_TRACE(text);
      const std::string_view tail = family.prompt_begins_call() ? ">>>" : "";
      OutputParser parser(resolve_format(&family, nullptr, *tokenizer), schemas, tail, {});
      Pieces pieces;
      for (const char c : text) {
        parser.feed(static_cast<uint8_t>(c), std::string_view(&c, 1), false, pieces);
      }
      parser.finish(FinishReason::kStop, pieces);
      std::string name;
      int num_ended = 0;
      for (const Piece& piece : joined(pieces)) {
        ASSERT_NE(piece.kind, PieceKind::kContent) << piece.text;
        if (piece.kind == PieceKind::kCallBegin) name = piece.text;
        if (piece.kind == PieceKind::kCallEnd) ++num_ended;
        if (piece.kind != PieceKind::kArguments) continue;
        const Json arguments = Json::parse(piece.text, nullptr, false);
        if (name == "now") {
          EXPECT_EQ(arguments, Json::object());
        } else {
          EXPECT_EQ(name, "weather");
          expect_weather(arguments);
        }
      }
      EXPECT_GE(num_ended, 1);
      if (HasFailure()) return;
    }
  }
}

}  // namespace
}  // namespace sluice
