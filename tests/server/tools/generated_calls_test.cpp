// SPDX-License-Identifier: Apache-2.0
// Every family against outputs that are written from calls: what was written is what is parsed,
// under every cut.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "server/tools/output_format.h"
#include "tests/server/tools/call_generator.h"
#include "tests/server/tools/transcript.h"
#include "tests/support/tier.h"

namespace sluice {
namespace {

using Json = nlohmann::ordered_json;

struct Parts {
  std::string reasoning;
  std::string content_before;
  std::vector<TestCall> calls;
  std::string content_after;
};

std::string write(const FamilyWriter& writer, const Parts& parts) {
  std::string text;
  const auto content = [&](const std::string& part) {
    if (!part.empty())
      text += std::string(writer.content_begin) + part + std::string(writer.content_end);
  };
  if (!parts.reasoning.empty()) {
    text +=
        std::string(writer.reasoning_begin) + parts.reasoning + std::string(writer.reasoning_end);
  }
  content(parts.content_before);
  if (!parts.calls.empty()) text += writer.write(parts.calls);
  content(parts.content_after);
  return text;
}

// Objects as they are, their members in order.
void expect_parts(const FamilyWriter& writer, const Parts& parts, const Pieces& pieces) {
  Parts found;
  for (const Piece& piece : pieces) {
    if (piece.kind == PieceKind::kReasoning) found.reasoning += piece.text;
    if (piece.kind == PieceKind::kContent) {
      (found.calls.empty() ? found.content_before : found.content_after) += piece.text;
    }
    if (piece.kind == PieceKind::kCallBegin) {
      EXPECT_EQ(piece.call_idx, static_cast<int32_t>(found.calls.size()));
      found.calls.push_back({piece.text, {}});
    }
    if (piece.kind != PieceKind::kArguments) continue;
    ASSERT_FALSE(found.calls.empty());
    const size_t idx = found.calls.size() - 1;
    ASSERT_LT(idx, parts.calls.size());
    if (writer.keeps_bytes) {
      EXPECT_EQ(piece.text, parts.calls[idx].arguments.dump());
    }
    found.calls[idx].arguments = Json::parse(piece.text, nullptr, false);
  }
  EXPECT_EQ(found.reasoning, parts.reasoning);
  EXPECT_EQ(found.content_before, parts.content_before);
  EXPECT_EQ(found.content_after, parts.content_after);
  ASSERT_EQ(found.calls.size(), parts.calls.size());
  for (size_t i = 0; i < parts.calls.size(); ++i) {
    EXPECT_EQ(found.calls[i].name, parts.calls[i].name);
    EXPECT_EQ(found.calls[i].arguments, parts.calls[i].arguments)
        << found.calls[i].arguments.dump() << " " << parts.calls[i].arguments.dump();
  }
}

// What is asked of every family: none, one, several, nested, Unicode, escapes, text around, no
// arguments, unknown names, reasoning.
std::vector<Parts> transcripts(const FamilyWriter& writer) {
  const std::vector<TestCall> calls = {
      {"get_weather", {{"city", "Paris"}, {"days", 3}}},
      {"now", Json::object()},
      {"search",
       {{"filter", {{"a", {1, 2.5, {{"b", nullptr}}}}, {"c", true}}},
        {"list", {"x", 1, Json::array()}}}},
      {"say", {{"text", "né 日本 😀"}}},
      {"run", {{"code", "def f(x):\n    return \"\\n\" + {x: [1]}\t# </p>\n"}}},
      {"unknown.tool-name_1",
       {{"zip", "03106"}, {"price", 140.0}, {"flag", "true"}, {"none", "null"}}},
      {"pad", {{"text", "  padded  "}, {"empty", ""}}},
      {"odd", {{"a", "a < b && c > d; {\"x\": [1]} 'q'"}, {"b", "```json"}}},
  };
  std::vector<Parts> all;
  const bool before = writer.takes_text_before;
  const bool behind = writer.takes_text_after;
  all.push_back({"", "Only text: é 😀 <b> {", {}, ""});
  all.push_back({"Hm.\nTwo é lines.", "Only text.", {}, ""});
  for (const TestCall& call : calls) {
    all.push_back({"", "", {call}, ""});
    all.push_back({"Thought.", "", {call}, ""});
    if (before) all.push_back({"", "Text before.", {call}, ""});
    if (behind) all.push_back({"", "", {call}, "Text behind."});
  }
  if (writer.takes_several) {
    all.push_back({"", "", {calls[0], calls[1]}, ""});
    all.push_back({"Thought.", "", {calls[1], calls[1], calls[2]}, ""});
    all.push_back({"", "", {calls[3], calls[4], calls[7]}, ""});
  }
  return all;
}

TEST(GeneratedCalls, WhatIsWrittenIsParsedUnderEveryCut) {
  const size_t step = testing::sample_of<size_t>(3, 1);  // families leave out others
  size_t turn = 0;
  for (const FamilyWriter& writer : family_writers()) {
    SCOPED_TRACE(writer.calls);
    const TestFormat format(writer.calls, writer.reasoning, writer.specials);
    const std::vector<Parts> all = transcripts(writer);
    EXPECT_GE(all.size(), 20U);
    for (size_t i = turn++ % step; i < all.size(); i += step) {
      const Parts& parts = all[i];
      const Transcript transcript{.text = write(writer, parts), .tools = tools_of(parts.calls)};
      SCOPED_TRACE(transcript.text);
      expect_parts(writer, parts, parse_every_way(format, transcript));
    }
  }
}

// What an output that is cut short has given is the beginning of what the whole one gives, but for
// text of a call that was not yet one.
TEST(GeneratedCalls, AnswersCutByLengthGiveABeginning) {
  for (const FamilyWriter& writer : family_writers()) {
    SCOPED_TRACE(writer.calls);
    const TestFormat format(writer.calls, writer.reasoning, writer.specials);
    const Parts parts{"Thought é.",
                      writer.takes_text_before ? "Text." : "",
                      {{"say", {{"text", "é \"😀\"\n"}, {"n", 12}}}},
                      ""};
    Transcript transcript{.text = write(writer, parts), .tools = tools_of(parts.calls)};
    const std::string whole = describe(parse_whole(format, transcript));
    transcript.reason = FinishReason::kLength;
    const std::string text = transcript.text;
    const std::vector<Chunk> chunks = split_bytes(format, text);
    size_t length = 0;
    for (const Chunk& chunk : chunks) {
      length += chunk.bytes.size();
      transcript.text = text.substr(0, length);
      const Pieces pieces = parse_whole(format, transcript);
      const std::vector<Chunk> beginning = split_bytes(format, transcript.text);
      std::vector<size_t> all(beginning.size());
      std::iota(all.begin(), all.end(), 0);
      EXPECT_EQ(parse_cut(format, transcript, beginning, all), pieces);
      const std::string cut = describe(pieces);
      if (cut.find("0 say") == std::string::npos) continue;  // what is held back is content
      // A half character is U+FFFD in the end.
      const std::string begin = cut.substr(0, cut.find("\xEF\xBF\xBD"));
      EXPECT_TRUE(whole.starts_with(begin)) << cut << "\n" << whole;
      EXPECT_EQ(pieces.back().kind == PieceKind::kCallEnd, cut.ends_with(";"));
    }
  }
}

TEST(GeneratedCalls, RandomArgumentsComeBack) {
  const int count = testing::sample_of(60, 1000);
  for (const FamilyWriter& writer : family_writers()) {
    SCOPED_TRACE(writer.calls);
    const TestFormat format(writer.calls, writer.reasoning, writer.specials);
    std::string marker;
    if (writer.may_hold_markers) {
      for (const auto& one : format.format->markers()) {
        if (one.role == Role::kCallEnd || one.role == Role::kCallBegin) marker = one.text;
      }
    }
    std::mt19937 random(1);
    for (int i = 0; i < count; ++i) {
      Parts parts;
      for (uint32_t n = 1 + random() % 3; n > 0; --n)
        parts.calls.push_back(random_call(random, marker));
      const Transcript transcript{.text = write(writer, parts), .tools = tools_of(parts.calls)};
      const Pieces whole = parse_whole(format, transcript);
      expect_parts(writer, parts, whole);
      const std::vector<Chunk> chunks = split_bytes(format, transcript.text);
      std::vector<size_t> cuts;
      for (size_t at = 1; at < chunks.size(); ++at) {
        if (random() % 4 == 0) cuts.push_back(at);
      }
      EXPECT_EQ(parse_cut(format, transcript, chunks, cuts), whole) << transcript.text;
      if (HasFailure()) {
        ADD_FAILURE() << transcript.text;
        break;
      }
    }
  }
}

std::string text_of(const CallPieces& pieces, const Tokenizer& tokenizer, const std::string& key) {
  std::string text;
  for (const CallPiece& piece : pieces) {
    if (piece.kind == CallPiece::Kind::kNumber) {
      text += '3';
    } else if (piece.kind == CallPiece::Kind::kJsonType) {
      text += "object";
    } else if (piece.kind == CallPiece::Kind::kKey) {
      text += key;
    } else {
      text += piece.token == kInvalidToken ? piece.text
                                           : std::string(tokenizer.token_bytes(piece.token));
    }
  }
  return text;
}

// Writes a value like forced calls: JSON, and a family's own word where it has one.
std::string python_value(const Json& value) {
  if (value.is_boolean()) return value.get<bool>() ? "True" : "False";
  return value.is_null() ? "None" : value.dump();
}

std::string gemma_value(const Json& value, const std::string& quote) {
  if (value.is_string()) return quote + value.get<std::string>() + quote;
  if (!value.is_structured()) return value.dump();
  std::string text;
  for (const auto& [key, item] : value.items()) {
    if (!text.empty()) text += ',';
    if (value.is_object()) text += key + ":";
    text += gemma_value(item, quote);
  }
  return value.is_object() ? "{" + text + "}" : "[" + text + "]";
}

std::string write(const CallForm& form, const TestCall& call, const Tokenizer& tokenizer) {
  const auto text = [&](const CallPieces& pieces) { return text_of(pieces, tokenizer, ""); };
  std::string out = text(form.begin) + call.name + text(form.after_name);
  if (form.style == ArgumentStyle::kJson) return out + call.arguments.dump() + text(form.end);
  if (form.style == ArgumentStyle::kGemma) {
    const std::string object = gemma_value(call.arguments, text(form.quote));
    return out + object.substr(1, object.size() - 2) + text(form.end);
  }
  for (const auto& [key, value] : call.arguments.items()) {
    if (form.style == ArgumentStyle::kPython) {
      out += (out.ends_with('(') ? "" : ", ") + key + "=" + python_value(value);
      continue;
    }
    const bool is_string = value.is_string();
    out += text(form.tagged.key_begin) + key;
    out += text(is_string ? form.tagged.key_end : form.tagged.json_key_end);
    out += is_string ? value.get<std::string>() : value.dump();
    out += text_of(form.tagged.value_end, tokenizer, key);
  }
  return out + text(form.end);
}

// What a forced call looks like is what the parser reads, one or several.
TEST(CallForms, WhatAFormWritesIsParsed) {
  const std::vector<TestCall> calls = {
      {"get_weather", {{"city", "Paris <b>"}, {"days", 3}, {"more", {{"a", {1, true}}}}}},
      {"now", Json::object()},
      {"say", {{"text", "two\nlines \"x\""}, {"loud", true}, {"more", nullptr}}}};
  for (const FamilyWriter& writer : family_writers()) {
    const TestFormat format(writer.calls, writer.reasoning, writer.specials);
    const CallForm form = call_form(*find_call_family(writer.calls), *format.tokenizer);
    const size_t max_count = form.is_single ? 1 : calls.size();
    for (size_t count = 1; count <= max_count; ++count) {
      Parts parts;
      std::string text = text_of(form.open, *format.tokenizer, "");
      for (size_t i = 0; i < count; ++i) {
        if (i > 0) text += text_of(form.separator, *format.tokenizer, "");
        text += write(form, calls[i], *format.tokenizer);
        parts.calls.push_back(calls[i]);
      }
      text += text_of(form.close, *format.tokenizer, "");
      SCOPED_TRACE(std::string(writer.calls) + ": " + text);
      const Transcript transcript = {.text = text, .tools = tools_of(calls)};
      expect_parts(writer, parts, parse_every_way(format, transcript));
    }
  }
}

}  // namespace
}  // namespace sluice
