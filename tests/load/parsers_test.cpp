// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "server/load/completion_event.h"
#include "server/load/server_metrics.h"
#include "server/load/sse_parser.h"

namespace sluice::load {
namespace {

struct Collected final : SseSink {
  void on_event(std::string_view data) override { events.emplace_back(data); }

  std::vector<std::string> events;
};

TEST(SseParser, GivesTheSameEventsHoweverTheBytesAreCut) {
  const std::string stream =
      "\xEF\xBB\xBF: ping\r\n\r\ndata: {\"a\":1}\r\n\r\nevent: x\ndata:two\ndata: lines\n\nid: "
      "3\n\ndata:\n\n"
      "data: [DONE]\n\n";
  const std::vector<std::string> expected = {"{\"a\":1}", "two\nlines", "", "[DONE]"};
  for (size_t first = 0; first <= stream.size(); ++first) {
    for (size_t second = first; second <= stream.size(); ++second) {
      SseParser parser;
      Collected got;
      ASSERT_TRUE(parser.feed(std::string_view(stream).substr(0, first), got));
      ASSERT_TRUE(parser.feed(std::string_view(stream).substr(first, second - first), got));
      ASSERT_TRUE(parser.feed(std::string_view(stream).substr(second), got));
      ASSERT_EQ(got.events, expected) << first << " " << second;
      ASSERT_FALSE(parser.is_inside_event());
    }
  }
}

TEST(SseParser, LoneCrsAndCrlfsEndOneLineEach) {
  const std::string stream =
      "data: a\r\rdata: b\rdata: c\r\n\rdata: d\n\r: x\r\ndata: e\r\ndata: f\r\n\r\n";
  const std::vector<std::string> expected = {"a", "b\nc", "d", "e\nf"};
  for (size_t cut = 0; cut <= stream.size(); ++cut) {
    SseParser parser;
    Collected got;
    ASSERT_TRUE(parser.feed(std::string_view(stream).substr(0, cut), got));
    ASSERT_TRUE(parser.feed(std::string_view(stream).substr(cut), got));
    ASSERT_EQ(got.events, expected) << cut;
    ASSERT_FALSE(parser.is_inside_event());
  }
}

TEST(SseParser, SaysWhatTheDataOfAnEventWithoutEndIs) {
  for (const char* stream : {"data: x\n\ndata: [DONE]",
                             "data:[DONE]\r",
                             "\xEF\xBB\xBF"
                             "data: [DONE]"}) {
    SseParser parser;
    Collected got;
    ASSERT_TRUE(parser.feed(stream, got));
    EXPECT_EQ(parser.unended_data(), "[DONE]") << stream;
  }
  SseParser parser;
  Collected got;
  ASSERT_TRUE(parser.feed("data: a\n", got));
  ASSERT_TRUE(parser.feed("data: b", got));
  EXPECT_EQ(parser.unended_data(), "a\nb");
  ASSERT_TRUE(parser.feed("\n\n: data", got));
  EXPECT_EQ(parser.unended_data(), "");
}

TEST(SseParser, AByteOrderMarkIsIgnoredAtTheBeginningOfAStreamAlone) {
  SseParser parser;
  for (int stream = 0; stream < 2; ++stream) {
    Collected got;
    ASSERT_TRUE(
        parser.feed("\xEF\xBB\xBF"
                    "data: a\n\n\xEF\xBB\xBF"
                    "data: b\n\ndata: c\n\n",
                    got));
    EXPECT_EQ(got.events, (std::vector<std::string>{"a", "c"}));  // of another name: no data field
    parser.reset();
  }
}

TEST(SseParser, KnowsThatAnEventHasNotEnded) {
  SseParser parser;
  Collected got;
  for (const char* part : {"da", "ta: x", "\n"}) {
    EXPECT_TRUE(parser.feed(part, got));
    EXPECT_TRUE(parser.is_inside_event()) << part;
  }
  EXPECT_TRUE(parser.feed("\n", got));
  EXPECT_FALSE(parser.is_inside_event());
}

TEST(SseParser, RefusesAnEventWithoutEnd) {
  SseParser parser;
  Collected got;
  const std::string part(1 << 20, 'x');
  bool ok = parser.feed("data: ", got);
  for (int i = 0; ok && i < 20; ++i) ok = parser.feed(part, got);
  EXPECT_FALSE(ok);
  EXPECT_TRUE(parser.has_failed());
}

TEST(CompletionEvent, ReadsBothApisAndWholeAnswers) {
  CompletionEvent event;
  ASSERT_TRUE(read_completion_event(
      R"({"choices":[{"index":0,"text":" a\"b","finish_reason":null}],"usage":null})", event));
  EXPECT_TRUE(event.has_choices);
  EXPECT_TRUE(event.has_text);
  EXPECT_EQ(event.text, R"( a\"b)");
  EXPECT_FALSE(event.is_finished);
  EXPECT_FALSE(event.has_error);

