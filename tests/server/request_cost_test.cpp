// SPDX-License-Identifier: Apache-2.0
// What requests cost the I/O thread that reads them, which serves other connections meanwhile.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <span>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/core/config.h"
#include "server/api/messages_codec.h"
#include "server/api/parameters.h"
#include "server/api/response_tools.h"
#include "server/api/responses_codec.h"
#include "server/api/text_pairs.h"
#include "server/front/ignored_arguments.h"
#include "server/json/json_fields.h"
#include "server/prompt/generic_tools.h"
#include "server/prompt/message_forms.h"
#include "server/prompt/messages.h"
#include "server/prompt/tool_list.h"
#include "server/tools/tool_schemas.h"
#include "tests/support/byte_tokenizer.h"
#include "tests/support/thread_time.h"

namespace sluice {
namespace {

using Json = nlohmann::ordered_json;
using testing::in_time;

Json repeated(size_t count, const Json& element) { return Json(Json::array_t(count, element)); }

Json text_of(const std::string& role, Json content) {
  return {{"role", role}, {"content", std::move(content)}};
}

// An object of as many members as a request's may have, with long names that differ at their ends.
Json with_members(Json object) {
  constexpr int kMembers = 4000;
  const std::string prefix(1000, 'm');
  for (int i = 0; i < kMembers; ++i) append_member(object, prefix + std::to_string(10'000 + i), 1);
  return object;
}

TEST(RequestCost, ToolsOfAResponseAreRefusedBeforeTheyAreSearched) {
  Json tools = Json::array();
  for (int i = 0; i < 100'000; ++i) {
    tools.push_back({{"type", "custom"}, {"name", "a" + std::to_string(100'000 + i)}});
  }
  Json body = {{"input", "a"}, {"tools", std::move(tools)}};
  const auto expect_refusal = [&] {
    IgnoredArguments ignored(UnknownArguments::kIgnore);
    std::vector<ResponseTool> read;
    const auto chat =
        in_time([&] { return chat_of_responses(body, Json::array(), ignored, read); });
    ASSERT_FALSE(chat);
    EXPECT_EQ(chat.error().param, "tools");
    EXPECT_NE(chat.error().message.find("at most 512"), std::string::npos) << chat.error().message;
  };
  expect_refusal();
  Json in_namespace = {{"type", "namespace"}, {"name", "n"}, {"tools", std::move(body["tools"])}};
  body["tools"] = Json::array({std::move(in_namespace)});
  expect_refusal();
}

TEST(RequestCost, AResponseMayHaveAsManyToolsAsAChat) {
  Json tools = Json::array();
  for (size_t i = 0; i < kMaxTools; ++i) {
    tools.push_back({{"type", "function"}, {"name", "a" + std::to_string(i)}});
  }
  IgnoredArguments ignored(UnknownArguments::kIgnore);
  Json functions = Json::array();
  EXPECT_EQ(read_response_tools(tools, ignored, functions)->size(), kMaxTools);
  tools.push_back({{"type", "function"}, {"name", "another"}});
  functions = Json::array();
  EXPECT_FALSE(read_response_tools(tools, ignored, functions));
}

class DescribedTools : public ::testing::Test {
 protected:
  DescribedTools() { forms_.roles.emplace_back("system", ContentForms{.strings = true}); }

  Json described(Json messages) {
    const Json tools = Json::array({{{"type", "function"}, {"function", {{"name", "a"}}}}});
    return in_time([&] {
      describe_tools(forms_, tools, messages);
      return std::move(messages);
    });
  }

  MessageForms forms_;
};

TEST_F(DescribedTools, ManyCallsOfAnAnswer) {
  constexpr size_t kCalls = 30'000;
  const Json call = {{"function", {{"name", "a"}, {"arguments", Json::object()}}}};
  Json answer = text_of("assistant", "");
  answer["tool_calls"] = repeated(kCalls, call);
  const Json messages = described(Json::array({text_of("user", "a"), answer}));
  const std::string one = "<tool_call>\n{\"name\": \"a\", \"arguments\": {}}\n</tool_call>";
  const auto text = messages.back()["content"].get<std::string>();
  EXPECT_EQ(text.size(), kCalls * (one.size() + 2) - 2);
  EXPECT_EQ(text.substr(0, 2 * one.size() + 2), one + "\n\n" + one);
}

TEST_F(DescribedTools, ManyResultsBehindAMessageWithManyMembers) {
  constexpr size_t kResults = 40'000;
  Json messages = Json::array({with_members({{"role", "user"}})});
  messages[0]["content"] = "a";
  for (size_t i = 0; i < kResults; ++i) messages.push_back(text_of("tool", "b"));
  messages = described(std::move(messages));
  ASSERT_EQ(messages.size(), 2u);  // the description is the other
  const std::string one = "\n\n<tool_response>\nb\n</tool_response>";
  const auto text = messages.back()["content"].get<std::string>();
  EXPECT_EQ(text.size(), 1 + kResults * one.size());
  EXPECT_EQ(text.substr(0, 1 + one.size()), "a" + one);
}

TEST(RequestCost, ManyInstructionsBecomeOne) {
  constexpr size_t kInstructions = 30'000;
  MessageForms forms;
  forms.takes_two_instructions = false;
  const ContentForms any = {.strings = true, .parts = true};
  forms.roles = {{"system", any}, {"user", any}};
  const Json part = {{"type", "text"}, {"text", std::string(64, 'a')}};
  for (const Json& content : {Json::array({part}), part["text"]}) {
    Json messages = repeated(kInstructions, text_of("system", content));
    messages.push_back(text_of("user", "b"));
    messages = in_time([&] {
      fit_messages(forms, messages);
      return std::move(messages);
    });
    ASSERT_EQ(messages.size(), 2u);
    const Json& joined = messages[0]["content"];
    if (content.is_array()) {
      EXPECT_EQ(joined, repeated(kInstructions, part));
    } else {
      EXPECT_EQ(joined.get_ref<const std::string&>().size(), kInstructions * 66 - 2);
    }
  }
}

TEST(RequestCost, ManyEditsOfManyMessages) {
  Json body = {{"messages", Json::array()}};
  for (int i = 0; i < 10'000; ++i) {
    body["messages"].push_back(text_of("user", "a"));
    body["messages"].push_back(text_of("assistant", "b"));
  }
  const Json thought = {{"type", "thinking"}, {"thinking", "t"}};
  for (int i = 0; i < 3; ++i) {
    body["messages"].push_back(text_of("assistant", Json::array({thought})));
  }
  Json edits = repeated(30'000, {{"type", "clear_thinking_20251015"}, {"keep", {{"value", 3}}}});
  edits[20'000]["keep"]["value"] = 2;
  body["context_management"] = {{"edits", std::move(edits)}};
  IgnoredArguments ignored(UnknownArguments::kIgnore);
  const auto chat = in_time([&] { return chat_of_messages(body, {}, ignored); });
  ASSERT_TRUE(chat) << chat.error().message;
  const Json& messages = (*chat)["messages"];
  std::vector<bool> thinks;
  for (size_t i = messages.size() - 3; i < messages.size(); ++i) {
    thinks.push_back(messages[i].contains("reasoning_content"));
  }
  EXPECT_EQ(thinks, (std::vector<bool>{false, true, true}));  // the edit that keeps fewest counts
}

TEST(RequestCost, ManyUnknownMembersAreLeftOut) {
  const Json known = text_of("user", "a");
  Json message = with_members(known);
  message["clear_at"] = "never";
  Json body = {{"messages", repeated(16, message)}};
  const Json around = with_members(Json::object());
  for (const auto& [name, value] : around.items()) append_member(body, name, value);
  body["model"] = "m";
  IgnoredArguments ignored(UnknownArguments::kIgnore);
  const auto checked =
      in_time([&] { return check_parameters(body, Endpoint::kMessages, ignored); });
  ASSERT_TRUE(checked) << checked.error().message;
  message = known;
  message["clear_at"] = "never";
  EXPECT_EQ(body.dump(), Json({{"messages", repeated(16, message)}, {"model", "m"}}).dump());
  EXPECT_EQ(ignored.size(), 17 * around.size());
}

TEST(RequestCost, ManyMembersOfAMessageStayInTheirOrder) {
  const Json function = with_members({{"name", "f"}, {"arguments", Json::object()}});
  Json message = with_members(text_of("assistant", "a"));
  message["tool_calls"] = Json::array({with_members({{"function", function}})});
  const Json given = Json::array({message});
  const CallArgumentRules rules = {.max_depth = 8, .keeps_text = false};
  const auto messages = in_time([&] {
    for (int i = 0; i < 10; ++i) {
      if (auto normal = normal_messages(given, rules); !normal) return normal;
    }
    return normal_messages(given, rules);
  });
  ASSERT_TRUE(messages) << messages.error().message;
  EXPECT_EQ(messages->dump(), given.dump());
}

class CountingTokenizer final : public ByteTokenizer {
 public:
  Expected<void> encode_marked(std::string_view text,
                               std::span<const TextRange> literal_ranges,
                               std::vector<TokenId>& out) const override {
    num_bytes += text.size();
    return ByteTokenizer::encode_marked(text, literal_ranges, out);
  }

  mutable size_t num_bytes = 0;
};

TEST(RequestCost, AQueryIsTokenizedOnceForItsDocuments) {
  const Config config;
  ModelInfo model;
  model.pooling.emplace().is_classifier = true;
  const CountingTokenizer tokenizer;
  const Expected<ChatTemplate> no_template = make_error(ErrorCode::kUnsupported, "none");
  const std::vector<std::string> names = {"m"};
  const ValidationContext context{config, model, tokenizer, no_template, names, 0, 0, {}};
  InputRules rules;
  rules.most = 10'000;
  rules.param = "documents";
  const std::string query(1'000, 'q');
  std::optional<JudgeForm> form;
  const auto front = pair_front(context, rules, form, query, 2'048);
  ASSERT_TRUE(front);
  for (int i = 0; i < 10; ++i) {
    const auto ids = encode_pair(context, rules, *front, "document", i);
    ASSERT_TRUE(ids) << ids.error().message;
    EXPECT_EQ(ids->size(), 1'000 + 8 + 1u);  // <s> begins them
  }
  EXPECT_EQ(tokenizer.num_bytes, 1'000 + 10 * 8u);
  // In a conversation it is a part of one text with each document.
  model.pooling->label_tokens = {1, 2};
  model.pooling->is_qwen3_reranker = true;
  EXPECT_TRUE(pair_front(context, rules, form, std::string(32 << 10, 'q'), 2'048));
  const auto refused = pair_front(context, rules, form, std::string((32 << 10) + 1, 'q'), 2'048);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().param, "documents");
}

// Definitions that are lists of each other, the last a long enum: {"$ref": ...} many times over.
Json nested_definitions(int depth, size_t width, Json last) {
  Json definitions = {{"d0", std::move(last)}};
  for (int i = 1; i <= depth; ++i) {
    const Json inner = {{"$ref", "#/$defs/d" + std::to_string(i - 1)}};
    definitions["d" + std::to_string(i)] = {{"allOf", repeated(width, inner)}};
  }
  return definitions;
}

TEST(RequestCost, ReferencesToALongList) {
  const Json parameters = {
      {"$defs", nested_definitions(3, 40, {{"enum", repeated(100'000, 0)}})},
      {"properties", {{"p", {{"$ref", "#/$defs/d3"}}}, {"q", {{"type", "string"}}}}}};
  const auto schemas = in_time([&] {
    ToolSchemas made;
    made.add("first", {{"properties", {{"q", {{"type", "string"}}}}}});
    for (int i = 0; i < 8; ++i) made.add("f" + std::to_string(i), parameters);
    return made;
  });
  EXPECT_EQ(schemas.types_of("first", "q"), kJsonString);
  EXPECT_EQ(schemas.types_of("f7", "q"), kJsonAny);  // nothing is left to look with
}

}  // namespace
}  // namespace sluice
