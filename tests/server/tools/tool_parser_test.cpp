// SPDX-License-Identifier: Apache-2.0
// What parsers of other servers got wrong, one test for each kind of fault.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <tuple>

#include "server/tools/marker_scanner.h"
#include "server/tools/output_format.h"
#include "server/tools/parse_limits.h"
#include "tests/server/tools/call_generator.h"
#include "tests/server/tools/transcript.h"

namespace sluice {
namespace {

using Json = nlohmann::ordered_json;

std::string parse(const TestFormat& format, const Transcript& transcript) {
  return describe(parse_every_way(format, transcript));
}

TestTools tools_of(std::string_view name, std::string_view parameters) {
  return make_tools({{name, Json::parse(parameters)}});
}

TEST(Pieces, TextIsJoinedWithinOneKindAndCall) {
  Pieces pieces;
  append_text(pieces, PieceKind::kArguments, 0, "{");
  append_text(pieces, PieceKind::kArguments, 0, "}");
  append_text(pieces, PieceKind::kArguments, 1, "[]");  // no end between the two
  append_text(pieces, PieceKind::kContent, -1, "");
  append_text(pieces, PieceKind::kReasoning, -1, "a");
  append_text(pieces, PieceKind::kContent, -1, "b");
  EXPECT_EQ(pieces,
            Pieces({{PieceKind::kArguments, 0, "{}", ""},
                    {PieceKind::kArguments, 1, "[]", ""},
                    {PieceKind::kReasoning, -1, "a", ""},
                    {PieceKind::kContent, -1, "b", ""}}));
}

// A marker is an event once it is whole; what is put back comes first, as text or to be scanned.
TEST(MarkerScanner, WhatIsPutBackComesAgain) {
  const TestFormat format("hermes", "", {});
  const std::u16string marker = format.format->markers()[0].symbols;
  const Roles live = roles(format.format->markers()[0].role);
  MarkerScanner scanner(format.format.get());
  // The bytes of text events, and M for a marker.
  const auto read = [&](bool at_end) {
    std::string events;
    while (const auto event = scanner.next(live, {}, at_end)) {
      events += event->kind == ScanEvent::Kind::kMarker ? 'M' : event->byte;
    }
    return events;
  };
  for (const Symbol symbol : u"x" + marker.substr(0, 5)) scanner.push(symbol);
  EXPECT_EQ(read(false), "x");
  EXPECT_EQ(scanner.held(), marker.substr(0, 5));
  for (const Symbol symbol : marker.substr(5)) scanner.push(symbol);
  EXPECT_EQ(read(false), "M");

  scanner.push(u'y');
  scanner.put_back(marker);
  scanner.put_back_text(marker + u"z");
  EXPECT_EQ(read(false), "<tool_call>zMy");

  for (const Symbol symbol : marker.substr(0, 5)) scanner.push(symbol);
  EXPECT_EQ(read(false), "");
  EXPECT_TRUE(scanner.holds_beginning_of(live));
  EXPECT_EQ(read(true), "<tool");
  EXPECT_TRUE(scanner.held().empty());
}

TEST(ToolParser, PiecesDoNotDependOnTheCut) {
  const TestFormat format("hermes", "qwen3", {});
  const Transcript transcript{
      .text =
          "<think>\nHm é.\n</think>\n\nI look.\n<tool_call>\n{\"name\": \"a\", \"arguments\": "
          "{\"x\": \"😀\"}}"
          "\n</tool_call>\n<tool_call>\n{\"name\": \"b\", \"arguments\": {}}\n</tool_call>"};
  const std::vector<Chunk> chunks = split_bytes(format, transcript.text);
  const Pieces whole = parse_whole(format, transcript);
  EXPECT_EQ(describe(whole), "R{Hm é.}C{I look.}0 a {\"x\": \"😀\"};1 b {};");
  for (size_t i = 1; i < chunks.size(); ++i) {
    for (size_t j = i; j < chunks.size(); ++j) {
      const size_t cuts[] = {i, j};
      ASSERT_EQ(parse_cut(format, transcript, chunks, cuts), whole) << i << " " << j;
    }
  }
}

// What families with channels read is never kept for a call that fails.
TEST(ToolParser, MessagesOfAnyLengthAreWhole) {
  const std::string body(kMaxBufferedBytes + 1000, 'x');
  for (const auto& [family, begin, end] :
       {std::tuple<const char*, std::string, std::string>{
            "openai", "<|start|>assistant<|channel|>final<|message|>", "<|end|>"},
        {"muse", "<|start|>assistant to=user<|message|>", "<|eot|>"},
        {"kimi_k3", "<|open|>response<|sep|>", "<|close|>response<|sep|>"}}) {
    const TestFormat format(family, family == std::string("openai") ? "openai_gptoss" : family, {});
    OutputParser parser(format.format, nullptr, "", {});
    Pieces pieces;
    parser.feed(0, begin + body + end, false, pieces);
    parser.finish(FinishReason::kStop, pieces);
    EXPECT_TRUE(joined(pieces) == (Pieces{{PieceKind::kContent, -1, body, {}}})) << family;
  }
}

TEST(ToolParser, ArgumentsAreTheModelsBytes) {
  const TestFormat format("hermes", "", {});
  const std::string arguments = "{ \"b\" :1.50,\n\"a\":[ ] , \"b\": \"\\/\\u0041\"  }";
  EXPECT_EQ(parse(format,
                  {"<tool_call>{\"name\":\"f\", \"arguments\" : " + arguments + " }</tool_call>"}),
            "0 f " + arguments + ";");
}

TEST(ToolParser, EscapesPassUnchanged) {
  const TestFormat format("mistral", "", {});
  EXPECT_EQ(parse(format, {"[TOOL_CALLS]f[ARGS]{\"a\": \"\\u00e9 é \\ud83d\\ude00 \\\\u00\"}"}),
            "0 f {\"a\": \"\\u00e9 é \\ud83d\\ude00 \\\\u00\"};");
  // No piece ends inside an escape, or between the halves of a pair.
  const std::string text = "[TOOL_CALLS]f[ARGS]{\"a\": \"x\\ud83d\\ude00\\n\\\\y\\u00e9z\"}";
  OutputParser parser(format.format, nullptr, "", {});
  for (const char c : text) {
    Pieces pieces;
    parser.feed(0, {&c, 1}, false, pieces);
    for (const Piece& piece : pieces) {
      if (piece.kind != PieceKind::kArguments) continue;
      EXPECT_TRUE(piece.text.size() == 1 ? piece.text != "\\" : true) << piece.text;
      EXPECT_TRUE(piece.text[0] != '\\' || piece.text == "\\ud83d\\ude00" || piece.text == "\\n" ||
                  piece.text == "\\\\" || piece.text == "\\u00e9")
          << piece.text;
    }
  }
}

TEST(ToolParser, HeldTextIsGivenAtTheEnd) {
  for (const FamilyWriter& writer : family_writers()) {
    SCOPED_TRACE(writer.calls);
    const TestFormat format(writer.calls, writer.reasoning, {});
    if (format.format->calls()->has_channels()) continue;  // its markers are no text
    for (const auto& marker : format.format->markers()) {
      if (marker.role != Role::kCallBegin && marker.role != Role::kSectionBegin) continue;
      for (size_t length = 1; length < marker.text.size(); ++length) {
        const std::string part(marker.text.substr(0, length));
        const std::string text = "Text " + part;
        const std::string expected = "C{" + text + "}";
        const std::string found = describe(parse_whole(format, {text}));
        // Half a character is shown as U+FFFD.
        const bool is_whole = (static_cast<uint8_t>(marker.text[length]) & 0xC0) != 0x80;
        EXPECT_TRUE(is_whole ? found == expected : found.starts_with("C{Text")) << found;
      }
    }
  }
}

TEST(ToolParser, NoArgumentsIsAnEmptyObject) {
  for (const FamilyWriter& writer : family_writers()) {
    SCOPED_TRACE(writer.calls);
    const TestFormat format(writer.calls, writer.reasoning, writer.specials);
    const std::vector<TestCall> calls = {{"first", Json::object()}, {"second", {{"a", "b"}}}};
    const Pieces pieces =
        parse_every_way(format, {.text = writer.write(calls), .tools = tools_of(calls)});
    ASSERT_GE(pieces.size(), 3u);
    EXPECT_EQ(pieces[1].text, "{}");
    EXPECT_NE(describe(pieces).find("1 second "), std::string::npos);
  }
}

TEST(ToolParser, CallsAreNumberedAndNamedOnce) {
  const TestFormat format("kimi_k2", "", {});
  std::string text = "<|tool_calls_section_begin|>";
  for (int i = 0; i < 3; ++i) {
    text += "<|tool_call_begin|>functions.f:" + std::to_string(4 + i) +
            "<|tool_call_argument_begin|>{\"i\": 1}<|tool_call_end|>";
  }
  EXPECT_EQ(
      parse(format, {text + "<|tool_calls_section_end|>"}),
      "0 f #functions.f:4 {\"i\": 1};1 f #functions.f:5 {\"i\": 1};2 f #functions.f:6 {\"i\": 1};");
  EXPECT_EQ(id_rule_of(*find_call_family("kimi_k2")), CallIdRule::kCounted);
  EXPECT_EQ(id_rule_of(*find_call_family("mistral")), CallIdRule::kNineAlphanumeric);
}

TEST(ToolParser, MistralWithoutArgsMarker) {
  const TestFormat format("mistral", "", {});
  EXPECT_EQ(parse(format, {"[TOOL_CALLS]get{\"a\": 1}[TOOL_CALLS]put{}"}),
            "0 get {\"a\": 1};1 put {};");
}

TEST(ToolParser, SpecialTokensCountByIdAlone) {
  constexpr std::string_view kSpecials[] = {"<|tool_call_start|>", "<|tool_call_end|>", "<|pad|>"};
  const TestFormat format("lfm2", "", kSpecials);
  OutputParser parser(format.format, nullptr, "", {});
  Pieces pieces;
  // The marker's letters, spelled by tokens of text.
  parser.feed(0, "<|tool_call_start|>[f()]", false, pieces);
  parser.feed(256, "<|tool_call_start|>", true, pieces);
  parser.feed(0, "[g()]", false, pieces);
  parser.feed(258, "<|pad|>", true, pieces);
  parser.finish(FinishReason::kStop, pieces);
  EXPECT_EQ(describe(pieces), "C{<|tool_call_start|>[f()]}0 g {};");
}

TEST(ToolParser, SpecialTokensThatAreNoMarkersAreShownWhereAsked) {
  constexpr std::string_view kSpecials[] = {"<tool_call>", "</tool_call>", "<|pad|>"};
  const TestFormat format("hermes", "", kSpecials);
  const std::string text = "a<|pad|>b</tool_call><tool_call>{\"name\": \"f\"}</tool_call><|pad|>";
  EXPECT_EQ(parse(format, {.text = text}), "C{ab}0 f {};");
  EXPECT_EQ(parse(format, {.text = text, .options = {.skip_special_tokens = false}}),
            "C{a<|pad|>b}0 f {};C{<|pad|>}");
  const auto plain = [&](bool skips) {
    OutputParser parser(skips);
    Pieces pieces;
    parser.feed(0, "a\xC3", false, pieces);
    parser.feed(0, "\xA9", false, pieces);
    parser.feed(258, "<|pad|>", true, pieces);
    parser.feed(0, "\xF0", false, pieces);
    parser.finish(FinishReason::kStop, pieces);
    return describe(joined(pieces));
  };
  EXPECT_EQ(plain(true), "C{aé\xEF\xBF\xBD}");
  EXPECT_EQ(plain(false), "C{aé<|pad|>\xEF\xBF\xBD}");
}

TEST(ToolParser, WithoutToolsCallsAreContent) {
  const TestFormat format("hermes", "qwen3", {});
  const std::string text = "<think>Hm.</think><tool_call>{\"name\": \"f\"}</tool_call>";
  EXPECT_EQ(parse(format, {.text = text, .options = {.parse_calls = false}}),
            "R{Hm.}C{<tool_call>{\"name\": \"f\"}</tool_call>}");
  const TestFormat harmony("openai", "openai_gptoss", {});
  EXPECT_EQ(parse(harmony,
                  {.text = "<|channel|>commentary to=functions.f<|message|>{}<|call|>",
                   .options = {.parse_calls = false}}),
            "C{{}}");
}

TEST(ToolParser, ACopyGoesOnOnItsOwn) {
  const TestFormat format("qwen3_coder", "qwen3", {});
  OutputParser parser(format.format, nullptr, "", {});
  Pieces pieces;
  parser.feed(0, "<tool_call>\n<function=f>\n<parameter=a>\nx", false, pieces);
  OutputParser copy = parser;
  Pieces copied = pieces;
  parser.feed(0, "y\n</parameter>\n</function>", false, pieces);
  copy.feed(0, "z\n</parameter>\n</function>", false, copied);
  parser.finish(FinishReason::kStop, pieces);
  copy.finish(FinishReason::kStop, copied);
  EXPECT_EQ(describe(joined(pieces)), "0 f {\"a\": \"xy\"};");
  EXPECT_EQ(describe(joined(copied)), "0 f {\"a\": \"xz\"};");
}

TEST(ToolParser, TellsWhenACallHasClosed) {
  for (const FamilyWriter& writer : family_writers()) {
    SCOPED_TRACE(writer.calls);
    const TestFormat format(writer.calls, writer.reasoning, writer.specials);
    const std::string text = writer.write({{"f", {{"a", "b"}}}});
    OutputParser parser(format.format, nullptr, "", {});
    Pieces pieces;
    for (const Chunk& chunk : split_bytes(format, text)) {
      parser.feed(chunk.token, chunk.bytes, chunk.is_special, pieces);
      const bool has_end = std::ranges::count(pieces, PieceKind::kCallEnd, &Piece::kind) == 1;
      ASSERT_EQ(parser.num_closed_calls(), has_end ? 1 : 0);
    }
    // Text in tags may go on behind what looks like its end.
    parser.finish(FinishReason::kStop, pieces);
    EXPECT_EQ(parser.num_closed_calls(), 1);
  }
}

TEST(ToolParser, MoreCallsThanAnAnswerMayHaveAreContent) {
  const TestFormat format("hermes", "", {});
  std::string text;
  for (int i = 0; i <= kMaxCalls; ++i) text += "<tool_call>{\"name\": \"f\"}</tool_call>";
  const Pieces pieces = parse_whole(format, {text});
  EXPECT_EQ(std::ranges::count(pieces, PieceKind::kCallBegin, &Piece::kind), kMaxCalls);
  EXPECT_EQ(pieces.back().text, "<tool_call>{\"name\": \"f\"}</tool_call>");
}

TEST(ToolParser, WhatIsKeptIsBounded) {
  const std::string filler(kMaxBufferedBytes + 10, 'x');
  const TestFormat hermes("hermes", "", {});
  const std::string unnamed = "<tool_call>{\"arguments\": {\"a\": \"" + filler;
  EXPECT_EQ(describe(parse_whole(hermes, {unnamed})), "C{" + unnamed + "}");
  const TestFormat coder("qwen3_coder", "", {});
  const std::string value =
      "<tool_call>\n<function=f>\n<parameter=a>\n" + filler + "\n</parameter>\n</function>";
  EXPECT_EQ(describe(parse_whole(coder, {value})), "0 f {\"a\": \"" + filler + "\"};");
}

TEST(ReasoningParser, CallMarkerInsideFollowsTheFamily) {
  const std::string text =
      "<think>Hm.\n<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>";
  EXPECT_EQ(parse(TestFormat("hermes", "qwen3", {}), {text}), "R{Hm.}0 f {};");
  const std::string other = "<think>Hm. <TOOLCALL>[{\"name\": \"f\"}]</TOOLCALL></think>Text.";
  EXPECT_EQ(parse(TestFormat("nemotron_nano_v2", "qwen3", {}), {other}), "R{Hm. }0 f {};C{Text.}");
}

TEST(ReasoningParser, StartsAsThePromptEnds) {
  const TestFormat format("hermes", "qwen3", {});
  EXPECT_EQ(parse(format, {"Hm.\n</think>\n\nText.", "<|im_start|>assistant\n<think>\n"}),
            "R{Hm.}C{Text.}");
  EXPECT_EQ(parse(format, {"Text.", "<|im_start|>assistant\n<think>\n\n</think>\n\n"}), "C{Text.}");
  EXPECT_EQ(parse(format, {"Text.", "<|im_start|>assistant\n"}), "C{Text.}");
  EXPECT_EQ(parse(format, {" more.</think>Text.", "<|im_start|>assistant\n<think>\nSome"}),
            "R{ more.}C{Text.}");
  // Behind results of tools, where the template opens nothing but the family reasons.
  const TestFormat forced("deepseek_v3", "deepseek_r1", {});
  EXPECT_EQ(parse(forced, {"Hm.</think>Text.", "<｜tool▁outputs▁end｜>"}), "R{Hm.}C{Text.}");
  EXPECT_EQ(parse(forced, {"<think>Hm.</think>Text.", ""}), "R{Hm.}C{Text.}");
  EXPECT_EQ(parse(forced, {"Text.", "<think></think>"}), "C{Text.}");
}

TEST(ReasoningParser, CountsTokensWithTheirMarkers) {
  const TestFormat format("hermes", "qwen3", {});
  OutputParser parser(format.format, nullptr, "", {});
  Pieces pieces;
  const auto feed = [&](std::string_view bytes) { parser.feed(0, bytes, false, pieces); };
  feed("<th");
  feed("ink>");
  EXPECT_TRUE(parser.in_reasoning());
  feed("Hm");
  feed("</thi");
  feed("nk>");
  EXPECT_FALSE(parser.in_reasoning());
  feed("Text");
  parser.finish(FinishReason::kStop, pieces);
  EXPECT_EQ(parser.num_reasoning_tokens(), 5);
  constexpr std::string_view kSpecials[] = {"<|channel|>", "<|message|>", "<|end|>", "<|start|>"};
  const TestFormat harmony("openai", "openai_gptoss", kSpecials);
  OutputParser messages(harmony.format, nullptr, "<|start|>assistant", {});
  for (const Chunk& chunk : split_bytes(harmony,
                                        "<|channel|>analysis<|message|>Hm<|end|><|start|>assistant<"
                                        "|channel|>final<|message|>Text")) {
    messages.feed(chunk.token, chunk.bytes, chunk.is_special, pieces);
  }
  EXPECT_EQ(messages.num_reasoning_tokens(), 1 + 8 + 1 + 2 + 1);
}

TEST(TaggedArguments, TypesComeFromTheSchema) {
  const TestFormat format("qwen3_coder", "", {});
  const auto value = [&](std::string_view type, std::string_view text) {
    const auto tools =
        tools_of("f", "{\"type\": \"object\", \"properties\": {\"v\": " + std::string(type) + "}}");
    const std::string found =
        parse(format,
              {.text = "<tool_call>\n<function=f>\n<parameter=v>\n" + std::string(text) +
                       "\n</parameter>\n</function>\n</tool_call>",
               .tools = tools});
    constexpr std::string_view kBegin = "0 f {\"v\": ";
    EXPECT_TRUE(found.starts_with(kBegin)) << found;
    return found.substr(kBegin.size(), found.size() - kBegin.size() - 2);
  };
  const auto of = [](std::string_view name) { return "{\"type\": \"" + std::string(name) + "\"}"; };
  EXPECT_EQ(value(of("string"), "03106"), "\"03106\"");
  EXPECT_EQ(value(of("string"), "12"), "\"12\"");
  EXPECT_EQ(value(of("string"), "null"), "\"null\"");
  EXPECT_EQ(value(of("string"), "{\"a\": 1}"), "\"{\\\"a\\\": 1}\"");
  EXPECT_EQ(value(of("integer"), "12"), "12");
  EXPECT_EQ(value(of("number"), "140.0"), "140.0");
  EXPECT_EQ(value(of("number"), "1e5"), "1e5");
  EXPECT_EQ(value(of("integer"), "140.0"), "140.0");
  EXPECT_EQ(value(of("number"), "03106"), "\"03106\"");  // no JSON: a string, the call stays
  EXPECT_EQ(value(of("boolean"), "True"), "true");
  EXPECT_EQ(value(of("boolean"), "false"), "false");
  EXPECT_EQ(value(of("boolean"), "maybe"), "\"maybe\"");
  EXPECT_EQ(value(of("null"), "None"), "null");
  EXPECT_EQ(value(of("array"), "[1, 2]"), "[1, 2]");
  EXPECT_EQ(value(of("object"), "{\"a\": [}"), "\"{\\\"a\\\": [}\"");
  EXPECT_EQ(value("{}", "12"), "12");
  EXPECT_EQ(value("{}", "12 monkeys"), "\"12 monkeys\"");
  EXPECT_EQ(value("{\"enum\": [\"1\", \"2\"]}", "1"), "\"1\"");
  EXPECT_EQ(value("{\"const\": 1}", "1"), "1");
}

TEST(TaggedArguments, UnionsAndRefs) {
  const auto types = [](std::string_view parameters) {
    return tools_of("f", parameters).schemas->types_of("f", "v");
  };
  EXPECT_EQ(types(R"({"properties": {"v": {"anyOf": [{"type": "string"}, {"type": "null"}]}}})"),
            kJsonString | kJsonNull);
  EXPECT_EQ(types(R"({"properties": {"v": {"type": ["integer", "null"]}}})"),
            kJsonInteger | kJsonNull);
  EXPECT_EQ(
      types(
          R"({"properties": {"v": {"$ref": "#/$defs/a~1b"}}, "$defs": {"a/b": {"type": "array"}}})"),
      kJsonArray);
  EXPECT_EQ(types(R"({"properties": {"v": {"$ref": "#/properties/v"}}})"), kJsonAny);
  EXPECT_EQ(
      types(
          R"({"properties": {"v": {"allOf": [{"type": ["string", "object"]}, {"type": "object"}]}}})"),
      kJsonObject);
  EXPECT_EQ(types(R"({"properties": {"v": {"oneOf": [{"const": "a"}, {"enum": [1, null]}]}}})"),
            kJsonString | kJsonInteger | kJsonNull);
  EXPECT_EQ(types(R"({"properties": {"w": {}}, "additionalProperties": {"type": "string"}})"),
            kJsonString);
  EXPECT_EQ(types(R"({"properties": {"v": {"type": "string", "enum": [1]}}})"), kJsonAny);
  EXPECT_EQ(types("null"), kJsonAny);
  EXPECT_EQ(types("[]"), kJsonAny);
  EXPECT_EQ(tools_of("g", "{}").schemas->types_of("f", "v"), kJsonAny);

  const TestFormat format("glm45", "", {});
  const auto tools = tools_of(
      "f", R"({"properties": {"v": {"anyOf": [{"$ref": "#/$defs/point"}, {"type": "null"}]},
    "s": {"anyOf": [{"type": "string"}, {"type": "null"}]}}, "$defs": {"point": {"type": "object"}}})");
  EXPECT_EQ(parse(format,
                  {.text = "<tool_call>f<arg_key>v</arg_key><arg_value>{\"x\": 1}</arg_value>"
                           "<arg_key>s</arg_key><arg_value>\"q\"</arg_value></tool_call>",
                   .tools = tools}),
            "0 f {\"v\": {\"x\": 1}, \"s\": \"\\\"q\\\"\"};");
}

}  // namespace
}  // namespace sluice
