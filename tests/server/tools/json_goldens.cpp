// SPDX-License-Identifier: Apache-2.0
// Calls as JSON. The forms are those of the families' chat templates and of what their models are
// known to write.
#include "tests/server/tools/goldens.h"

namespace sluice {
namespace {

GoldenFamily hermes() {
  return {
      "hermes",
      "qwen3",
      {"<|im_end|>"},
      {
          {"Hello.", "C{Hello.}"},
          {"", ""},
          {R"(<tool_call>
{"name": "get", "arguments": {"city": "Paris"}}
</tool_call>)",
           R"(0 get {"city": "Paris"};)"},
          {R"(<tool_call>{"name":"get","arguments":{"a":1}}</tool_call>)", R"(0 get {"a":1};)"},
          {R"(<tool_call>
{"name": "a", "arguments": {}}
</tool_call>
<tool_call>
{"name": "b", "arguments": {"x": [1, {"y": null}]}}
</tool_call>)",
           R"(0 a {};1 b {"x": [1, {"y": null}]};)"},
          {R"(I look.
<tool_call>
{"name": "get", "arguments": {}}
</tool_call>
Done.)",
           "C{I look.}0 get {};C{\nDone.}"},
          {"<think>\nHm.\n</think>\n\nHello.", "R{Hm.}C{Hello.}"},
          {"<think>\n\n</think>\n\nHello.", "C{Hello.}"},
          {"Hm.\n</think>\n\nHello.", "R{Hm.}C{Hello.}", "<|im_start|>assistant\n<think>\n"},
          {"Hello.", "C{Hello.}", "<|im_start|>assistant\n<think>\n\n</think>\n\n"},
          {R"(<think>
I call.
<tool_call>
{"name": "get", "arguments": {}}
</tool_call>)",
           "R{I call.}0 get {};"},
          {R"(<think>
Hm.
</think>

<tool_call>
{"name": "get", "arguments": {"q": "x"}}
</tool_call><|im_end|>)",
           R"(R{Hm.}0 get {"q": "x"};)"},
          {R"(<tool_call>{"arguments": {"a": "b"}, "name": "get"}</tool_call>)",
           R"(0 get {"a": "b"};)"},
          {R"(<tool_call>{"name": "get"}</tool_call>)", "0 get {};"},
          {R"(<tool_call>{"name": "get", "arguments": null}</tool_call>)", "0 get {};"},
          {R"(<tool_call>{"name": "get", "arguments": ""}</tool_call>)", "0 get {};"},
          {R"(<tool_call>{"name": "get", "arguments": "{\"a\": \"\u00e9\\n\"}"}</tool_call>)",
           R"(0 get {"a": "é\n"};)"},
          {R"(<tool_call>{"name": "get", "arguments": {"a": "</tool_call>"}}</tool_call>)",
           R"(0 get {"a": "</tool_call>"};)"},
          {R"(<tool_call>{"name": "get", "arguments": {"a": "<tool_call>{\"name\": \"b\"}"}}</tool_call>)",
           R"(0 get {"a": "<tool_call>{\"name\": \"b\"}"};)"},
          {R"(<tool_call>{"name": "g\u00e9t", "arguments": {"a": "\ud83d\ude00 \u00e9 😀"}}</tool_call>)",
           R"(0 gét {"a": "\ud83d\ude00 \u00e9 😀"};)"},
          {R"(<tool_call>{"name": "get", "arguments": {"a": 1.50e+3, "b":true ,"c" : -0.0}}</tool_call>)",
           R"(0 get {"a": 1.50e+3, "b":true ,"c" : -0.0};)"},
          {R"(<tool_call>{"name": "get", "arguments": {"a": 1</tool_call>)", R"(0 get {"a": 1;)"},
          {R"(<tool_call>{"name": "get", "arguments": {"a": "x)",
           R"(0 get {"a": "x)",
           "",
           FinishReason::kLength},
          {R"(<tool_call>{"name": "get", "arguments": {"a": "x\u00)",
           R"(0 get {"a": "x\u00)",
           "",
           FinishReason::kLength},
          {R"(<tool_call>{"name": "get", "arguments": {"a": "x)", R"(0 get {"a": "x;)"},
          {R"(<tool_call>{"name": "ge)", "", "", FinishReason::kLength},
          {"<tool_call>\nnot JSON</tool_call>", "C{<tool_call>\nnot JSON</tool_call>}"},
          {R"(<tool_call>{"nam": "x"}</tool_call> text)",
           R"(C{<tool_call>{"nam": "x"}</tool_call> text})"},
          {R"(<tool_call>{"name": ""}</tool_call>)", R"(C{<tool_call>{"name": ""}</tool_call>})"},
          {R"(<tool_call>oops <tool_call>{"name": "get", "arguments": {}}</tool_call>)",
           "C{<tool_call>oops}0 get {};"},
          {R"(<tool_call>{"name": "a", "arguments": {}}<tool_call>{"name": "b", "arguments": {}})",
           "0 a {};1 b {};"},
          {R"({"name": "get", "arguments": {}})", R"(C{{"name": "get", "arguments": {}}})"},
          {"a <tool_cal", "C{a <tool_cal}"},
          {"a <tool_ <tool_calm> <<tool_call", "C{a <tool_ <tool_calm> <<tool_call}"},
          {"The tag <think> is text here.", "C{The tag <think> is text here.}"},
          {R"(<tool_call>{"name": "get", "arguments": {"a": 1}}
{"name": "put", "arguments": {"b": 2}}</tool_call>)",
           R"(0 get {"a": 1};1 put {"b": 2};)"},
          {R"(<tool_call>{"name": "get", "extra": {"name": "no"}, "arguments": {}, "arguments": {"b": 1}}</tool_call>)",
           "0 get {};"},
          {R"(<tool_call>{"type": "function", "function": {"name": "get", "arguments": {"a": 1}}}</tool_call>)",
           R"(0 get {"a": 1};)"},
          {R"(<tool_call>{"name": "get", "arguments": {"a": "x<|im_end|>)", R"(0 get {"a": "x;)"},
          {R"(<tool_call>{"name": "get", "arguments": [1, 2]}</tool_call>)", "0 get [1, 2];"},
          {R"(<tool_call>{"name": "get", "arguments": "no object"}</tool_call>)",
           R"(0 get "no object";)"},
      },
  };
}

