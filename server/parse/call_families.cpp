// SPDX-License-Identifier: Apache-2.0
// How families write calls: one row each, with the names of vLLM and SGLang.
#include "server/parse/output_format.h"

namespace sluice {
namespace {

using enum Role;
using Names = std::string_view;

// <tool_call>{"name": ..., "arguments": ...}</tool_call>
constexpr MarkerText kHermes[] = {{kCallBegin, "<tool_call>"}, {kCallEnd, "</tool_call>"}};
constexpr CallText kHermesText[] = {{.begin = "<tool_call>\n{\"name\": \"",
                                     .behind_name = "\", \"arguments\": ",
                                     .end = "}\n</tool_call>",
                                     .separator = "\n"}};
constexpr Names kHermesNames[] = {"qwen3_json", "qwen25", "qwen", "granite4", "ernie45", "smollm3"};
constexpr Names kHermesDetect[] = {"<tool_call>", "arguments"};

// <tool_call><function=NAME><parameter=KEY>VALUE</parameter></function></tool_call>
constexpr MarkerText kXml[] = {
    {kSectionBegin, "<tool_call>"},
    {kSectionEnd, "</tool_call>"},
    {kCallBegin, "<function="},
    {kNameEnd, ">"},
    {kCallEnd, "</function>"},
    {kKeyBegin, "<parameter="},
    {kKeyEnd, ">"},
    {kValueEnd, "</parameter>"},
};
constexpr CallText kXmlText[] = {{.begin = "<tool_call>\n<function=",
                                  .behind_name = ">\n",
                                  .end = "</function>\n</tool_call>",
                                  .separator = "\n",
                                  .key_begin = "<parameter=",
                                  .key_end = ">\n",
                                  .value_end = "\n</parameter>\n"}};
constexpr CallText kMimoText[] = {{.begin = "<tool_call>\n<function=",
                                   .behind_name = ">\n",
                                   .end = "</function>\n</tool_call>",
                                   .separator = "\n",
                                   .key_begin = "<parameter=",
                                   .key_end = ">",
                                   .value_end = "</parameter>\n"}};
constexpr Names kXmlNames[] = {"qwen3_xml", "nemotron_v3", "step3p5"};
constexpr Names kXmlDetect[] = {"<tool_call>", "<function=", "<parameter="};

constexpr MarkerText kSeed[] = {
    {kSectionBegin, "<seed:tool_call>"},
    {kSectionEnd, "</seed:tool_call>"},
    {kCallBegin, "<function="},
    {kNameEnd, ">"},
    {kCallEnd, "</function>"},
    {kKeyBegin, "<parameter="},
    {kKeyEnd, ">"},
    {kValueEnd, "</parameter>"},
};
constexpr CallText kSeedText[] = {{.begin = "<seed:tool_call>\n<function=",
                                   .behind_name = ">\n",
                                   .end = "</function>\n</seed:tool_call>",
                                   .separator = "\n",
                                   .key_begin = "<parameter=",
                                   .key_end = ">\n",
                                   .value_end = "\n</parameter>\n"}};
constexpr Names kSeedDetect[] = {"<seed:tool_call>"};

constexpr MarkerText kToolcall[] = {{kCallBegin, "<TOOLCALL>"}, {kCallEnd, "</TOOLCALL>"}};
constexpr CallText kToolcallText[] = {{.open = "<TOOLCALL>[",
                                       .begin = "{\"name\": \"",
                                       .behind_name = "\", \"arguments\": ",
                                       .end = "}",
                                       .separator = ", ",
                                       .close = "]</TOOLCALL>"}};
constexpr Names kToolcallDetect[] = {"<TOOLCALL>"};

constexpr MarkerText kLlama3[] = {{kCallBegin, "<|python_tag|>"}};
constexpr CallText kLlama3Text[] = {{.begin = "{\"name\": \"",
                                     .behind_name = "\", \"parameters\": ",
                                     .end = "}",
                                     .separator = "; "}};
constexpr Names kLlama3Names[] = {"llama3", "llama4_json"};
constexpr Names kLlama3Detect[] = {"{\"name\": function name, \"parameters\": dictionary"};

constexpr MarkerText kLlama4[] = {{kCallBegin, "<|python_start|>"}, {kCallEnd, "<|python_end|>"}};
constexpr Names kLlama4Detect[] = {"<|python_start|>"};

constexpr MarkerText kLfm2[] = {{kCallBegin, "<|tool_call_start|>"},
                                {kCallEnd, "<|tool_call_end|>"}};
constexpr Names kLfm2Detect[] = {"<|tool_list_start|>"};

constexpr MarkerText kOlmo3[] = {{kCallBegin, "<function_calls>"}, {kCallEnd, "</function_calls>"}};
constexpr Names kOlmo3Detect[] = {"<functions>", "<function_calls>"};

constexpr MarkerText kMistral[] = {
    {kCallBegin, "[TOOL_CALLS]"}, {kNameEnd, "[ARGS]"}, {kIdBegin, "[CALL_ID]"}};
constexpr CallText kMistralText[] = {
    {.needs = "[ARGS]", .begin = "[TOOL_CALLS]", .behind_name = "[ARGS]"},
    {.open = "[TOOL_CALLS][",
     .begin = "{\"name\": \"",
     .behind_name = "\", \"arguments\": ",
     .end = "}",
     .separator = ", ",
     .close = "]"}};
constexpr Names kMistralDetect[] = {"[TOOL_CALLS]"};

constexpr MarkerText kDeepseek[] = {
    {kSectionBegin, "<｜tool▁calls▁begin｜>"},
    {kSectionEnd, "<｜tool▁calls▁end｜>"},
    {kCallBegin, "<｜tool▁call▁begin｜>"},
    {kCallEnd, "<｜tool▁call▁end｜>"},
    {kNameEnd, "<｜tool▁sep｜>"},
    {kFence, "```json"},
    {kFence, "```"},
};
constexpr CallText kDeepseekV3Text[] = {{.open = "<｜tool▁calls▁begin｜>",
                                         .begin = "<｜tool▁call▁begin｜>function<｜tool▁sep｜>",
                                         .behind_name = "\n```json\n",
                                         .end = "\n```<｜tool▁call▁end｜>",
                                         .separator = "\n",
                                         .close = "<｜tool▁calls▁end｜>"}};
constexpr CallText kDeepseekV31Text[] = {{.open = "<｜tool▁calls▁begin｜>",
                                          .begin = "<｜tool▁call▁begin｜>",
                                          .behind_name = "<｜tool▁sep｜>",
                                          .end = "<｜tool▁call▁end｜>",
                                          .close = "<｜tool▁calls▁end｜>"}};
constexpr Names kDeepseekV3Names[] = {"deepseekv3"};
constexpr Names kDeepseekV3Detect[] = {"<｜tool▁calls▁begin｜>", "```json"};
constexpr Names kDeepseekV31Names[] = {"deepseekv31"};
constexpr Names kDeepseekV31Detect[] = {"<｜tool▁calls▁begin｜>"};

constexpr MarkerText kDsml[] = {
    {kSectionBegin, "<｜DSML｜function_calls>"},
    {kSectionEnd, "</｜DSML｜function_calls>"},
    {kSectionBegin, "<｜DSML｜tool_calls>"},
    {kSectionEnd, "</｜DSML｜tool_calls>"},
    {kSectionBegin, "<｜DSML｜ tool_calls>"},
    {kSectionEnd, "</｜DSML｜ tool_calls>"},
    {kCallBegin, "<｜DSML｜invoke name=\""},
    {kCallBegin, "<｜DSML｜ invoke name=\""},
    {kNameEnd, "\">"},
    {kCallEnd, "</｜DSML｜invoke>"},
    {kCallEnd, "</｜DSML｜ invoke>"},
    {kKeyBegin, "<｜DSML｜parameter name=\""},
    {kKeyBegin, "<｜DSML｜ parameter name=\""},
    {kKeyEnd, "\">"},
    {kKeyEndString, "\" string=\"true\">"},
    {kKeyEndJson, "\" string=\"false\">"},
    {kValueEnd, "</｜DSML｜parameter>"},
    {kValueEnd, "</｜DSML｜ parameter>"},
};
constexpr CallText kDsmlText[] = {{.open = "<｜DSML｜function_calls>\n",
                                   .begin = "<｜DSML｜invoke name=\"",
                                   .behind_name = "\">\n",
                                   .end = "</｜DSML｜invoke>\n",
                                   .close = "</｜DSML｜function_calls>",
                                   .key_begin = "<｜DSML｜parameter name=\"",
                                   .key_end = "\" string=\"true\">",
                                   .json_key_end = "\" string=\"false\">",
                                   .value_end = "</｜DSML｜parameter>\n"}};
constexpr Names kDsmlNames[] = {
    "deepseekv32", "deepseek_v4", "deepseekv4", "deepseek_v41", "deepseekv41"};
constexpr Names kDsmlDetect[] = {"｜DSML｜"};

constexpr MarkerText kGlm[] = {
    {kCallBegin, "<tool_call>"},
    {kCallEnd, "</tool_call>"},
    {kKeyBegin, "<arg_key>"},
    {kKeyEnd, "</arg_key>"},
    {kValueBegin, "<arg_value>"},
    {kValueEnd, "</arg_value>"},
};
constexpr CallText kGlm45Text[] = {{.begin = "<tool_call>",
                                    .behind_name = "\n",
                                    .end = "</tool_call>",
                                    .separator = "\n",
                                    .key_begin = "<arg_key>",
                                    .key_end = "</arg_key>\n<arg_value>",
                                    .value_end = "</arg_value>\n"}};
constexpr CallText kGlm47Text[] = {{.begin = "<tool_call>",
                                    .end = "</tool_call>",
                                    .key_begin = "<arg_key>",
                                    .key_end = "</arg_key><arg_value>",
                                    .value_end = "</arg_value>"}};
constexpr Names kGlm45Names[] = {"glm"};
constexpr Names kGlm47Names[] = {"poolside_v1"};
constexpr Names kGlmDetect[] = {"<arg_key>", "<arg_value>", "<tool_call>"};

constexpr MarkerText kHunyuanV3[] = {
    {kSectionBegin, "<tool_calls>"},
    {kSectionEnd, "</tool_calls>"},
    {kCallBegin, "<tool_call>"},
    {kCallEnd, "</tool_call>"},
    {kNameEnd, "<tool_sep>"},
    {kKeyBegin, "<arg_key>"},
    {kKeyEnd, "</arg_key>"},
    {kValueBegin, "<arg_value>"},
    {kValueEnd, "</arg_value>"},
};
constexpr Names kHunyuanV3Names[] = {"hy_v4"};
constexpr Names kHunyuanV3Detect[] = {"<tool_sep>", "<arg_key>"};

constexpr MarkerText kKimiK2[] = {
    {kSectionBegin, "<|tool_calls_section_begin|>"},
    {kSectionEnd, "<|tool_calls_section_end|>"},
    {kCallBegin, "<|tool_call_begin|>"},
    {kCallEnd, "<|tool_call_end|>"},
    {kNameEnd, "<|tool_call_argument_begin|>"},
};
constexpr Names kKimiK2Names[] = {"kimi"};
constexpr Names kKimiK2Detect[] = {"<|tool_calls_section_begin|>"};

constexpr MarkerText kKimiK3[] = {
    {kHeaderBegin, "<|open|>"}, {kHeaderEnd, "<|sep|>"}, {kMessageEnd, "<|close|>"}};
constexpr Names kKimiK3Detect[] = {"<|open|>", "<|sep|>", "<|close|>"};

constexpr MarkerText kMinimax[] = {
    {kSectionBegin, "<minimax:tool_call>"},
    {kSectionEnd, "</minimax:tool_call>"},
    {kCallBegin, "<invoke name=\""},
    {kNameEnd, "\">"},
    {kCallEnd, "</invoke>"},
    {kKeyBegin, "<parameter name=\""},
    {kKeyEnd, "\">"},
    {kValueEnd, "</parameter>"},
};
constexpr CallText kMinimaxText[] = {{.open = "<minimax:tool_call>\n",
                                      .begin = "<invoke name=\"",
                                      .behind_name = "\">\n",
                                      .end = "</invoke>\n",
                                      .close = "</minimax:tool_call>",
                                      .key_begin = "<parameter name=\"",
                                      .key_end = "\">",
                                      .value_end = "</parameter>\n"}};
constexpr Names kMinimaxNames[] = {"minimax-m2"};
constexpr Names kMinimaxDetect[] = {"<minimax:tool_call>"};

constexpr MarkerText kGranite[] = {{kCallBegin, "<|tool_call|>"}, {kCallBegin, "<tool_call>"}};
constexpr CallText kGraniteText[] = {{.needs = "<|tool_call|>",
                                      .open = "<|tool_call|>[",
                                      .begin = "{\"name\": \"",
                                      .behind_name = "\", \"arguments\": ",
                                      .end = "}",
                                      .separator = ", ",
                                      .close = "]"},
                                     {.open = "<tool_call>[",
                                      .begin = "{\"name\": \"",
                                      .behind_name = "\", \"arguments\": ",
                                      .end = "}",
                                      .separator = ", ",
                                      .close = "]"}};
constexpr Names kGraniteDetect[] = {"available_tools", "<|tool_call|>"};

constexpr MarkerText kGranite20b[] = {{kCallBegin, "<function_call>"}};
constexpr CallText kGranite20bText[] = {{.begin = "<function_call> {\"name\": \"",
                                         .behind_name = "\", \"arguments\": ",
                                         .end = "}",
                                         .separator = "\n"}};
constexpr Names kGranite20bNames[] = {"granite-20b"};

constexpr MarkerText kHarmony[] = {
    {kHeaderBegin, "<|start|>"},
    {kHeaderEnd, "<|message|>"},
    {kChannel, "<|channel|>"},
    {kConstrain, "<|constrain|>"},
    {kMessageEnd, "<|end|>"},
    {kMessageEnd, "<|call|>"},
    {kMessageEnd, "<|return|>"},
};
constexpr Names kHarmonyNames[] = {"gpt-oss", "gpt_oss", "openai_gptoss"};
constexpr Names kHarmonyDetect[] = {"<|channel|>", "<|message|>", "analysis"};

constexpr MarkerText kGemma4[] = {
    {kCallBegin, "<|tool_call>"}, {kCallEnd, "<tool_call|>"}, {kQuote, "<|\"|>"}};
constexpr Names kGemma4Detect[] = {"<|tool_call>", "<tool_call|>"};

constexpr MarkerText kFunctionGemma[] = {
    {kCallBegin, "<start_function_call>"}, {kCallEnd, "<end_function_call>"}, {kQuote, "<escape>"}};
constexpr Names kFunctionGemmaDetect[] = {"<start_function_call>"};

constexpr MarkerText kFunctools[] = {{kCallBegin, "functools"}};
constexpr CallText kFunctoolsText[] = {{.open = "functools[",
                                        .begin = "{\"name\": \"",
                                        .behind_name = "\", \"arguments\": ",
                                        .end = "}",
                                        .separator = ", ",
                                        .close = "]"}};
constexpr Names kPhi4Detect[] = {"<|tool|>", "<|/tool|>"};
constexpr Names kFunctoolsDetect[] = {"functools"};

constexpr MarkerText kCohere[] = {{kCallBegin, "<|START_ACTION|>"}, {kCallEnd, "<|END_ACTION|>"}};
constexpr Names kCohereNames[] = {"cohere_command4"};
constexpr Names kCohereDetect[] = {"<|START_ACTION|>"};

constexpr MarkerText kCommandR[] = {{kCallBegin, "Action: ```json"},
                                    {kCallBegin, "Action:\n```json"},
                                    {kCallBegin, "Action:```json"},
                                    {kCallEnd, "```"}};
constexpr Names kCommandRDetect[] = {"Action:", "```json", "\"tool_name\""};

constexpr MarkerText kToolCalls[] = {{kCallBegin, "<tool_calls>"}, {kCallEnd, "</tool_calls>"}};
constexpr CallText kToolCallsText[] = {{.open = "<tool_calls>[",
                                        .begin = "{\"name\": \"",
                                        .behind_name = "\", \"arguments\": ",
                                        .end = "}",
                                        .separator = ", ",
                                        .close = "]</tool_calls>"}};
constexpr Names kToolCallsNames[] = {"hunyuan_a13b", "hunyuan"};
constexpr Names kAprielDetect[] = {"<tool_calls>", "[BEGIN FINAL RESPONSE]"};
constexpr Names kToolCallsDetect[] = {"<tool_calls>"};

constexpr MarkerText kStep3[] = {
    {kSectionBegin, "<｜tool_calls_begin｜>"},
    {kSectionEnd, "<｜tool_calls_end｜>"},
    {kCallBegin, "<｜tool_call_begin｜>"},
    {kCallEnd, "<｜tool_call_end｜>"},
    {kFence, "<｜tool_sep｜>"},
    {kNameEnd, "<steptml:invoke name=\""},
    {kNameEnd, "\">"},
    {kCallEnd, "</steptml:invoke>"},
    {kKeyBegin, "<steptml:parameter name=\""},
    {kKeyEnd, "\">"},
    {kValueEnd, "</steptml:parameter>"},
};
constexpr Names kStep3Detect[] = {"<steptml:invoke"};

constexpr MarkerText kApertus[] = {{kCallBegin, "<|tools_prefix|>"},
                                   {kCallEnd, "<|tools_suffix|>"}};
constexpr CallText kApertusText[] = {{.open = "<|tools_prefix|>[",
                                      .begin = "{\"",
                                      .behind_name = "\": ",
                                      .end = "}",
                                      .separator = ", ",
                                      .close = "]<|tools_suffix|>"}};
constexpr Names kApertusNames[] = {"apertus2509"};
constexpr Names kApertusDetect[] = {"<|tools_prefix|>"};

constexpr MarkerText kInternlm[] = {
    {kCallBegin, "<|action_start|><|plugin|>"},
    {kCallBegin, "<|action_start|> <|plugin|>"},
    {kCallEnd, "<|action_end|>"},
};
constexpr CallText kInternlmText[] = {{.begin = "<|action_start|><|plugin|>{\"name\": \"",
                                       .behind_name = "\", \"parameters\": ",
                                       .end = "}<|action_end|>",
                                       .separator = "\n"}};
constexpr Names kInternlmNames[] = {"interns1"};
constexpr Names kInternlmDetect[] = {"<|action_start|>", "<|plugin|>"};

constexpr MarkerText kFunctionary[] = {
    {kCallBegin, "<function="}, {kNameEnd, ">"}, {kCallEnd, "</function>"}};
constexpr CallText kFunctionaryText[] = {
    {.begin = "<function=", .behind_name = ">", .end = "</function>"}};
constexpr Names kFunctionaryNames[] = {"functionary_v3"};
constexpr Names kFunctionaryDetect[] = {"<function=", "</function>", "{start_tag}={function_name}"};

constexpr MarkerText kGigachat3[] = {{kCallBegin, "<|function_call|>"},
                                     {kCallBegin, "function call<|role_sep|>"},
                                     {kCallEnd, "<|message_sep|>"}};
constexpr Names kGigachat3Names[] = {"gigachat35"};
constexpr Names kGigachat3Detect[] = {"function call", "<|role_sep|>"};

constexpr MarkerText kXlam[] = {{kCallBegin, "```json"},
                                {kCallEnd, "```"},
                                {kCallBegin, "[TOOL_CALLS]"},
                                {kCallBegin, "<tool_call>"},
                                {kCallEnd, "</tool_call>"}};
constexpr CallText kXlamText[] = {{.open = "[",
                                   .begin = "{\"name\": \"",
                                   .behind_name = "\", \"arguments\": ",
                                   .end = "}",
                                   .separator = ", ",
                                   .close = "]"}};

constexpr MarkerText kLongcat[] = {{kCallBegin, "<longcat_tool_call>"},
                                   {kCallEnd, "</longcat_tool_call>"}};
constexpr CallText kLongcatText[] = {{.begin = "<longcat_tool_call>{\"name\": \"",
                                      .behind_name = "\", \"arguments\": ",
                                      .end = "}</longcat_tool_call>",
                                      .separator = "\n"}};
constexpr Names kLongcatDetect[] = {"<longcat_tool_call>"};

constexpr MarkerText kDots[] = {{kCallBegin, "<dots_function_call>"},
                                {kCallEnd, "</dots_function_call>"}};
constexpr CallText kDotsText[] = {{.begin = "<dots_function_call>{\"name\": \"",
                                   .behind_name = "\", \"arguments\": ",
                                   .end = "}</dots_function_call>",
                                   .separator = "\n"}};
constexpr Names kDotsDetect[] = {"<dots_function_call>"};

// Where the templates of two rows hold the same texts, the row with more of them wins, then the
// first.
constexpr CallFamily kFamilies[] = {
    {.name = "hermes",
     .aliases = kHermesNames,
     .markers = kHermes,
     .texts = kHermesText,
     .detect = kHermesDetect,
     .ends_reasoning = true},
    {.name = "qwen3_coder",
     .aliases = kXmlNames,
     .mechanism = Mechanism::kTagged,
     .markers = kXml,
     .texts = kXmlText,
     .detect = kXmlDetect,
     .strips_newlines = true,
     .ends_reasoning = true},
    {.name = "mimo",
     .mechanism = Mechanism::kTagged,
     .markers = kXml,
     .texts = kMimoText,
     .ends_reasoning = true},
    {.name = "seed_oss",
     .mechanism = Mechanism::kTagged,
     .markers = kSeed,
     .texts = kSeedText,
     .detect = kSeedDetect,
     .strips_newlines = true},
    {.name = "nemotron_nano_v2",
     .markers = kToolcall,
     .texts = kToolcallText,
     .detect = kToolcallDetect},
    {.name = "llama3_json",
     .aliases = kLlama3Names,
     .mechanism = Mechanism::kBareJson,
     .markers = kLlama3,
     .texts = kLlama3Text,
     .detect = kLlama3Detect,
     .bare = true},
    {.name = "llama4_pythonic",
     .mechanism = Mechanism::kPython,
     .markers = kLlama4,
     .detect = kLlama4Detect,
     .bare = true},
    {.name = "pythonic", .mechanism = Mechanism::kPython, .bare = true},
    {.name = "lfm2", .mechanism = Mechanism::kPython, .markers = kLfm2, .detect = kLfm2Detect},
    {.name = "olmo3",
     .mechanism = Mechanism::kPython,
     .markers = kOlmo3,
     .detect = kOlmo3Detect,
     .lines = true},
    {.name = "mistral",
     .mechanism = Mechanism::kNamed,
     .markers = kMistral,
     .texts = kMistralText,
     .detect = kMistralDetect,
     .id_rule = CallIdRule::kNineAlphanumeric,
     .name_ends_at_brace = true,
     .json_or_named = true},
    {.name = "deepseek_v3",
     .aliases = kDeepseekV3Names,
     .mechanism = Mechanism::kNamed,
     .markers = kDeepseek,
     .texts = kDeepseekV3Text,
     .detect = kDeepseekV3Detect,
     .type_before_name = true},
    {.name = "deepseek_v31",
     .aliases = kDeepseekV31Names,
     .mechanism = Mechanism::kNamed,
     .markers = kDeepseek,
     .texts = kDeepseekV31Text,
     .detect = kDeepseekV31Detect},
    {.name = "deepseek_v32",
     .aliases = kDsmlNames,
     .mechanism = Mechanism::kTagged,
     .markers = kDsml,
     .texts = kDsmlText,
     .detect = kDsmlDetect},
    {.name = "glm45",
     .aliases = kGlm45Names,
     .mechanism = Mechanism::kTagged,
     .markers = kGlm,
     .texts = kGlm45Text,
     .detect = kGlmDetect,
     .name_ends_at_newline = true},
    {.name = "glm47",
     .aliases = kGlm47Names,
     .mechanism = Mechanism::kTagged,
     .markers = kGlm,
     .texts = kGlm47Text,
     .name_ends_at_newline = true},
    {.name = "kimi_k2",
     .aliases = kKimiK2Names,
     .mechanism = Mechanism::kNamed,
     .markers = kKimiK2,
     .detect = kKimiK2Detect,
     .id_rule = CallIdRule::kCounted,
     .header_is_id = true,
     .ends_reasoning = true},
    {.name = "kimi_k3",
     .mechanism = Mechanism::kTurnTags,
     .markers = kKimiK3,
     .detect = kKimiK3Detect},
    {.name = "minimax_m2",
     .aliases = kMinimaxNames,
     .mechanism = Mechanism::kTagged,
     .markers = kMinimax,
     .texts = kMinimaxText,
     .detect = kMinimaxDetect},
    {.name = "granite", .markers = kGranite, .texts = kGraniteText, .detect = kGraniteDetect},
    {.name = "granite-20b-fc",
     .aliases = kGranite20bNames,
     .markers = kGranite20b,
     .texts = kGranite20bText},
    {.name = "openai",
     .aliases = kHarmonyNames,
     .mechanism = Mechanism::kHarmony,
     .markers = kHarmony,
     .detect = kHarmonyDetect},
    {.name = "gemma4", .mechanism = Mechanism::kGemma, .markers = kGemma4, .detect = kGemma4Detect},
    {.name = "functiongemma",
     .mechanism = Mechanism::kGemma,
     .markers = kFunctionGemma,
     .detect = kFunctionGemmaDetect},
    {.name = "phi4_mini_json",
     .markers = kFunctools,
     .texts = kFunctoolsText,
     .detect = kPhi4Detect},
    {.name = "firefunction",
     .markers = kFunctools,
     .texts = kFunctoolsText,
     .detect = kFunctoolsDetect},
    {.name = "cohere_command3",
     .aliases = kCohereNames,
     .markers = kCohere,
     .detect = kCohereDetect},
    {.name = "command_r",
     .markers = kCommandR,
     .detect = kCommandRDetect,
     .no_call_name = "directly_answer"},
    {.name = "jamba",
     .aliases = kToolCallsNames,
     .markers = kToolCalls,
     .texts = kToolCallsText,
     .detect = kToolCallsDetect},
    {.name = "apriel",
     .markers = kToolCalls,
     .texts = kToolCallsText,
     .detect = kAprielDetect,
     .ends_reasoning = true},
    {.name = "hy_v3",
     .aliases = kHunyuanV3Names,
     .mechanism = Mechanism::kTagged,
     .markers = kHunyuanV3,
     .detect = kHunyuanV3Detect},
    {.name = "step3",
     .mechanism = Mechanism::kTagged,
     .markers = kStep3,
     .detect = kStep3Detect,
     .type_before_name = true},
    {.name = "apertus",
     .aliases = kApertusNames,
     .markers = kApertus,
     .texts = kApertusText,
     .detect = kApertusDetect,
     .key_is_name = true},
    {.name = "internlm",
     .aliases = kInternlmNames,
     .markers = kInternlm,
     .texts = kInternlmText,
     .detect = kInternlmDetect},
    {.name = "functionary",
     .aliases = kFunctionaryNames,
     .mechanism = Mechanism::kNamed,
     .markers = kFunctionary,
     .texts = kFunctionaryText,
     .detect = kFunctionaryDetect},
    {.name = "gigachat3",
     .aliases = kGigachat3Names,
     .markers = kGigachat3,
     .detect = kGigachat3Detect},
    {.name = "xlam", .markers = kXlam, .texts = kXlamText, .bare = true},
    {.name = "longcat", .markers = kLongcat, .texts = kLongcatText, .detect = kLongcatDetect},
    {.name = "dots", .markers = kDots, .texts = kDotsText, .detect = kDotsDetect},
};

}  // namespace

std::span<const CallFamily> call_families() { return kFamilies; }

}  // namespace sluice
