// SPDX-License-Identifier: Apache-2.0
// What the families of calls write around them, and the texts by which templates show a family:
// constants of the rows of call_families.cpp, which alone includes this.
#pragma once

#include <string_view>

#include "server/tools/output_format.h"

namespace sluice::call_texts {

using enum Role;
using Names = std::string_view;

// <tool_call>{"name": ..., "arguments": ...}</tool_call>
inline constexpr MarkerText kHermes[] = {{kCallBegin, "<tool_call>"}, {kCallEnd, "</tool_call>"}};
inline constexpr CallText kHermesText[] = {{.begin = "<tool_call>\n{\"name\": \"",
                                            .behind_name = "\", \"arguments\": ",
                                            .end = "}\n</tool_call>",
                                            .separator = "\n"}};
inline constexpr Names kHermesNames[] = {
    "qwen3_json", "qwen25", "qwen", "granite4", "ernie45", "smollm3"};
inline constexpr Names kHermesDetect[] = {"<tool_call>", "arguments"};

// <tool_call><function=NAME><parameter=KEY>VALUE</parameter></function></tool_call>
inline constexpr MarkerText kXml[] = {
    {kSectionBegin, "<tool_call>"},
    {kSectionEnd, "</tool_call>"},
    {kCallBegin, "<function="},
    {kNameEnd, ">"},
    {kCallEnd, "</function>"},
    {kKeyBegin, "<parameter="},
    {kKeyEnd, ">"},
    {kValueEnd, "</parameter>"},
};
inline constexpr CallText kXmlText[] = {{.begin = "<tool_call>\n<function=",
                                         .behind_name = ">\n",
                                         .end = "</function>\n</tool_call>",
                                         .separator = "\n",
                                         .key_begin = "<parameter=",
                                         .key_end = ">\n",
                                         .value_end = "\n</parameter>\n"}};
inline constexpr CallText kMimoText[] = {{.begin = "<tool_call>\n<function=",
                                          .behind_name = ">\n",
                                          .end = "</function>\n</tool_call>",
                                          .separator = "\n",
                                          .key_begin = "<parameter=",
                                          .key_end = ">",
                                          .value_end = "</parameter>\n"}};
// Its templates put a value between its tags as it is, the others between newlines.
inline constexpr Names kMimoDetect[] = {
    "<tool_call>", "<function=", "<parameter=", "'</parameter>"};
inline constexpr Names kXmlNames[] = {"qwen3_xml", "nemotron_v3", "step3p5", "step5"};
inline constexpr Names kXmlDetect[] = {"<tool_call>", "<function=", "<parameter="};

inline constexpr MarkerText kSeed[] = {
    {kSectionBegin, "<seed:tool_call>"},
    {kSectionEnd, "</seed:tool_call>"},
    {kCallBegin, "<function="},
    {kNameEnd, ">"},
    {kCallEnd, "</function>"},
    {kKeyBegin, "<parameter="},
    {kKeyEnd, ">"},
    {kValueEnd, "</parameter>"},
};
inline constexpr CallText kSeedText[] = {{.begin = "<seed:tool_call>\n<function=",
                                          .behind_name = ">\n",
                                          .end = "</function>\n</seed:tool_call>",
                                          .separator = "\n",
                                          .key_begin = "<parameter=",
                                          .key_end = ">",
                                          .value_end = "</parameter>\n"}};
inline constexpr Names kSeedDetect[] = {"<seed:tool_call>"};

inline constexpr MarkerText kToolcall[] = {{kCallBegin, "<TOOLCALL>"}, {kCallEnd, "</TOOLCALL>"}};
inline constexpr CallText kToolcallText[] = {{.open = "<TOOLCALL>[",
                                              .begin = "{\"name\": \"",
                                              .behind_name = "\", \"arguments\": ",
                                              .end = "}",
                                              .separator = ", ",
                                              .close = "]</TOOLCALL>"}};
inline constexpr Names kToolcallDetect[] = {"<TOOLCALL>"};

inline constexpr MarkerText kLlama3[] = {{kCallBegin, "<|python_tag|>"}};
inline constexpr CallText kLlama3Text[] = {{.begin = "{\"name\": \"",
                                            .behind_name = "\", \"parameters\": ",
                                            .end = "}",
                                            .separator = "; "}};
inline constexpr Names kLlama3Names[] = {"llama3", "llama4_json"};
inline constexpr Names kLlama3Detect[] = {"{\"name\": function name, \"parameters\": dictionary"};

inline constexpr MarkerText kLlama4[] = {{kCallBegin, "<|python_start|>"},
                                         {kCallEnd, "<|python_end|>"}};
inline constexpr CallText kPythonText[] = {
    {.open = "[", .behind_name = "(", .end = ")", .separator = ", ", .close = "]"}};
inline constexpr Names kPythonDetect[] = {"[func_name1("};
inline constexpr Names kLlama4Detect[] = {"<|python_start|>"};

inline constexpr MarkerText kLfm2[] = {{kCallBegin, "<|tool_call_start|>"},
                                       {kCallEnd, "<|tool_call_end|>"}};
inline constexpr CallText kLfm2Text[] = {{.open = "<|tool_call_start|>[",
                                          .behind_name = "(",
                                          .end = ")",
                                          .separator = ", ",
                                          .close = "]<|tool_call_end|>"}};
inline constexpr Names kLfm2Detect[] = {"<|tool_list_start|>"};
inline constexpr Names kLfm25Detect[] = {"<|tool_call_start|>"};
inline constexpr Names kLfm25ListDetect[] = {"List of tools: ["};
inline constexpr DetectTexts kLfm2DetectAlso[] = {kLfm25Detect, kLfm25ListDetect};

inline constexpr MarkerText kOlmo3[] = {{kCallBegin, "<function_calls>"},
                                        {kCallEnd, "</function_calls>"}};
inline constexpr CallText kOlmo3Text[] = {{.open = "<function_calls>\n",
                                           .behind_name = "(",
                                           .end = ")",
                                           .separator = "\n",
                                           .close = "\n</function_calls>"}};
inline constexpr Names kOlmo3Detect[] = {"<functions>", "<function_calls>"};

inline constexpr MarkerText kMistral[] = {
    {kCallBegin, "[TOOL_CALLS]"}, {kNameEnd, "[ARGS]"}, {kIdBegin, "[CALL_ID]"}};
inline constexpr CallText kMistralText[] = {
    {.needs = "[ARGS]", .begin = "[TOOL_CALLS]", .behind_name = "[ARGS]"},
    {.open = "[TOOL_CALLS][",
     .begin = "{\"name\": \"",
     .behind_name = "\", \"arguments\": ",
     .end = "}",
     .separator = ", ",
     .close = "]"}};
inline constexpr Names kMistralDetect[] = {"[TOOL_CALLS]"};

inline constexpr MarkerText kDeepseek[] = {
    {kSectionBegin, "<｜tool▁calls▁begin｜>"},
    {kSectionEnd, "<｜tool▁calls▁end｜>"},
    {kCallBegin, "<｜tool▁call▁begin｜>"},
    {kCallEnd, "<｜tool▁call▁end｜>"},
    {kNameEnd, "<｜tool▁sep｜>"},
    {kFence, "```json"},
    {kFence, "```"},
};
inline constexpr CallText kDeepseekV3Text[] = {
    {.open = "<｜tool▁calls▁begin｜>",
     .begin = "<｜tool▁call▁begin｜>function<｜tool▁sep｜>",
     .behind_name = "\n```json\n",
     .end = "\n```<｜tool▁call▁end｜>",
     .separator = "\n",
     .close = "<｜tool▁calls▁end｜>"}};
inline constexpr CallText kDeepseekV31Text[] = {{.open = "<｜tool▁calls▁begin｜>",
                                                 .begin = "<｜tool▁call▁begin｜>",
                                                 .behind_name = "<｜tool▁sep｜>",
                                                 .end = "<｜tool▁call▁end｜>",
                                                 .close = "<｜tool▁calls▁end｜>"}};
inline constexpr Names kDeepseekV3Names[] = {"deepseekv3"};
inline constexpr Names kDeepseekV3Detect[] = {"<｜tool▁calls▁begin｜>", "```json"};
inline constexpr Names kDeepseekV31Names[] = {"deepseekv31"};
inline constexpr Names kDeepseekV31Detect[] = {"<｜tool▁calls▁begin｜>"};

inline constexpr MarkerText kDsml[] = {
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
inline constexpr CallText kDsmlText[] = {{.open = "<｜DSML｜function_calls>\n",
                                          .begin = "<｜DSML｜invoke name=\"",
                                          .behind_name = "\">\n",
                                          .end = "</｜DSML｜invoke>\n",
                                          .close = "</｜DSML｜function_calls>",
                                          .key_begin = "<｜DSML｜parameter name=\"",
                                          .key_end = "\" string=\"true\">",
                                          .json_key_end = "\" string=\"false\">",
                                          .value_end = "</｜DSML｜parameter>\n"}};
inline constexpr Names kDsmlNames[] = {
    "deepseekv32", "deepseek_v4", "deepseekv4", "deepseek_v41", "deepseekv41"};
inline constexpr Names kDsmlDetect[] = {"｜DSML｜"};

inline constexpr MarkerText kGlm[] = {
    {kCallBegin, "<tool_call>"},
    {kCallEnd, "</tool_call>"},
    {kKeyBegin, "<arg_key>"},
    {kKeyEnd, "</arg_key>"},
    {kValueBegin, "<arg_value>"},
    {kValueEnd, "</arg_value>"},
};
inline constexpr CallText kGlm45Text[] = {{.begin = "<tool_call>",
                                           .behind_name = "\n",
                                           .end = "</tool_call>",
                                           .separator = "\n",
                                           .key_begin = "<arg_key>",
                                           .key_end = "</arg_key>\n<arg_value>",
                                           .value_end = "</arg_value>\n"}};
inline constexpr CallText kGlm47Text[] = {{.begin = "<tool_call>",
                                           .end = "</tool_call>",
                                           .key_begin = "<arg_key>",
                                           .key_end = "</arg_key><arg_value>",
                                           .value_end = "</arg_value>"}};
inline constexpr Names kGlm45Names[] = {"glm"};
inline constexpr Names kGlm47Names[] = {"poolside_v1", "ling3"};
inline constexpr Names kGlmDetect[] = {"<arg_key>", "<arg_value>", "<tool_call>"};

// Tags of some checkpoints have a suffix.
inline constexpr MarkerText kHunyuanV3[] = {
    {kSectionBegin, "<tool_calls>"},
    {kSectionBegin, "<tool_calls:opensource>"},
    {kSectionEnd, "</tool_calls>"},
    {kSectionEnd, "</tool_calls:opensource>"},
    {kCallBegin, "<tool_call>"},
    {kCallBegin, "<tool_call:opensource>"},
    {kCallEnd, "</tool_call>"},
    {kCallEnd, "</tool_call:opensource>"},
    {kNameEnd, "<tool_sep>"},
    {kNameEnd, "<tool_sep:opensource>"},
    {kKeyBegin, "<arg_key>"},
    {kKeyBegin, "<arg_key:opensource>"},
    {kKeyEnd, "</arg_key>"},
    {kKeyEnd, "</arg_key:opensource>"},
    {kValueBegin, "<arg_value>"},
    {kValueBegin, "<arg_value:opensource>"},
    {kValueEnd, "</arg_value>"},
    {kValueEnd, "</arg_value:opensource>"},
};
inline constexpr CallText kHunyuanV3Text[] = {
    {.needs = "<tool_calls:opensource>",
     .open = "<tool_calls:opensource>\n",
     .begin = "<tool_call:opensource>",
     .behind_name = "<tool_sep:opensource>\n",
     .end = "</tool_call:opensource>",
     .separator = "\n",
     .close = "\n</tool_calls:opensource>",
     .key_begin = "<arg_key:opensource>",
     .key_end = "</arg_key:opensource>\n<arg_value:opensource>",
     .value_end = "</arg_value:opensource>\n"},
    {.open = "<tool_calls>\n",
     .begin = "<tool_call>",
     .behind_name = "<tool_sep>\n",
     .end = "</tool_call>",
     .separator = "\n",
     .close = "\n</tool_calls>",
     .key_begin = "<arg_key>",
     .key_end = "</arg_key>\n<arg_value>",
     .value_end = "</arg_value>\n"}};
inline constexpr Names kHunyuanV3Names[] = {"hy_v4"};
inline constexpr Names kHunyuanV3Detect[] = {"<tool_sep>", "<arg_key>"};
inline constexpr Names kHunyuanV3FormatDetect[] = {"<tool_sep{}>", "<arg_key{}>"};
inline constexpr DetectTexts kHunyuanV3DetectAlso[] = {kHunyuanV3FormatDetect};

inline constexpr MarkerText kKimiK2[] = {
    {kSectionBegin, "<|tool_calls_section_begin|>"},
    {kSectionEnd, "<|tool_calls_section_end|>"},
    {kCallBegin, "<|tool_call_begin|>"},
    {kCallEnd, "<|tool_call_end|>"},
    {kNameEnd, "<|tool_call_argument_begin|>"},
};
inline constexpr CallText kKimiK2Text[] = {{.open = "<|tool_calls_section_begin|>",
                                            .begin = "<|tool_call_begin|>functions.",
                                            .behind_name = ":%d<|tool_call_argument_begin|>",
                                            .end = "<|tool_call_end|>",
                                            .close = "<|tool_calls_section_end|>"}};
inline constexpr Names kKimiK2Names[] = {"kimi"};
inline constexpr Names kKimiK2Detect[] = {"<|tool_calls_section_begin|>"};

inline constexpr MarkerText kKimiK3[] = {
    {kHeaderBegin, "<|open|>"}, {kHeaderEnd, "<|sep|>"}, {kMessageEnd, "<|close|>"}};
inline constexpr CallText kKimiK3Text[] = {{.open = "<|open|>tools<|sep|>",
                                            .begin = "<|open|>call tool=\"",
                                            .behind_name = "\" index=\"%d\"<|sep|>",
                                            .end = "<|close|>call<|sep|>",
                                            .close = "<|close|>tools<|sep|>",
                                            .key_begin = "<|open|>argument key=\"",
                                            .key_end = "\" type=\"string\"<|sep|>",
                                            .json_key_end = "\" type=\"%t\"<|sep|>",
                                            .value_end = "<|close|>argument<|sep|>"}};
inline constexpr Names kKimiK3Detect[] = {"<|open|>", "<|sep|>", "<|close|>"};

inline constexpr MarkerText kMinimax[] = {
    {kSectionBegin, "<minimax:tool_call>"},
    {kSectionEnd, "</minimax:tool_call>"},
    {kCallBegin, "<invoke name=\""},
    {kNameEnd, "\">"},
    {kCallEnd, "</invoke>"},
    {kKeyBegin, "<parameter name=\""},
    {kKeyEnd, "\">"},
    {kValueEnd, "</parameter>"},
};
inline constexpr CallText kMinimaxText[] = {{.open = "<minimax:tool_call>\n",
                                             .begin = "<invoke name=\"",
                                             .behind_name = "\">\n",
                                             .end = "</invoke>\n",
                                             .close = "</minimax:tool_call>",
                                             .key_begin = "<parameter name=\"",
                                             .key_end = "\">",
                                             .value_end = "</parameter>\n"}};
inline constexpr Names kMinimaxNames[] = {"minimax-m2"};
inline constexpr Names kMinimaxDetect[] = {"<minimax:tool_call>"};

// <k>v</k> for each argument, which may be replaced by further elements; a token precedes each tag.
inline constexpr MarkerText kMinimaxM3[] = {
    {kSectionBegin, "]<]minimax[>[<tool_call>"},
    {kSectionEnd, "]<]minimax[>[</tool_call>"},
    {kCallBegin, "]<]minimax[>[<invoke name=\""},
    {kNameEnd, "\">"},
    {kCallEnd, "]<]minimax[>[</invoke>"},
    {kKeyBegin, "]<]minimax[>[<"},
    {kKeyEnd, ">"},
    {kValueEnd, "]<]minimax[>[</"},
};
inline constexpr CallText kMinimaxM3Text[] = {{.open = "]<]minimax[>[<tool_call>\n",
                                               .begin = "]<]minimax[>[<invoke name=\"",
                                               .behind_name = "\">",
                                               .end = "]<]minimax[>[</invoke>\n",
                                               .close = "]<]minimax[>[</tool_call>",
                                               .key_begin = "]<]minimax[>[<",
                                               .key_end = ">",
                                               .value_end = "]<]minimax[>[</%k>"}};
inline constexpr Names kMinimaxM3Detect[] = {"]<]minimax[>[", "<tool_call>", "<invoke name="};

// Text with characters of XML is in CDATA.
inline constexpr MarkerText kMinicpm5[] = {
    {kCallBegin, "<function name=\""},
    {kNameEnd, "\">"},
    {kCallEnd, "</function>"},
    {kKeyBegin, "<param name=\""},
    {kKeyEnd, "\">"},
    {kKeyEndRaw, "\"><![CDATA["},
    {kRawEnd, "]]></param>"},
    {kValueEnd, "</param>"},
};
inline constexpr CallText kMinicpm5Text[] = {{.begin = "<function name=\"",
                                              .behind_name = "\">",
                                              .end = "</function>",
                                              .separator = "\n",
                                              .key_begin = "<param name=\"",
                                              .key_end = "\">",
                                              .value_end = "</param>"}};
inline constexpr Names kMinicpm5Detect[] = {"<function name=\"", "<param name=\""};

inline constexpr MarkerText kSolar[] = {
    {kSectionBegin, "<|tool_calls|>"},
    {kSectionEnd, "<|calls|>"},
    {kCallBegin, "<|tool_call:begin|>"},
    {kNameEnd, "<|tool_call:name|>"},
    {kNameEnd, "<|tool_call:args|>"},
    {kCallEnd, "<|tool_call:end|>"},
};
inline constexpr CallText kSolarText[] = {{.open = "<|tool_calls|>",
                                           .begin = "<|tool_call:begin|>call%d<|tool_call:name|>",
                                           .behind_name = "<|tool_call:args|>",
                                           .end = "<|tool_call:end|>",
                                           .close = "<|calls|>"}};
inline constexpr Names kSolarDetect[] = {"<|tool_call:begin|>", "<|tool_call:args|>"};

inline constexpr MarkerText kGranite[] = {{kCallBegin, "<|tool_call|>"},
                                          {kCallBegin, "<tool_call>"}};
inline constexpr CallText kGraniteText[] = {{.needs = "<|tool_call|>",
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
inline constexpr Names kGraniteDetect[] = {"available_tools", "<|tool_call|>"};

inline constexpr MarkerText kGranite20b[] = {{kCallBegin, "<function_call>"}};
inline constexpr CallText kGranite20bText[] = {{.begin = "<function_call> {\"name\": \"",
                                                .behind_name = "\", \"arguments\": ",
                                                .end = "}",
                                                .separator = "\n"}};
inline constexpr Names kGranite20bDetect[] = {"<function_call>"};
inline constexpr Names kGranite20bNames[] = {"granite-20b"};

inline constexpr MarkerText kHarmony[] = {
    {kHeaderBegin, "<|start|>"},
    {kHeaderEnd, "<|message|>"},
    {kChannel, "<|channel|>"},
    {kConstrain, "<|constrain|>"},
    {kMessageEnd, "<|end|>"},
    {kMessageEnd, "<|call|>"},
    {kMessageEnd, "<|return|>"},
};
inline constexpr CallText kHarmonyText[] = {{.begin = "<|channel|>commentary to=functions.",
                                             .behind_name = " <|constrain|>json<|message|>",
                                             .is_single = true}};
inline constexpr Names kHarmonyNames[] = {"gpt-oss", "gpt_oss", "openai_gptoss"};
inline constexpr Names kHarmonyDetect[] = {"<|channel|>", "<|message|>", "analysis"};

inline constexpr MarkerText kMuse[] = {
    {kHeaderBegin, "<|start|>"},
    {kHeaderEnd, "<|message|>"},
    {kMessageEnd, "<|eom|>"},
    {kMessageEnd, "<|eot|>"},
    {kSectionBegin, "<atem:function_calls>"},
    {kSectionEnd, "</atem:function_calls>"},
    {kCallBegin, "<atem:invoke name=\""},
    {kNameEnd, "\">"},
    {kCallEnd, "</atem:invoke>"},
    {kKeyBegin, "<atem:parameter name=\""},
    {kKeyEnd, "\">"},
    {kValueEnd, "</atem:parameter>"},
};
inline constexpr CallText kMuseText[] = {
    {.begin = " to=tools<|message|><atem:function_calls>\n<atem:invoke name=\"",
     .behind_name = "\">\n",
     .end = "</atem:invoke>\n</atem:function_calls>",
     .key_begin = "<atem:parameter name=\"",
     .key_end = "\">",
     .value_end = "</atem:parameter>\n",
     .is_single = true}};
inline constexpr Names kMuseNames[] = {"muse_glimmer", "musespark1x"};
inline constexpr Names kMuseDetect[] = {"<atem:function_calls>", "<atem:invoke name="};

inline constexpr MarkerText kGemma4[] = {
    {kCallBegin, "<|tool_call>"}, {kCallEnd, "<tool_call|>"}, {kQuote, "<|\"|>"}};
inline constexpr CallText kGemma4Text[] = {
    {.begin = "<|tool_call>call:", .behind_name = "{", .end = "}<tool_call|>"}};
inline constexpr Names kGemma4Detect[] = {"<|tool_call>", "<tool_call|>"};

inline constexpr MarkerText kFunctionGemma[] = {
    {kCallBegin, "<start_function_call>"}, {kCallEnd, "<end_function_call>"}, {kQuote, "<escape>"}};
inline constexpr CallText kFunctionGemmaText[] = {
    {.begin = "<start_function_call>call:", .behind_name = "{", .end = "}<end_function_call>"}};
inline constexpr Names kFunctionGemmaDetect[] = {"<start_function_call>"};

inline constexpr MarkerText kFunctools[] = {{kCallBegin, "functools"}};
inline constexpr CallText kFunctoolsText[] = {{.open = "functools[",
                                               .begin = "{\"name\": \"",
                                               .behind_name = "\", \"arguments\": ",
                                               .end = "}",
                                               .separator = ", ",
                                               .close = "]"}};
// Phi-4-mini's own form, beside what vLLM's template teaches it.
inline constexpr MarkerText kPhi4[] = {{kCallBegin, "<|tool_call|>"},
                                       {kCallBegin, "functools"},
                                       {kCallEnd, "<|/tool_call|>"}};
inline constexpr CallText kPhi4Text[] = {{.open = "<|tool_call|>[",
                                          .begin = "{\"name\": \"",
                                          .behind_name = "\", \"arguments\": ",
                                          .end = "}",
                                          .separator = ", ",
                                          .close = "]<|/tool_call|>"}};
inline constexpr Names kPhi4Detect[] = {"<|tool|>", "<|/tool|>"};
inline constexpr Names kPhi4JsonDetect[] = {"<|tool|>", "<|/tool|>", "functools"};
inline constexpr Names kFunctoolsDetect[] = {"functools"};

inline constexpr MarkerText kCohere[] = {{kCallBegin, "<|START_ACTION|>"},
                                         {kCallEnd, "<|END_ACTION|>"}};
inline constexpr CallText kCohereText[] = {
    {.open = "<|START_ACTION|>[\n",
     .begin = "    {\"tool_call_id\": \"%d\", \"tool_name\": \"",
     .behind_name = "\", \"parameters\": ",
     .end = "}",
     .separator = ",\n",
     .close = "\n]<|END_ACTION|>"}};
inline constexpr Names kCohereNames[] = {"cohere_command4"};
inline constexpr Names kCohereDetect[] = {"<|START_ACTION|>", "<|END_ACTION|>"};

inline constexpr MarkerText kCommandR[] = {{kCallBegin, "Action: ```json"},
                                           {kCallBegin, "Action:\n```json"},
                                           {kCallBegin, "Action:```json"},
                                           {kCallEnd, "```"}};
inline constexpr CallText kCommandRText[] = {{.open = "Action:\n```json\n[\n",
                                              .begin = "    {\n        \"tool_name\": \"",
                                              .behind_name = "\",\n        \"parameters\": ",
                                              .end = "\n    }",
                                              .separator = ",\n",
                                              .close = "\n]```"}};
inline constexpr Names kCommandRDetect[] = {"Action:", "```json", "\"tool_name\""};

inline constexpr MarkerText kToolCalls[] = {{kCallBegin, "<tool_calls>"},
                                            {kCallEnd, "</tool_calls>"}};
inline constexpr CallText kToolCallsText[] = {{.open = "<tool_calls>[",
                                               .begin = "{\"name\": \"",
                                               .behind_name = "\", \"arguments\": ",
                                               .end = "}",
                                               .separator = ", ",
                                               .close = "]</tool_calls>"}};
inline constexpr Names kToolCallsNames[] = {"hunyuan_a13b", "hunyuan"};
inline constexpr Names kAprielDetect[] = {"<tool_calls>", "[BEGIN FINAL RESPONSE]"};
inline constexpr Names kToolCallsDetect[] = {"<tool_calls>"};

inline constexpr MarkerText kStep3[] = {
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
inline constexpr CallText kStep3Text[] = {
    {.open = "<｜tool_calls_begin｜>",
     .begin = "<｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name=\"",
     .behind_name = "\">",
     .end = "</steptml:invoke><｜tool_call_end｜>",
     .close = "<｜tool_calls_end｜>",
     .key_begin = "<steptml:parameter name=\"",
     .key_end = "\">",
     .value_end = "</steptml:parameter>"}};
inline constexpr Names kStep3Detect[] = {"<steptml:invoke"};

inline constexpr MarkerText kApertus[] = {{kCallBegin, "<|tools_prefix|>"},
                                          {kCallEnd, "<|tools_suffix|>"}};
inline constexpr CallText kApertusText[] = {{.open = "<|tools_prefix|>[",
                                             .begin = "{\"",
                                             .behind_name = "\": ",
                                             .end = "}",
                                             .separator = ", ",
                                             .close = "]<|tools_suffix|>"}};
inline constexpr Names kApertusNames[] = {"apertus2509"};
inline constexpr Names kApertusDetect[] = {"<|tools_prefix|>"};

inline constexpr MarkerText kInternlm[] = {
    {kCallBegin, "<|action_start|><|plugin|>"},
    {kCallBegin, "<|action_start|> <|plugin|>"},
    {kCallEnd, "<|action_end|>"},
};
inline constexpr CallText kInternlmText[] = {{.begin = "<|action_start|><|plugin|>{\"name\": \"",
                                              .behind_name = "\", \"parameters\": ",
                                              .end = "}<|action_end|>",
                                              .separator = "\n"}};
inline constexpr Names kInternlmNames[] = {"interns1"};
inline constexpr Names kInternlmDetect[] = {"<|action_start|>", "<|plugin|>"};

inline constexpr MarkerText kFunctionary[] = {
    {kCallBegin, "<function="}, {kNameEnd, ">"}, {kCallEnd, "</function>"}};
inline constexpr CallText kFunctionaryText[] = {
    {.begin = "<function=", .behind_name = ">", .end = "</function>"}};
inline constexpr Names kFunctionaryNames[] = {"functionary_v3"};
inline constexpr Names kFunctionaryDetect[] = {
    "<function=", "</function>", "{start_tag}={function_name}"};

// The prompt ends with the marker; the recipient "all" is the user.
inline constexpr MarkerText kFunctionary32[] = {{kCallBegin, ">>>"}};
inline constexpr CallText kFunctionary32Text[] = {{.behind_name = "\n", .separator = ">>>"}};
inline constexpr Names kFunctionary32Detect[] = {"'>>>all\\n'", "'>>>'"};

inline constexpr MarkerText kGigachat3[] = {{kCallBegin, "<|function_call|>"},
                                            {kCallBegin, "function call<|role_sep|>"},
                                            {kCallEnd, "<|message_sep|>"}};
inline constexpr CallText kGigachat3Text[] = {{.begin = "function call<|role_sep|>\n{\"name\": \"",
                                               .behind_name = "\", \"arguments\": ",
                                               .end = "}<|message_sep|>",
                                               .separator = "\n\n"}};
inline constexpr Names kGigachat3Names[] = {"gigachat35"};
inline constexpr Names kGigachat3Detect[] = {"function call", "<|role_sep|>"};

inline constexpr MarkerText kXlam[] = {{kCallBegin, "```json"},
                                       {kCallEnd, "```"},
                                       {kCallBegin, "[TOOL_CALLS]"},
                                       {kCallBegin, "<tool_call>"},
                                       {kCallEnd, "</tool_call>"}};
inline constexpr CallText kXlamText[] = {{.open = "[",
                                          .begin = "{\"name\": \"",
                                          .behind_name = "\", \"arguments\": ",
                                          .end = "}",
                                          .separator = ", ",
                                          .close = "]"}};
inline constexpr Names kXlamDetect[] = {"[{\"name\": \"tool_call_name\", \"arguments\""};

inline constexpr MarkerText kLongcat[] = {{kCallBegin, "<longcat_tool_call>"},
                                          {kCallEnd, "</longcat_tool_call>"}};
inline constexpr CallText kLongcatText[] = {{.begin = "<longcat_tool_call>{\"name\": \"",
                                             .behind_name = "\", \"arguments\": ",
                                             .end = "}</longcat_tool_call>",
                                             .separator = "\n"}};
inline constexpr Names kLongcatDetect[] = {"<longcat_tool_call>"};

inline constexpr MarkerText kDots[] = {{kCallBegin, "<dots_function_call>"},
                                       {kCallEnd, "</dots_function_call>"}};
inline constexpr CallText kDotsText[] = {{.begin = "<dots_function_call>{\"name\": \"",
                                          .behind_name = "\", \"arguments\": ",
                                          .end = "}</dots_function_call>",
                                          .separator = "\n"}};
inline constexpr Names kDotsDetect[] = {"<dots_function_call>"};

}  // namespace sluice::call_texts
