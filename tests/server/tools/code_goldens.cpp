// SPDX-License-Identifier: Apache-2.0
// Calls as code: Python's and Gemma's. The forms are those of the families' chat templates and of
// what their models are known to write.
#include "tests/server/tools/goldens.h"

namespace sluice {
namespace {

std::vector<Golden> python_calls() {
  return {
      {"[f()]", "0 f {};"},
      {"[f(a=1), g(b=\"x\")]", R"(0 f {"a": 1};1 g {"b": "x"};)"},
      {"[get.weather(city='Paris', days=3, fine=True, none=None, off=False)]",
       R"(0 get.weather {"city": "Paris", "days": 3, "fine": true, "none": null, "off": false};)"},
      {R"([f(a={'k': [1, (2, 3)], "l": {}}, b=[], c=-1.5e3)])",
       R"(0 f {"a": {"k": [1, [2, 3]], "l": {}}, "b": [], "c": -1.5e3};)"},
      {R"([f(a="é 😀 \u00e9 \ud83d\ude00 \x41 \n \" ' \\ \q")])",
       R"(0 f {"a": "é 😀 é 😀 A \n \" ' \\ \\q"};)"},
      {R"([f(a="""two "quoted"
lines""", b='')])",
       R"(0 f {"a": "two \"quoted\"\nlines", "b": ""};)"},
      {R"([f(a=")]", b="[g(x=1)]")])", R"(0 f {"a": ")]", "b": "[g(x=1)]"};)"},
      {"[f( a = 1 , b = [ 1 , 2 , ] , )]", R"(0 f {"a": 1, "b": [1, 2]};)"},
      {"[f(a=1_000, b=.5, c=+2, d=word)]", R"(0 f {"a": 1000, "b": 0.5, "c": 2, "d": "word"};)"},
      {"[f(a=1, a=2)]", R"(0 f {"a": 1};)"},
      {"[f(a={1: 2, True: 3})]", R"(0 f {"a": {"1": 2, "True": 3}};)"},
      {"[f(a=\"x", R"(0 f {"a": "x"};)"},
      {"[f(a=[1, {\"k\":", R"(0 f {"a": [1, {"k": null}]};)"},
      {"[f(a=\"x", R"(0 f {"a": "x)", "", FinishReason::kLength},
  };
}

GoldenFamily pythonic() {
  GoldenFamily family{"pythonic", "", {}, python_calls()};
  for (const Golden& golden : std::initializer_list<Golden>{
           {"Hello.", "C{Hello.}"},
           {"[1, 2, 3]", "C{[1, 2, 3]}"},
           {"[text](link)", "C{[text](link)}"},
           {"[", "C{[}"},
           {"[f", "C{[f}"},
           {"[]", "C{[]}"},
           {"Text [f(a=1)]", "C{Text [f(a=1)]}"},
           {"[f(a=1)] Text", R"(0 f {"a": 1};C{ Text})"},
           {"[f(\"positional\")] Text", R"(0 f {};C{"positional")] Text})"}}) {
    family.goldens.push_back(golden);
  }
  return family;
}

GoldenFamily lfm2(std::vector<std::string_view> specials) {
  GoldenFamily family{"lfm2", "", std::move(specials), {}};
  family.goldens = {
      {"Text.<|tool_call_start|>[f(a=1), g()]<|tool_call_end|>More.",
       R"(C{Text.}0 f {"a": 1};1 g {};C{More.})"},
      {"[f(a=1)]", "C{[f(a=1)]}"},
      {"<|tool_call_start|>[f(1, a=2)]<|tool_call_end|>More.", "0 f {};C{More.}"},
      {"<|tool_call_start|>[f(a=\"x\"<|tool_call_end|>", R"(0 f {"a": "x"};)"},
  };
  return family;
}

std::vector<Golden> gemma_calls(bool is_gemma4) {
  if (is_gemma4) {
    return {
        {R"(<|tool_call>call:get{city:<|"|>Paris<|"|>,n:42,o:{k:<|"|>v<|"|>,l:[1,<|"|>a<|"|>]},b:true}<tool_call|>)",
         R"(0 get {"city": "Paris", "n": 42, "o": {"k": "v", "l": [1, "a"]}, "b": true};)"},
        {"<|tool_call>call:a{}<tool_call|><|tool_call>call:b{}<tool_call|>", "0 a {};1 b {};"},
        {R"(<|tool_call>call:get{s:<|"|>"q" \ {}[],: é
line<|"|>,e:<|"|><|"|>}<tool_call|>)",
         R"(0 get {"s": "\"q\" \\ {}[],: é\nline", "e": ""};)"},
        {"<|channel>thought\nHm.\n<channel|>Hello.", "R{Hm.}C{Hello.}"},
        {"<|channel>thought\nHm.<channel|><|tool_call>call:a{}<tool_call|>", "R{Hm.}0 a {};"},
        {"<|channel>thought\n<channel|>Hello.", "C{Hello.}"},
        {"Text.<|tool_call>call:a{l:[],m:{},n:null}<tool_call|>",
         R"(C{Text.}0 a {"l": [], "m": {}, "n": null};)"},
        {R"(<|tool_call>call:get{s:<|"|>ab)", R"(0 get {"s": "ab"};)"},
        {R"(<|tool_call>call:get{s:<|"|>ab)", R"(0 get {"s": "ab)", "", FinishReason::kLength},
        {"<|tool_call>no call<tool_call|>", "C{no call}"},
    };
  }
  return {
      {"<start_function_call>call:get{city:<escape>Paris<escape>,n:4.5}<end_function_call>",
       R"(0 get {"city": "Paris", "n": 4.5};)"},
      {"<start_function_call>call:a{}<end_function_call><start_function_call>call:b{}<end_function_"
       "call>",
       "0 a {};1 b {};"},
      {"<start_function_call>calling<end_function_call>",
       "C{<start_function_call>calling<end_function_call>}"},
      {"<start_function_call>call:get{a:<escape>x<end_function_call><escape>}<end_function_call>",
       R"(0 get {"a": "x<end_function_call>"};)"},
  };
}

}  // namespace

std::vector<GoldenFamily> code_goldens() {
  return {
      pythonic(),
      {"llama4_pythonic", "", {"<|python_start|>", "<|python_end|>"}, python_calls()},
      {"llama4_pythonic",
       "",
       {"<|python_start|>", "<|python_end|>"},
       {{"<|python_start|>[f(a=1)]<|python_end|>", R"(0 f {"a": 1};)"}}},
      lfm2({"<|tool_call_start|>", "<|tool_call_end|>"}),
      lfm2({}),
      {"olmo3",
       "olmo3",
       {},
       {{"Hm.</think>\n\n<function_calls>\nf(a=1)\ng(b=\"2\")\n</function_calls>",
         R"(R{Hm.}0 f {"a": 1};1 g {"b": "2"};)"}}},
      {"gemma4",
       "gemma4",
       {"<|tool_call>", "<tool_call|>", "<|\"|>", "<|channel>", "<channel|>"},
       gemma_calls(true)},
      {"functiongemma", "", {}, gemma_calls(false)},
  };
}

}  // namespace sluice
