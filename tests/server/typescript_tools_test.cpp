// SPDX-License-Identifier: Apache-2.0
// Tools of Kimi's models: declarations as the published code writes them, keys in its order, and
// both in the prompt.
#include "server/prompt/typescript_tools.h"

#include <fstream>
#include <nlohmann/json.hpp>

#include "server/tools/output_families.h"
#include "tests/server/tools/transcript.h"
#include "tests/server/validator_rig.h"
#include "tests/support/golden_folder.h"
#include "tests/support/thread_time.h"

namespace sluice {
namespace {

using Json = nlohmann::ordered_json;

TEST(TypescriptTools, AreThoseOfThePublishedCode) {
  std::ifstream file(golden_folder() + "/templates/typescript_tools.json");
  const Json document = Json::parse(file);
  int num_refused = 0;
  for (const Json& row : document["rows"]) {
    const auto text = typescript_of_tools(with_sorted_keys(row["tools"]));
    if (row["text"].is_null()) ++num_refused;
    EXPECT_EQ(text ? Json(*text) : Json(), row["text"]) << row["tools"].dump();
  }
  EXPECT_EQ(num_refused, 15);
  EXPECT_EQ(document["rows"].size(), 70U);
}

// A request may name many properties; each is visited once.
TEST(TypescriptTools, ManyPropertiesTakeNoLongTime) {
  Json properties;
  Json required = Json::array();
  auto& members = (properties = Json::object()).get_ref<Json::object_t&>();
  for (int i = 0; i < 40'000; ++i) {
    const std::string name = std::to_string(i);
    members.push_back({name, {{"$ref", "#/$defs/d"}}});
    required.push_back(name);
  }
  const Json tools = Json::array(
      {{{"function",
         {{"name", "f"},
          {"parameters",
           {{"$defs", {{"d", Json::object()}}}, {"properties", properties}, {"required", required}}}}}}});
  const auto text =
      testing::in_time([&] { return typescript_of_tools(with_sorted_keys(tools)); });
  ASSERT_TRUE(text.has_value());
  EXPECT_NE(text->find("\n  39999: d,\n"), std::string::npos);
}

class KimiTools : public Validator {
 protected:
  std::string prompt(const std::string& source, bool sorts, const std::string& members) {
    template_ = ChatTemplate::compile(source);
    const ValidationContext context{.config = config_,
                                    .model = model_,
                                    .tokenizer = tokenizer_,
                                    .chat_template = template_,
                                    .model_names = names_,
                                    .unset_seed = 7,
                                    .tenant_salt = 0,
                                    .arrival = std::chrono::steady_clock::now(),
                                    .sorts_tools = sorts};
    model_.max_model_len = 1000;
    const auto read = validate_generation(
        context,
        R"({"messages":[{"role":"user","content":"x"}],"max_tokens":1,)" + members + "}",
        Endpoint::kChat,
        ignored_);
    if (!read) return read.error().message;
    std::string text;
    for (const TokenId id : read->requests.front().prompt) text += static_cast<char>(id);
    return text;
  }
};

constexpr const char* kTools =
    R"("tools":[{"type":"function","function":{"name":"f","parameters":{"type":"object",
    "properties":{"b":{"type":"string"},"a":{"type":"integer"}}}}}])";
constexpr const char* kK2 =
    "{% if tools %}{{ tools | tojson }}{% endif %}{% for m in messages %}{{ m.content }}{% endfor %}";
// The templates from K2.5 on choose so.
constexpr const char* kK25 =
    "{% if tools %}{% if tools_ts_str %}{{ tools_ts_str }}{% else %}{{ tools | tojson }}{% endif %}"
    "{% endif %}{% for m in messages %}{{ m.content }}{% endfor %}";

TEST_F(KimiTools, StandInThePromptInTheirOrder) {
  EXPECT_EQ(prompt(kK2, false, kTools),
            R"([{"type": "function", "function": {"name": "f", "parameters": {"type": "object", )"
            R"("properties": {"b": {"type": "string"}, "a": {"type": "integer"}}}}}]x)");
  EXPECT_EQ(prompt(kK2, true, kTools),
            R"([{"function": {"name": "f", "parameters": {"properties": {"a": {"type": "integer"}, )"
            R"("b": {"type": "string"}}, "type": "object"}}, "type": "function"}]x)");
}

TEST_F(KimiTools, AreDeclarationsWhereTheTemplateTakesThem) {
  const std::string declared =
      "# Tools\n\n## functions\nnamespace functions {\ntype f = (_: {\n  a?: number,\n"
      "  b?: string\n}) => any;\n}\nx";
  EXPECT_EQ(prompt(kK25, true, kTools), declared);
  // A client has no say in it where there are tools.
  const std::string given = R"("chat_template_kwargs":{"tools_ts_str":"mine"})";
  EXPECT_EQ(prompt(kK25, true, std::string(kTools) + "," + given), declared);
  EXPECT_EQ(prompt(kK25, true, given), "x");
  // What cannot be declared is JSON.
  const std::string refused =
      R"("tools":[{"type":"function","function":{"name":"f","parameters":{"properties":{"a":5}}}}])";
  EXPECT_EQ(prompt(kK25, true, refused),
            R"([{"function": {"name": "f", "parameters": {"properties": {"a": 5}}}, )"
            R"("type": "function"}]x)");
}

// Kimi's templates tell that their tokenizers sort.
TEST_F(KimiTools, KeysAreSortedForItsTemplates) {
  constexpr std::string_view kSpecials[] = {"<|tool_calls_section_begin|>", "<tool_call>"};
  const std::unique_ptr<Tokenizer> tokenizer = make_byte_tokenizer(kSpecials);
  const auto sorts = [&](std::string_view source, const std::string& parser) {
    config_.tool_call_parser = parser;
    const auto chosen = choose_families(config_, source, true, *tokenizer);
    return chosen && chosen->sorts_tools;
  };
  const std::string kimi = "<|tool_calls_section_begin|>";
  EXPECT_TRUE(sorts(kimi, "auto"));
  EXPECT_TRUE(sorts(kimi, "none"));
  EXPECT_FALSE(sorts("<tool_call>{{ arguments }}", "kimi_k2"));
}

}  // namespace
}  // namespace sluice
