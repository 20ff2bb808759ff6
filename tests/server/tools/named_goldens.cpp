// SPDX-License-Identifier: Apache-2.0
// Calls as a name and JSON behind it. The forms are those of the families' chat templates and of
// what their models are known to write.
#include "tests/server/tools/goldens.h"

namespace sluice {
namespace {

GoldenFamily mistral(std::vector<std::string_view> specials) {
  return {
      "mistral",
      "mistral",
      std::move(specials),
      {
          {"Hello.", "C{Hello.}"},
          {R"([TOOL_CALLS]get[ARGS]{"a": 1})", R"(0 get {"a": 1};)"},
          {R"([TOOL_CALLS]a[ARGS]{}[TOOL_CALLS]b[ARGS]{"x": {"y": "]"}})",
           R"(0 a {};1 b {"x": {"y": "]"}};)"},
          {R"([TOOL_CALLS]get[CALL_ID]abc123XYZ[ARGS]{"a": 1})", R"(0 get #abc123XYZ {"a": 1};)"},
          {R"([TOOL_CALLS]get{"a": "é 😀"})", R"(0 get {"a": "é 😀"};)"},
          {R"(Text. [TOOL_CALLS] get {"a": 1} Text.)", R"(C{Text.}0 get {"a": 1};C{ Text.})"},
          {R"([TOOL_CALLS][{"name": "a", "arguments": {"x": 1}, "id": "abcdefghi"}, {"name": "b", "arguments": {}}])",
           R"(0 a {"x": 1};1 b {};)"},
          {R"([TOOL_CALLS] [{"arguments": {}, "name": "a"}])", "0 a {};"},
          {R"([TOOL_CALLS]{"name": "a", "arguments": {"x": 1}})", R"(0 a {"x": 1};)"},
          {R"([TOOL_CALLS]get[ARGS])", "0 get {};"},
          {R"([TOOL_CALLS]get[ARGS]{"a": "x)", R"(0 get {"a": "x)", "", FinishReason::kLength},
          {R"([TOOL_CALLS]get[ARGS]{"a": "x)", R"(0 get {"a": "x;)"},
          {R"([TOOL_CALLS]get[ARGS]{"a": "\u00e9\ud83d\ude00 \\ \" {"})",
           R"(0 get {"a": "\u00e9\ud83d\ude00 \\ \" {"};)"},
          {"[THINK]Hm.[/THINK]Hello.", "R{Hm.}C{Hello.}"},
          {"<think>Hm.</think>Hello.", "R{Hm.}C{Hello.}"},
          {"[TOOL_CALLS]get[ARGS]{}</s>", "0 get {};C{</s>}"},
      },
  };
}

GoldenFamily deepseek_v3(std::string_view name) {
  return {
      name,
      "deepseek_v3",
      {"<｜tool▁calls▁begin｜>",
       "<｜tool▁calls▁end｜>",
       "<｜tool▁call▁begin｜>",
       "<｜tool▁call▁end｜>",
       "<｜tool▁sep｜>",
       "<｜end▁of▁sentence｜>"},
      {
          {"Hm.\n</think>\n\nHello.", "R{Hm.}C{Hello.}", "<｜Assistant｜><think>\n"},
          {"Text.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get\n```json\n"
           "{\"a\": "
           "\"```\"}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>put\n"
           "```json\n{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜><｜end▁of▁sentence｜>",
           R"(C{Text.}0 get {"a": "```"};1 put {};)"},
          {"<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get\n```json\n```"
           "<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
           "0 get {};"},
          {"<｜tool▁call▁begin｜>function<｜tool▁sep｜>get\n```json\n{\"a\": "
           "1}\n```<｜tool▁call▁end｜>\nText.",
           "0 get {\"a\": 1};C{\nText.}"},
          {"<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get\n```json\n{\"a\": "
           "\"x",
           R"(0 get {"a": "x)",
           "",
           FinishReason::kLength},
          {"<｜tool▁calls▁begin｜>text", "C{text}"},
          {"<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get<｜tool▁sep｜>{\"a\": "
           "1}<｜tool▁call▁end｜>",
           R"(0 get {"a": 1};)"},
      },
  };
}

GoldenFamily deepseek_v31() {
  return {
      "deepseek_v31",
      "deepseek_v3",
      {"<｜tool▁calls▁begin｜>",
       "<｜tool▁calls▁end｜>",
       "<｜tool▁call▁begin｜>",
       "<｜tool▁call▁end｜>",
       "<｜tool▁sep｜>"},
      {
          {"Text.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get<｜tool▁sep｜>{\"a\": 1}"
           "<｜tool▁call▁end｜><｜tool▁call▁begin｜>put<｜tool▁sep｜>{}<｜tool▁call▁end｜>"
           "<｜tool▁calls▁end｜>",
           R"(C{Text.}0 get {"a": 1};1 put {};)"},
          {"<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get<｜tool▁sep｜><｜tool▁call▁end｜>",
           "0 get {};"},
          {"Hello.", "C{Hello.}", "<｜Assistant｜></think>"},
      },
  };
}

GoldenFamily kimi_k2() {
  return {
      "kimi_k2",
      "kimi_k2",
      {"<|tool_calls_section_begin|>",
       "<|tool_calls_section_end|>",
       "<|tool_call_begin|>",
       "<|tool_call_end|>",
       "<|tool_call_argument_begin|>",
       "<|im_end|>"},
      {
          {"Text.<|tool_calls_section_begin|><|tool_call_begin|>functions.get:0"
           "<|tool_call_argument_begin|>{\"a\": "
           "1}<|tool_call_end|><|tool_call_begin|>functions.a.b:1"
           "<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|><|im_end|>",
           R"(C{Text.}0 get #functions.get:0 {"a": 1};1 a.b #functions.a.b:1 {};)"},
          {"<|tool_call_begin|>functions.get:7<|tool_call_argument_begin|><|tool_call_end|>",
           "0 get #functions.get:7 {};"},
          {"<think>Hm.<|tool_calls_section_begin|><|tool_call_begin|>functions.get:0"
           "<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>",
           "R{Hm.}0 get #functions.get:0 {};"},
          {"<|tool_calls_section_begin|><|tool_call_begin|>functions.get:0"
           "<|tool_call_argument_begin|>{\"a\": tru<|tool_call_end|>",
           R"(0 get #functions.get:0 {"a": tru;)"},
          {"<|tool_calls_section_begin|><|tool_calls_section_end|>Text.", "C{Text.}"},
      },
  };
}

}  // namespace

std::vector<GoldenFamily> named_goldens() {
  return {
      mistral({"[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "[THINK]", "[/THINK]"}),
      mistral({}),
      deepseek_v3("deepseek_v3"),
      deepseek_v31(),
      kimi_k2(),
      {"functionary",
       "",
       {},
       {{R"(<function=get>{"a": 1}</function><function=put>{}</function>)",
         R"(0 get {"a": 1};1 put {};)"},
        {R"(Text.<function=get></function>)", "C{Text.}0 get {};"},
        {R"(<function=get>{"a": "</function>"}</function>)", R"(0 get {"a": "</function>"};)"},
        {"<function=two words>{}", "C{<function=two words>{}}"}}},
  };
}

}  // namespace sluice