GoldenFamily llama3() {
  return {
      "llama3_json",
      "",
      {"<|python_tag|>", "<|eom_id|>", "<|eot_id|>"},
      {
          {R"({"name": "get", "parameters": {"a": "b"}})", R"(0 get {"a": "b"};)"},
          {R"({"name": "get", "arguments": {"a": "b"}}<|eot_id|>)", R"(0 get {"a": "b"};)"},
          {R"(<|python_tag|>{"name": "get", "parameters": {}}<|eom_id|>)", "0 get {};"},
          {R"({"name": "a", "parameters": {}}; {"name": "b", "parameters": {"x": 1}})",
           R"(0 a {};1 b {"x": 1};)"},
          {R"({"type": "function", "name": "get", "parameters": {"a": [1]}})",
           R"(0 get {"a": [1]};)"},
          {R"({"parameters": {"a": ";"}, "name": "get"})", R"(0 get {"a": ";"};)"},
          {R"(
 {"name": "get", "parameters": {}})",
           "0 get {};"},
          {R"({"name": "get"})", "0 get {};"},
          {R"({"city": "Paris"})", R"(C{{"city": "Paris"}})"},
          {R"({"name": 5})", R"(C{{"name": 5}})"},
          {R"({"type": "object"})", R"(C{{"type": "object"}})"},
          {R"(Call {"name": "get", "parameters": {}})",
           R"(C{Call {"name": "get", "parameters": {}}})"},
          {R"({)", "C{{}"},
          {R"({"na)", R"(C{{"na})", "", FinishReason::kLength},
          {R"({"name": "get", "parameters": {"a")", R"(0 get {"a")", "", FinishReason::kLength},
          {R"({"name": "get", "parameters": {}} and text)", "0 get {};C{ and text}"},
          {R"(<|python_tag|>brave_search.call(query="a b", count=3)<|eom_id|>)",
           R"(0 brave_search {"query": "a b", "count": 3};)"},
          {R"(<|python_tag|>print("x"))", R"(C{print("x")})"},
          {"[1, 2]", "C{[1, 2]}"},
          {"<|python_", "C{<|python_}"},
      },
  };
}

GoldenFamily granite() {
  return {
      "granite",
      "granite",
      {"<|tool_call|>"},
      {
          {R"(<|tool_call|>[{"name": "a", "arguments": {"x": 1}}, {"name": "b", "arguments": {}}])",
           R"(0 a {"x": 1};1 b {};)"},
          {R"(<tool_call>[{"name": "a", "arguments": {"x": "]"}}])", R"(0 a {"x": "]"};)"},
          {R"(<|tool_call|> [{"name": "a", "arguments": {}}] and text)", "0 a {};C{ and text}"},
          {R"(Text.<|tool_call|>[{"name": "a", "arguments": {}}])", "C{Text.}0 a {};"},
          {"Here is my thought process: Hm. Here is my response: Hello.", "R{ Hm. }C{ Hello.}"},
          {"<think>Hm.</think><response>Hello.</response>", "R{Hm.}C{Hello.}"},
          {"<response>", ""},
          {R"(<|tool_call|>[)", "C{[}"},
          {R"(<|tool_call|>[])", ""},
          {R"(<|tool_call|>[{"name": "a", "arguments": {}}, {"na)",
           "0 a {};",
           "",
           FinishReason::kLength},
      },
  };
}

