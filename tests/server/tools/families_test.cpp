// SPDX-License-Identifier: Apache-2.0
// Names of families, and what templates and vocabularies show of them.
#include "server/tools/families.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "server/prompt/chat_template.h"
#include "server/tools/output_format.h"
#include "tests/server/tools/transcript.h"

namespace sluice {
namespace {

TEST(Families, NamesOfOtherServersAreKnown) {
  for (const std::string_view name : {"hermes",
                                      "qwen3_json",
                                      "qwen25",
                                      "qwen",
                                      "qwen3_coder",
                                      "qwen3_xml",
                                      "step3p5",
                                      "mimo",
                                      "seed_oss",
                                      "llama3_json",
                                      "llama3",
                                      "llama4_json",
                                      "llama4_pythonic",
                                      "pythonic",
                                      "lfm2",
                                      "olmo3",
                                      "mistral",
                                      "deepseek_v3",
                                      "deepseekv3",
                                      "deepseek_v31",
                                      "deepseekv31",
                                      "deepseek_v32",
                                      "deepseekv32",
                                      "deepseek_v4",
                                      "deepseek_v41",
                                      "glm45",
                                      "glm",
                                      "glm47",
                                      "poolside_v1",
                                      "kimi_k2",
                                      "kimi",
                                      "kimi_k3",
                                      "minimax_m2",
                                      "minimax-m2",
                                      "granite",
                                      "granite4",
                                      "granite-20b-fc",
                                      "openai",
                                      "gpt-oss",
                                      "gemma4",
                                      "functiongemma",
                                      "phi4_mini",
                                      "phi4_mini_json",
                                      "cohere_command3",
                                      "cohere_command4",
                                      "jamba",
                                      "hunyuan_a13b",
                                      "hunyuan",
                                      "hy_v3",
                                      "hy_v4",
                                      "ernie45",
                                      "step3",
                                      "apertus",
                                      "apertus2509",
                                      "internlm",
                                      "interns1",
                                      "gigachat3",
                                      "xlam",
                                      "longcat",
                                      "dots",
                                      "ling3",
                                      "step5",
                                      "minimax_m3",
                                      "minicpm5",
                                      "muse",
                                      "muse_glimmer",
                                      "musespark1x",
                                      "solar_open",
                                      "functionary_v3_2"}) {
    EXPECT_NE(find_call_family(name), nullptr) << name;
  }
  for (const std::string_view name : {"qwen3",
                                      "deepseek_r1",
                                      "deepseek-r1",
                                      "deepseek_v3",
                                      "deepseek_v31",
                                      "deepseek_v32",
                                      "nemotron_v3",
                                      "step3",
                                      "step3p5",
                                      "holo2",
                                      "mimo",
                                      "seed_oss",
                                      "olmo3",
                                      "mistral",
                                      "glm45",
                                      "glm47",
                                      "kimi_k2",
                                      "kimi_k3",
                                      "minimax_m2",
                                      "minimax_m2_append_think",
                                      "granite",
                                      "granite_thinking_parser",
                                      "openai_gptoss",
                                      "gpt-oss",
                                      "gemma4",
                                      "cohere_command3",
                                      "cohere_command4",
                                      "hunyuan_a13b",
                                      "hunyuan",
                                      "hy_v3",
                                      "ernie45",
                                      "ling3",
                                      "minimax_m3",
                                      "muse",
                                      "muse_glimmer",
                                      "solar_open"}) {
    EXPECT_NE(find_reasoning_family(name), nullptr) << name;
  }
  EXPECT_EQ(find_call_family("none"), nullptr);
  EXPECT_EQ(find_call_family(""), nullptr);
  EXPECT_EQ(find_reasoning_family("hermes"), nullptr);
  EXPECT_EQ(name_of(*find_call_family("llama3")), "llama3_json");
}

TEST(Families, ANameMeansOneFamily) {
  for (const std::vector<std::string_view>& names :
       {call_family_names(), reasoning_family_names()}) {
    EXPECT_TRUE(std::ranges::is_sorted(names));
    EXPECT_EQ(std::ranges::adjacent_find(names), names.end());
  }
}

TEST(Families, TemplatesShowThem) {
  constexpr std::string_view kSpecials[] = {"<|python_tag|>", "<|channel|>", "<|message|>"};
  const std::unique_ptr<Tokenizer> tokenizer = make_byte_tokenizer(kSpecials);
  const auto detect = [&](std::string_view source) {
    const DetectedFamilies found = detect_families(source, *tokenizer);
    return std::string(found.calls == nullptr ? "none" : name_of(*found.calls)) + " " +
           std::string(found.reasoning == nullptr ? "none" : name_of(*found.reasoning));
  };
  EXPECT_EQ(detect("{{ messages }}"), "none none");
  EXPECT_EQ(detect("<tool_call>\n{\"name\": n, \"arguments\": a}</tool_call>"), "hermes none");
  EXPECT_EQ(detect("<think></think><tool_call><function=f><parameter=p> arguments"),
            "qwen3_coder qwen3");
  // Olmo 3 Think's template opens the prompt's last turn with it, and shows no end.
  EXPECT_EQ(detect("'<|im_start|>assistant\n<think>'"), "none qwen3");
  // Values of MiMo touch their tags, Step-3.5's are between newlines.
  EXPECT_EQ(detect("<think></think>'<tool_call><function=' ~ n ~ '<parameter=' ~ k ~ '>' ~ v ~ "
                   "'</parameter>'"),
            "mimo qwen3");
  EXPECT_EQ(detect("<think></think><tool_call>\\n<function=f>\\n<parameter=p>\\nvalue_1\\n</parameter>"
                   "' + v + '\\n</parameter>\\n'"),
            "qwen3_coder qwen3");
  // GLM-4.6's template, then 4.7's and 5's: a key and its value on two lines, or side by side.
  EXPECT_EQ(detect("'\\n<tool_call>' + tc.name }}\n{% for k, v in _args | items %}\n"
                   "<arg_key>{{ k }}</arg_key>\n<arg_value>{{ v }}</arg_value>\n{% endfor %}"),
            "glm45 none");
  EXPECT_EQ(detect("'<tool_call>' + tc.name -}}\n{% for k, v in _args.items() %}<arg_key>{{ k }}"
                   "</arg_key><arg_value>{{ v }}</arg_value>{% endfor %}"),
            "glm47 none");
  EXPECT_EQ(detect("<|channel|>analysis<|message|>"), "openai openai_gptoss");
  EXPECT_EQ(detect("<function name=\"f\"><param name=\"k\">"), "minicpm5 none");
  EXPECT_EQ(detect("]<]minimax[>[<tool_call><invoke name=\"f\"> arguments <mm:think>"),
            "minimax_m3 minimax_m3");
  EXPECT_EQ(detect("'<tool_sep{}>' '<arg_key{}>' '<think{}>' '</think{}>'"), "hy_v3 hunyuan_a13b");
  EXPECT_EQ(detect("<atem:function_calls><atem:invoke name="), "muse muse");
  EXPECT_EQ(detect("'>>>all\\n' '>>>'"), "functionary_v3_2 none");
  EXPECT_EQ(detect("List of tools: ["), "lfm2 none");
  EXPECT_EQ(detect("in the format of [func_name1(params_name1=params_value1)"), "pythonic none");
  EXPECT_EQ(detect("[{\"name\": \"tool_call_name\", \"arguments\": {}}]"), "xlam none");
  EXPECT_EQ(detect("<function_call> {\"name\": n, \"arguments\": a}"), "granite-20b-fc none");
  // A template of another model's vocabulary: its tokens are not there.
  EXPECT_EQ(detect("<|tool_calls_section_begin|>"), "none none");
}

TEST(Families, TheBuiltInTemplateOfDeepseekShowsThem) {
  constexpr std::string_view kSpecials[] = {"｜DSML｜", "<｜User｜>", "<think>", "</think>"};
  const std::unique_ptr<Tokenizer> tokenizer = make_byte_tokenizer(kSpecials);
  const DetectedFamilies found = detect_families(built_in_template("deepseek_v32"), *tokenizer);
  ASSERT_TRUE(found.calls != nullptr && found.reasoning != nullptr);
  EXPECT_EQ(name_of(*found.calls), "deepseek_v32");
  EXPECT_EQ(name_of(*found.reasoning), "qwen3");  // <think> and </think>
}

TEST(Families, Phi4MiniCallsAsItsTemplateShows) {
  constexpr std::string_view kSpecials[] = {
      "<|tool|>", "<|/tool|>", "<|tool_call|>", "<|/tool_call|>"};
  const std::unique_ptr<Tokenizer> tokenizer = make_byte_tokenizer(kSpecials);
  const std::string own = "message['content'] + '<|tool|>' + message['tools'] + '<|/tool|>'";
  EXPECT_EQ(name_of(*detect_families(own, *tokenizer).calls), "phi4_mini");
  EXPECT_EQ(name_of(*detect_families(own + " functools[{", *tokenizer).calls), "phi4_mini_json");
  EXPECT_EQ(name_of(*detect_families("functools[{", *tokenizer).calls), "firefunction");
  const auto marker_of = [&](std::string_view family) {
    return call_form(*find_call_family(family), *tokenizer).open.front();
  };
  EXPECT_EQ(marker_of("phi4_mini").token, tokenizer->find_token("<|tool_call|>"));
  EXPECT_EQ(marker_of("phi4_mini_json").text, "functools[");
}

TEST(Families, MarkersAreSymbolsWhereTheVocabularyHasThem) {
  constexpr std::string_view kSpecials[] = {"<tool_call>", "｜DSML｜"};
  const std::unique_ptr<Tokenizer> tokenizer = make_byte_tokenizer(kSpecials);
  const OutputFormat hermes(find_call_family("hermes"), nullptr, *tokenizer);
  EXPECT_EQ(hermes.markers()[0].symbols.size(), 1u);
  EXPECT_EQ(hermes.symbol_of(256), kFirstSpecial);
  EXPECT_EQ(hermes.symbol_of(257), 0);
  EXPECT_EQ(hermes.markers()[1].symbols.size(), std::string_view("</tool_call>").size());
  const OutputFormat dsml(find_call_family("deepseek_v32"), nullptr, *tokenizer);
  EXPECT_EQ(dsml.markers()[0].symbols.size(), std::string_view("<function_calls>").size() + 1);
}

}  // namespace
}  // namespace sluice