  ASSERT_TRUE(read_completion_event(
      R"({"choices":[{"delta":{"role":"assistant","content":""},"finish_reason":null}]})", event));
  EXPECT_TRUE(event.has_choices);
  EXPECT_FALSE(event.has_text);

  ASSERT_TRUE(read_completion_event(
      R"({"choices":[{"delta":{"reasoning_content":"hm"},"finish_reason":"stop"}]})", event));
  EXPECT_TRUE(event.has_text);
  EXPECT_TRUE(event.is_finished);

  ASSERT_TRUE(read_completion_event(
      R"({"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":5,"total_tokens":12,)"
      R"("prompt_tokens_details":{"cached_tokens":3}}})",
      event));
  EXPECT_FALSE(event.has_choices);
  EXPECT_EQ(event.prompt_tokens, 7);
  EXPECT_EQ(event.completion_tokens, 5);
  EXPECT_EQ(event.cached_tokens, 3);
  EXPECT_FALSE(event.has_vectors);

  ASSERT_TRUE(read_completion_event(
      R"({"object":"list","data":[{"embedding":"AACAPw==","index":0}],"usage":{"prompt_tokens":4}})",
      event));
  EXPECT_TRUE(event.has_vectors);
  EXPECT_FALSE(event.has_choices);
  EXPECT_EQ(event.prompt_tokens, 4);
  ASSERT_TRUE(read_completion_event(R"({"object":"list","data":[]})", event));
  EXPECT_FALSE(event.has_vectors);

  ASSERT_TRUE(read_completion_event(
      R"({"choices":[{"message":{"content":"whole"},"finish_reason":"length"}]})", event));
  EXPECT_EQ(event.text, "whole");

  ASSERT_TRUE(read_completion_event(R"({"error":{"message":"no room","code":500}})", event));
  EXPECT_TRUE(event.has_error);
  EXPECT_EQ(event.error, "no room");
  ASSERT_TRUE(read_completion_event(R"({"error":"plain"})", event));
  EXPECT_EQ(event.error, R"("plain")");

  // Some servers put a member into each event that says of an error that there is none.
  for (const char* none : {"null", "false", "\"\"", "{}", "{ }", "[]"}) {
    const std::string json =
        R"({"choices":[{"text":"a","finish_reason":""}],"error":)" + std::string(none) + "}";
    ASSERT_TRUE(read_completion_event(json, event)) << none;
    EXPECT_FALSE(event.has_error) << none;
    EXPECT_TRUE(event.has_text) << none;
    EXPECT_FALSE(event.is_finished) << none;
  }
}

TEST(CompletionEvent, AgreesWithAJsonLibraryOnWhatIsAnObject) {
  const char* texts[] = {"{}",
                         " {\"a\":[1,2.5,-3e+7,0,true,false,null,\"x\\u00e9\\n\"]} ",
                         "[]",
                         "{\"a\":}",
                         "{\"a\":01}",
                         "{\"a\":1.}",
                         "{\"a\":-}",
                         "{\"a\":1e}",
                         "{a:1}",
                         "{\"a\":1,}",
                         "{\"a\":1}}",
                         "{\"a\":\"\\x\"}",
                         "{\"a\":\"\\u12g4\"}",
                         "{\"a\":\"tab\there\"}",
                         "{\"a\" : {\"b\" : [ { } , [ ] ] } }",
                         "{\"a\":tru}",
                         "",
                         "{",
                         "{\"choices\": [oops",
                         "nothing"};
  for (const char* text : texts) {
    CompletionEvent event;
    const auto json = nlohmann::json::parse(text, nullptr, false);
    EXPECT_EQ(read_completion_event(text, event), json.is_object()) << text;
  }
}