GoldenFamily cohere() {
  return {
      "cohere_command3",
      "cohere_command3",
      {"<|START_ACTION|>",
       "<|END_ACTION|>",
       "<|START_THINKING|>",
       "<|END_THINKING|>",
       "<|START_RESPONSE|>",
       "<|END_RESPONSE|>"},
      {
          {R"(<|START_THINKING|>Hm.<|END_THINKING|><|START_ACTION|>[
    {"tool_call_id": "0", "tool_name": "get", "parameters": {"a": 1}},
    {"tool_call_id": "1", "tool_name": "put", "parameters": {}}
]<|END_ACTION|>)",
           R"(R{Hm.}0 get #0 {"a": 1};1 put #1 {};)"},
          {"<|START_RESPONSE|>Hello.<|END_RESPONSE|>", "C{Hello.}"},
          {"Hm.<|END_THINKING|><|START_RESPONSE|>Hello.", "R{Hm.}C{Hello.}", "<|START_THINKING|>"},
          {R"(<|START_ACTION|>[{"tool_name": "get", "parameters": {"a": "x<|END_ACTION|>)",
           R"(0 get {"a": "x;)"},
      },
  };
}

GoldenFamily plain(std::string_view name,
                   std::vector<std::string_view> specials,
                   std::vector<Golden> goldens) {
  return {name, "", std::move(specials), std::move(goldens)};
}

}  // namespace

