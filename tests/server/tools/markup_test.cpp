// SPDX-License-Identifier: Apache-2.0
// What stands where a family's markup may also be text: strings of arguments that spell it,
// thoughts that mention it or hold a call, ends of thoughts that nobody began, answers that are cut
// inside of it. Every family, under every cut.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "server/tools/output_format.h"
#include "tests/server/tools/call_generator.h"
#include "tests/server/tools/transcript.h"

namespace sluice {
namespace {

using Json = nlohmann::ordered_json;

bool is_special(const FamilyWriter& writer, std::string_view text) {
  return std::ranges::any_of(writer.specials, [&](std::string_view special) {
    return text.find(special) != std::string_view::npos;
  });
}

bool has_channels(const TestFormat& format) { return format.format->calls()->has_channels(); }

// Arguments of each call, in order.
std::vector<Json> arguments_of(const Pieces& pieces) {
  std::vector<Json> found;
  for (const Piece& piece : pieces) {
    if (piece.kind == PieceKind::kArguments) {
      found.push_back(Json::parse(piece.text, nullptr, false));
    }
  }
  return found;
}

// Strings that hold each marker of a family, and a whole call.
std::vector<std::string> strings_with_markup(const FamilyWriter& writer, const TestFormat& format) {
  std::vector<std::string> strings = {"See " + writer.write({{"f", {{"x", "y"}}}}) + " there.",
                                      "$ " + writer.write({{"f", {{"x", "y"}}}})};
  for (const auto& marker : format.format->markers()) {
    const std::string text(marker.text);
    strings.insert(strings.end(), {text, "a " + text + " b", text + text, "(" + text + ")"});
  }
  return strings;
}

TEST(Markup, AStringThatSpellsItIsWhole) {
  for (const FamilyWriter& writer : family_writers()) {
    SCOPED_TRACE(writer.calls);
    const TestFormat format(writer.calls, writer.reasoning, writer.specials);
    for (const std::string& text : strings_with_markup(writer, format)) {
      std::vector<TestCall> calls = {{"second", {{"a", text}}}};
      if (writer.takes_several) calls.insert(calls.begin(), {"first", {{"a", text}, {"b", "c"}}});
      const Transcript transcript{.text = writer.write(calls), .tools = tools_of(calls)};
      SCOPED_TRACE(transcript.text);
      // A whole call is parsed under every cut, a marker as one text and byte by byte.
      const bool is_call = text.find("See ") == 0;
      const std::vector<Chunk> chunks = split_bytes(format, transcript.text);
      std::vector<size_t> all(chunks.size());
      std::iota(all.begin(), all.end(), 0);
      const Pieces pieces =
          is_call ? parse_every_way(format, transcript) : parse_whole(format, transcript);
      EXPECT_EQ(parse_cut(format, transcript, chunks, all), pieces);
      const std::vector<Json> found = arguments_of(pieces);
      ASSERT_EQ(found.size(), calls.size()) << describe(pieces);
      for (size_t i = 0; i < calls.size(); ++i) EXPECT_EQ(found[i], calls[i].arguments);
      EXPECT_EQ(std::ranges::count(pieces, PieceKind::kContent, &Piece::kind), 0)
          << describe(pieces);
    }
  }
}

TEST(Markup, RawControlCharactersInStringsAreEscaped) {
  for (const FamilyWriter& writer : family_writers()) {
    SCOPED_TRACE(writer.calls);
    const TestFormat format(writer.calls, writer.reasoning, writer.specials);
    for (const char raw : {'\n', '\t', '\x01', '\x1f'}) {
      const std::vector<TestCall> calls = {{"f", {{"a", "x@y"}, {"b", {{"c", "@"}}}}}};
      std::string text = writer.write(calls);
      std::ranges::replace(text, '@', raw);
      const std::vector<Json> found =
          arguments_of(parse_every_way(format, {.text = text, .tools = tools_of(calls)}));
      ASSERT_EQ(found.size(), 1u) << text;
      const std::string is(1, raw);
      EXPECT_EQ(found[0], Json({{"a", "x" + is + "y"}, {"b", {{"c", is}}}})) << text;
    }
  }
  // Behind a backslash, which is the beginning of the escape.
  const TestFormat format("hermes", "", {});
  EXPECT_EQ(
      describe(parse_every_way(
          format, {"<tool_call>{\"name\":\"f\",\"arguments\":{\"a\":\"x\\\n\"}\n}</tool_call>"})),
      "0 f {\"a\":\"x\\n\"};");
}

// Families whose calls end a thought: those whose marker is no text of other meaning.
bool ends_thoughts(const FamilyWriter& writer, const TestFormat& format) {
  return !has_channels(format) && format.format->calls()->ends_reasoning &&
         !writer.reasoning_begin.empty();
}

TEST(Markup, ACallEndsAThought) {
  size_t count = 0;
  for (const FamilyWriter& writer : family_writers()) {
    SCOPED_TRACE(writer.calls);
    const TestFormat format(writer.calls, writer.reasoning, writer.specials);
    if (!ends_thoughts(writer, format)) continue;
    ++count;
    const std::vector<TestCall> calls = {{"f", {{"a", "b"}}}};
    const std::string thought = std::string(writer.reasoning_begin) + "Hm.\n" + writer.write(calls);
    const std::string arguments = "R{Hm.}0 f {\"a\":\"b\"};";
    const auto parse = [&](const std::string& text) {
      std::string found =
          describe(parse_every_way(format, {.text = text, .tools = tools_of(calls)}));
      std::erase(found, ' ');
      std::erase(found, '\n');
      const size_t id = found.find('#');
      if (id != std::string::npos) found.erase(id, found.find('{', id) - id);
      return found;
    };
    std::string expected = arguments;
    std::erase(expected, ' ');
    EXPECT_EQ(parse(thought), expected);
    // The end of a thought that is over is left out of the text.
    EXPECT_EQ(parse(thought + std::string(writer.reasoning_end)), expected);
    EXPECT_EQ(parse(thought + "\n" + std::string(writer.reasoning_end) + "Text."),
              expected + "C{Text.}");
  }
  EXPECT_GE(count, 20u);
}

TEST(Markup, AThoughtThatMentionsItIsAThought) {
  for (const FamilyWriter& writer : family_writers()) {
    SCOPED_TRACE(writer.calls);
    const TestFormat format(writer.calls, writer.reasoning, writer.specials);
    if (!ends_thoughts(writer, format)) continue;
    const std::vector<TestCall> calls = {{"f", {{"a", "b"}}}};
    std::vector<std::string> mentions;
    for (const auto& marker : format.format->markers()) {
      if (marker.role == Role::kReasoningEnd || is_special(writer, marker.text)) continue;
      mentions.push_back("I use " + std::string(marker.text) + " here");
      mentions.push_back("`" + std::string(marker.text) + "`.\nThen");
    }
    // No tool of the request has this name.
    const std::string other = writer.write({{"not_there", {{"a", "b"}}}});
    if (writer.specials.empty()) mentions.push_back("Such as " + other + " or so");
    for (const std::string& mention : mentions) {
      const std::string text = std::string(writer.reasoning_begin) + mention + ".";
      const TestTools tools = tools_of(calls);
      EXPECT_EQ(describe(parse_every_way(format, {.text = text, .tools = tools})),
                "R{" + mention + ".}");
      EXPECT_EQ(describe(parse_every_way(
                    format,
                    {.text = text + std::string(writer.reasoning_end) + "Text.", .tools = tools})),
                "R{" + mention + ".}C{Text.}");
    }
  }
}

TEST(Markup, TheEndOfNoThoughtIsNobodysText) {
  for (const FamilyWriter& writer : family_writers()) {
    SCOPED_TRACE(writer.calls);
    const TestFormat format(writer.calls, writer.reasoning, writer.specials);
    if (has_channels(format) || writer.reasoning_begin.empty()) continue;
    const std::string off = std::string(writer.reasoning_begin) + std::string(writer.reasoning_end);
    const std::string end(writer.reasoning_end);
    EXPECT_EQ(describe(parse_every_way(format, {.text = end + "Text.", .prompt_tail = off})),
              "C{Text.}");
    const std::string mention = "The tag " + end + " is text.";
    if (is_special(writer, end)) continue;
    EXPECT_EQ(describe(parse_every_way(format, {.text = mention, .prompt_tail = off})),
              "C{" + mention + "}");
  }
}

TEST(Markup, ACallCutBeforeItsNameLeavesNone) {
  for (const FamilyWriter& writer : family_writers()) {
    SCOPED_TRACE(writer.calls);
    const TestFormat format(writer.calls, writer.reasoning, writer.specials);
    if (has_channels(format) || format.format->calls()->bare != '\0') continue;
    const std::vector<TestCall> calls = {{"get_weather", {{"a", "b"}}}};
    const std::string call = writer.write(calls);
    const size_t name = call.find("get_weather");
    for (const std::string before : {"", "Text."}) {
      size_t length = 0;
      for (const Chunk& chunk : split_bytes(format, call)) {
        length += chunk.bytes.size();
        if (length < 2) continue;
        if (length > name + 3) break;
        const std::string part = call.substr(0, length);
        if (static_cast<uint8_t>(call[length]) >= 0x80) continue;  // half a character
        const Pieces pieces = parse_every_way(
            format,
            {.text = before + part, .reason = FinishReason::kLength, .tools = tools_of(calls)});
        EXPECT_EQ(describe(pieces), before.empty() ? "" : "C{" + before + "}") << part;
      }
    }
  }
}

TEST(Markup, IdsThatClientsHaveRewrittenNameTheOneTool) {
  const TestFormat format("kimi_k2", "", {});
  const auto name_of = [&](const std::string& id, const Json& tools) {
    const std::string text =
        "<|tool_call_begin|>" + id + "<|tool_call_argument_begin|>{}<|tool_call_end|>";
    const Pieces pieces = parse_every_way(format, {.text = text, .tools = make_tools(tools)});
    return pieces.empty() ? std::string() : pieces[0].text;
  };
  const Json tools = {{"get_weather", Json::object()}, {"search-web.v2", Json::object()}};
  for (const std::string id : {"functions.get_weather:0",
                               "functions_get_weather_0",
                               "functions-get-weather-12",
                               "functionsget_weather0",
                               "functionsgetweather0",
                               "get_weather:0",
                               "get_weather_3",
                               "get_weather0",
                               "functions.get_weather",
                               "functions_get_weather"}) {
    EXPECT_EQ(name_of(id, tools), "get_weather") << id;
  }
  EXPECT_EQ(name_of("functions_search_web_v2_1", tools), "search-web.v2");
  EXPECT_EQ(name_of("searchwebv2", tools), "search-web.v2");
  // None of several is taken, and a tool's name is that tool's.
  const Json two = {
      {"get_a", Json::object()}, {"get.a", Json::object()}, {"get_1", Json::object()}};
  EXPECT_EQ(name_of("functions_geta_0", two), "functions_geta_0");
  EXPECT_EQ(name_of("functions.get_1:0", two), "get_1");
  EXPECT_EQ(name_of("get_1", two), "get_1");
  EXPECT_EQ(name_of("functions.unknown:0", two), "unknown");
}

}  // namespace
}  // namespace sluice