TEST(CompletionEvent, RefusesDeepNesting) {
  CompletionEvent event;
  const std::string deep = "{\"a\":" + std::string(100'000, '[');
  EXPECT_FALSE(read_completion_event(deep, event));
}

TEST(ServerMetrics, AddsUpLabelsAndSkipsWhatItCannotRead) {
  const auto before = parse_metrics(
      "# HELP a x\na_total{m=\"x{}\\\"\"} 1\na_total{m=\"y\"} 2 1700000000\nb "
      "5\nb_bucket{le=\"1\"} 4\n"
      "c nan\nd{x=\"1\n");
  EXPECT_EQ(before, (MetricValues{{"a_total", 3}, {"b", 5}}));
  const auto changes = compare_metrics(before, parse_metrics("a_total 7.5\nb 5\ne 1"));
  ASSERT_EQ(changes.size(), 1U);
  EXPECT_EQ(changes[0].name, "a_total");
  EXPECT_EQ(changes[0].before, 3);
  EXPECT_EQ(changes[0].after, 7.5);
}

// A server chooses its names and positions.
TEST(ServerMetrics, NamesAndPositionsAreBounded) {
  std::string lines;
  for (int i = 0; i < 9000; ++i) lines += "a{position=\"" + std::to_string(i) + "\"} 1\n";
  for (int i = 0; i < 9000; ++i) lines += "b" + std::to_string(i) + " 1\n";
  const MetricValues values = parse_metrics(lines);
  EXPECT_EQ(values.size(), 4096U);
  EXPECT_EQ(values.at("a"), 9000);
}

// Positions are kept apart, and one that no draft had reached before was 0.
TEST(ServerMetrics, SpeculationIsWhatChangedByPosition) {
  const std::string stem = "vllm:spec_decode_num_";
  const auto text = [&](int drafts, int tokens, const std::vector<int>& accepted) {
    int sum = 0;
    std::string lines;
    for (size_t i = 0; i < accepted.size(); ++i) {
      sum += accepted[i];
      lines += stem + "accepted_tokens_per_pos_total{model_name=\"m\",position=\"" +
               std::to_string(i) + "\"} " + std::to_string(accepted[i]) + "\n";
    }
    return lines + stem + "drafts_total{model_name=\"m\"} " + std::to_string(drafts) + "\n" + stem +
           "draft_tokens_total{model_name=\"m\"} " + std::to_string(tokens) + "\n" + stem +
           "accepted_tokens_total{model_name=\"m\"} " + std::to_string(sum) + "\n";
  };
  const MetricValues before = parse_metrics(text(10, 30, {5}));
  const auto changes = compare_metrics(before, parse_metrics(text(20, 70, {11, 4, 1})));
  const auto found = speculation_of(changes);
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->num_drafts, 10);
  EXPECT_EQ(found->accepted_at, (std::vector<double>{0.6, 0.4, 0.1}));
  EXPECT_DOUBLE_EQ(found->rate(), 11.0 / 40);
  EXPECT_DOUBLE_EQ(found->length(), 2.1);
  EXPECT_FALSE(speculation_of(compare_metrics(before, before)).has_value());
  // A label that only ends like it, and one that is no number.
  for (const char* label :
       {"x_position=\"1\"", "position=\"a\"", "position=\"\"", "position=\"1"}) {
    for (const auto& [name, value] : parse_metrics("a{" + std::string(label) + "} 1\n")) {
      EXPECT_EQ(name, "a") << label;
    }
  }
}

}  // namespace
}  // namespace sluice::load