std::vector<GoldenFamily> json_goldens() {
  return {
      hermes(),
      llama3(),
      granite(),
      cohere(),
      plain(
          "nemotron_nano_v2",
          {},
          {{R"(<TOOLCALL>[{"name": "a", "arguments": {}}, {"name": "b", "arguments": {"x": 1}}]</TOOLCALL>)",
            R"(0 a {};1 b {"x": 1};)"},
           {"<TOOLCALL>[]</TOOLCALL>", ""},
           {"<TOOLCALL>[]</TOOLCALL>\nText.", "C{\nText.}"}}),
      plain(
          "phi4_mini",
          {"<|tool_call|>", "<|/tool_call|>"},
          {{R"(<|tool_call|>[{"name": "a", "arguments": {"x": 1}}, {"name": "b", "arguments": {}}]<|/tool_call|>)",
            R"(0 a {"x": 1};1 b {};)"},
           {R"(I look.<|tool_call|>[{"name": "a", "arguments": {"x": "<|tool_call|>[]"}}]<|/tool_call|>)",
            R"(C{I look.}0 a {"x": "<|tool_call|>[]"};)"},
           {R"(<|tool_call|>{"name": "a", "parameters": {"x": 1}}<|/tool_call|> Done.)",
            R"(0 a {"x": 1};C{ Done.})"},
           {R"(functools[{"name": "a", "arguments": {"x": 1}}])", R"(0 a {"x": 1};)"},
           {"<|tool_call|>[]<|/tool_call|>", ""},
           {"<|tool_call|", "C{<|tool_call|}"}}),
      plain("phi4_mini_json",
            {},
            {{R"(functools[{"name": "a", "arguments": {"x": 1}}])", R"(0 a {"x": 1};)"},
             {R"(<|tool_call|>[{"name": "a", "arguments": {"x": 1}}]<|/tool_call|>)",
              R"(0 a {"x": 1};)"},
             {"functools are tools", "C{functools are tools}"},
             {"functool", "C{functool}"}}),
      plain("command_r",
            {},
            {{"Plan: I search.\nAction: ```json\n[\n    {\n        \"tool_name\": \"get\",\n"
              "        \"parameters\": {\"q\": \"```\"}\n    }\n]\n```",
              R"(C{Plan: I search.}0 get {"q": "```"};)"},
             {"Action: ```json\n[{\"tool_name\": \"directly_answer\", \"parameters\": {}}]\n```",
              ""}}),
      plain("jamba",
            {},
            {{"<tool_calls>[\n{\"name\": \"a\", \"arguments\": {}},\n{\"name\": \"b\", "
              "\"arguments\": {}}\n]</tool_calls>",
              "0 a {};1 b {};"},
             {"Text\n<tool_calls>[{\"name\": \"a\"}]</tool_calls>", "C{Text}0 a {};"}}),
      plain("apertus",
            {"<|tools_prefix|>", "<|tools_suffix|>"},
            {{R"(<|tools_prefix|>[{"get": {"a": 1}}, {"put": {}}]<|tools_suffix|>)",
              R"(0 get {"a": 1};1 put {};)"}}),
      plain(
          "internlm",
          {"<|action_start|>", "<|plugin|>", "<|action_end|>"},
          {{R"(I look.<|action_start|><|plugin|>{"name": "get", "parameters": {"a": 1}}<|action_end|>)",
            R"(C{I look.}0 get {"a": 1};)"},
           {R"(<|action_start|> <|plugin|>
{"name": "get", "parameters": {}}<|action_end|>)",
            "0 get {};"}}),
      plain("gigachat3",
            {"<|role_sep|>", "<|message_sep|>"},
            {{R"(function call<|role_sep|>
{"name": "get", "arguments": {"a": 1}}<|message_sep|>)",
              R"(0 get {"a": 1};)"},
             {"a function call is", "C{a function call is}"}}),
      plain("xlam",
            {},
            {{R"([{"name": "a", "arguments": {"x": 1}}])", R"(0 a {"x": 1};)"},
             {"```json\n[{\"name\": \"a\", \"arguments\": {}}]\n```", "0 a {};"},
             {"[]", "C{[]}"},
             {"[1, 2]", "C{[1, 2]}"}}),
      plain(
          "granite-20b-fc",
          {},
          {{R"(<function_call> {"name": "a", "arguments": {}} <function_call> {"name": "b", "arguments": {}})",
            "0 a {};1 b {};"}}),
      plain("longcat",
            {},
            {{R"(<longcat_tool_call>{"name": "a", "arguments": {}}</longcat_tool_call>)",
              "0 a {};"}}),
      plain("dots",
            {},
            {{R"(<dots_function_call>{"name": "a", "arguments": {}}</dots_function_call>)",
              "0 a {};"}}),
  };
}

}  // namespace sluice
