// SPDX-License-Identifier: Apache-2.0
// Calls in tags. The forms are those of the families' chat templates and of what their models are
// known to write. No tool is known here: values are JSON if they parse, else strings.
#include "tests/server/tools/goldens.h"

namespace sluice {
namespace {

GoldenFamily qwen3_coder() {
  return {
      "qwen3_coder",
      "qwen3",
      {"<|im_end|>"},
      {
          {"Hello.", "C{Hello.}"},
          {"<tool_call>\n<function=get>\n<parameter=city>\nParis\n</parameter>\n"
           "<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>",
           R"(0 get {"city": "Paris", "days": 3};)"},
          {"<tool_call>\n<function=get>\n</function>\n</tool_call>", "0 get {};"},
          {"<tool_call><function=get></function></tool_call>", "0 get {};"},
          {"Text.\n\n<tool_call>\n<function=a>\n</function>\n</tool_call>\n<tool_call>\n"
           "<function=b>\n<parameter=x>\n[1, {\"y\": "
           "null}]\n</parameter>\n</function>\n</tool_call>",
           R"(C{Text.}0 a {};1 b {"x": [1, {"y": null}]};)"},
          {"<tool_call>\n<function=a>\n</function>\n<function=b>\n</function>\n</tool_call>",
           "0 a {};1 b {};"},
          {"<function=get>\n<parameter=x>\nv\n</parameter>\n</function>\n</tool_call>",
           R"(0 get {"x": "v"};)"},
          {"<tool_call>\n<function=get>\n<parameter=code>\ndef f():\n    return \"\\n\"\n\n"
           "</parameter>\n</function>\n</tool_call>",
           R"(0 get {"code": "def f():\n    return \"\\n\"\n"};)"},
          {"<tool_call>\n<function=get>\n<parameter=x>\n\n</parameter>\n</function>\n</tool_call>",
           R"(0 get {"x": ""};)"},
          {"<tool_call>\n<function=get>\n<parameter=x>\n  padded \n</parameter>\n</function>",
           R"(0 get {"x": "  padded "};)"},
          {"<tool_call>\n<function=get>\n<parameter=x>\né 日本 😀\n</parameter>\n</function>",
           R"(0 get {"x": "é 日本 😀"};)"},
          {"<tool_call>\n<function=get>\n<parameter=x>\na < b </param> "
           "<parameter=y>\n</parameter>\n"
           "</function>\n</tool_call>",
           R"(0 get {"x": "a < b </param> <parameter=y>"};)"},
          {"<tool_call>\n<function=get>\n<parameter=x>\n03106\n</parameter>\n</function>",
           R"(0 get {"x": "03106"};)"},
          {"<tool_call>\n<function=get>\n<parameter=x>\n140.0\n</parameter>\n</function>",
           R"(0 get {"x": 140.0};)"},
          {"<tool_call>\n<function=get>\n<parameter=x>\n1\n</parameter>\n<parameter=x>\n2\n"
           "</parameter>\n</function>",
           R"(0 get {"x": 1};)"},
          {"<think>\nHm.\n</think>\n\n<tool_call>\n<function=get>\n</function>\n</tool_call>",
           "R{Hm.}0 get {};"},
          {"<think>\nHm <tool_call>\n<function=get>\n</function>\n</tool_call>", "R{Hm }0 get {};"},
          {"<tool_call>\nno call</tool_call>", "C{<tool_call>\nno call</tool_call>}"},
          {"<tool_call>\n<function=two words>\n</function>",
           "C{<tool_call>\n<function=two words>\n</function>}"},
          {"<tool_call>\n</tool_call>", "C{<tool_call>\n</tool_call>}"},
          {"<tool_call>\n<function=ge", "", "", FinishReason::kLength},
          {"<tool_call>\n<function=get>\n<parameter=x>\nab",
           R"(0 get {"x": )",
           "",
           FinishReason::kLength},
          {"<tool_call>\n<function=get>\n<parameter=x>\nab", R"(0 get {"x": "ab"};)"},
          {"<tool_call>\n<function=get>\n<parameter=x", "0 get {};"},
          {"<tool_call>\n<function=get>\n<parameter=x>\nab<|im_end|>", R"(0 get {"x": "ab"};)"},
          {"<tool_call>\n<function=a>\n<tool_call>\n<function=b>\n</function>\n</tool_call>",
           "0 a {};1 b {};"},
          {"<tool_call>\n<function=a.b-c_1>\n</function>\n</tool_call>\nText.",
           "0 a.b-c_1 {};C{\nText.}"},
          {"a <funct", "C{a <funct}"},
          {"<tool_call>\n<function=g>\n<parameter=x>\ntrue\n</parameter>\n<parameter=y>\n{\"a\": "
           "\"</parameter\"}"
           "\n</parameter>\n</function>\n</tool_call>",
           R"(0 g {"x": true, "y": {"a": "</parameter"}};)"},
          {"<tool_call>\n<function=g>\njunk<parameter=x>\n1\n</parameter>\n</function>",
           R"(0 g {"x": 1};)"},
      },
  };
}

GoldenFamily glm(std::string_view name, std::vector<std::string_view> specials) {
  return {
      name,
      "glm45",
      std::move(specials),
      {
          {"Hello.", "C{Hello.}"},
          {"\n<think></think>\nHello.", "C{Hello.}"},
          {"<think>Hm.</think>\nText.\n<tool_call>get\n<arg_key>city</arg_key>\n<arg_value>Paris</"
           "arg_value>"
           "\n<arg_key>n</arg_key>\n<arg_value>3</arg_value>\n</tool_call>",
           R"(R{Hm.}C{Text.}0 get {"city": "Paris", "n": 3};)"},
          {"<tool_call>get</tool_call>", "0 get {};"},
          {"<tool_call>get\n</tool_call>", "0 get {};"},
          {"<tool_call>a<arg_key>x</arg_key><arg_value>1</arg_value></tool_call><tool_call>b</"
           "tool_call>",
           R"(0 a {"x": 1};1 b {};)"},
          {"<tool_call>a\n<arg_key>x</arg_key>\n<arg_value>{\"k\": [1, "
           "\"é\"]}</arg_value>\n</tool_call>",
           R"(0 a {"x": {"k": [1, "é"]}};)"},
          {"<tool_call>a\n<arg_key>x</arg_key>\n<arg_value>\nlines\n\"q\"\n</arg_value>\n</"
           "tool_call>",
           R"(0 a {"x": "\nlines\n\"q\"\n"};)"},
          {"<tool_call>a\n<arg_key>x</arg_key>\n<arg_value></arg_value>\n</tool_call>",
           R"(0 a {"x": ""};)"},
          {"<tool_call>a\n<arg_key>x</arg_key>\n<arg_value>ab", R"(0 a {"x": "ab"};)"},
          {"<tool_call>a\n<arg_key>x</arg_key>\n<arg_value>ab",
           R"(0 a {"x": )",
           "",
           FinishReason::kLength},
          {"Hm.</think>Hello.", "R{Hm.}C{Hello.}", "<|assistant|><think>"},
          {"Hello.", "C{Hello.}", "<|assistant|></think>"},
          {"<tool_call>a\n</tool_call>\nText.", "0 a {};C{\nText.}"},
      },
  };
}

GoldenFamily deepseek_v32() {
  return {
      "deepseek_v32",
      "deepseek_v32",
      {"｜DSML｜", "<think>", "</think>", "<｜end▁of▁sentence｜>"},
      {
          {"Hm.</think>Text.\n\n<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"get\">\n"
           "<｜DSML｜parameter name=\"city\" string=\"true\">03106</｜DSML｜parameter>\n"
           "<｜DSML｜parameter name=\"n\" string=\"false\">[1, 2]</｜DSML｜parameter>\n"
           "</｜DSML｜invoke>\n<｜DSML｜invoke name=\"put\">\n</｜DSML｜invoke>\n"
           "</｜DSML｜function_calls><｜end▁of▁sentence｜>",
           R"(R{Hm.}C{Text.}0 get {"city": "03106", "n": [1, 2]};1 put {};)",
           "<think>"},
          {"<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"get\">\n<｜DSML｜parameter "
           "name=\"a\">x\n\"y\""
           "</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>",
           R"(0 get {"a": "x\n\"y\""};)"},
          {"<｜DSML｜ tool_calls>\n<｜DSML｜ invoke name=\"get\">\n<｜DSML｜ parameter name=\"a\" "
           "string=\"true\">x</｜DSML｜ parameter>\n</｜DSML｜ invoke>\n</｜DSML｜ "
           "tool_calls>\nText.",
           "0 get {\"a\": \"x\"};C{\nText.}"},
          {"a < b and <function_calls>", "C{a < b and <function_calls>}"},
          {"<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"get\">\n<｜DSML｜parameter name=\"a\" "
           "string=\"true\">x < y </invoke></｜DSML｜parameter>\n</｜DSML｜invoke>",
           R"(0 get {"a": "x < y </invoke>"};)"},
      },
  };
}

GoldenFamily minimax() {
  return {
      "minimax_m2",
      "minimax_m2",
      {"<think>", "</think>", "<minimax:tool_call>", "</minimax:tool_call>"},
      {
          {"Hm.\n</think>\n\nHello.", "R{Hm.}C{Hello.}", "ai\n<think>\n"},
          {"<think>Hm.</think>\n\n<minimax:tool_call>\n<invoke name=\"get\">\n<parameter "
           "name=\"a\">x"
           "</parameter>\n<parameter name=\"b\">[1]</parameter>\n</invoke>\n<invoke name=\"put\">\n"
           "</invoke>\n</minimax:tool_call>",
           R"(R{Hm.}0 get {"a": "x", "b": [1]};1 put {};)"},
          {"</think><minimax:tool_call>text</minimax:tool_call>", "C{text}"},
      },
  };
}

}  // namespace

std::vector<GoldenFamily> tagged_goldens() {
  return {
      qwen3_coder(),
      {"mimo",
       "mimo",
       {},
       {{"<tool_call>\n<function=get>\n<parameter=x>\nv\n</parameter>\n</function>\n</tool_call>",
         R"(0 get {"x": "\nv\n"};)"},
        {"Let me run it.\n<tool_call>\n<function=run>\n<parameter=language>python</parameter>\n"
         "<parameter=code>print(\"a\")\nprint(1 < 2)</parameter>\n</function>\n</tool_call>",
         R"x(C{Let me run it.}0 run {"language": "python", "code": "print(\"a\")\nprint(1 < 2)"};)x"},
        {"Hm.</think><tool_call><function=get><parameter=x>v</parameter><parameter=n>3</parameter>"
         "</function></tool_call><tool_call><function=put></function></tool_call>",
         R"(R{Hm.}0 get {"x": "v", "n": 3};1 put {};)",
         "assistant\n<think>"}}},
      {"step3p5",
       "step3p5",
       {"<tool_call>", "</tool_call>"},
       {{"Hm.\n</think>\nI will look.\n<tool_call>\n<function=get>\n<parameter=city>\nParis\n"
         "</parameter>\n<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>",
         R"(R{Hm.}C{I will look.}0 get {"city": "Paris", "days": 3};)",
         "assistant\n<think>\n"},
        {"Hm.\n</think>\n<tool_call>\n<function=a>\n</function>\n</tool_call><tool_call>\n"
         "<function=b>\n</function>\n</tool_call>",
         "R{Hm.}0 a {};1 b {};",
         "assistant\n<think>\n"}}},
      {"seed_oss",
       "seed_oss",
       {},
       {{"<seed:think>Hm.</seed:think><seed:tool_call>\n<function=get>\n<parameter=x>v</"
         "parameter>\n"
         "</function>\n</seed:tool_call>",
         R"(R{Hm.}0 get {"x": "v"};)"}}},
      glm("glm45",
          {"<tool_call>",
           "</tool_call>",
           "<arg_key>",
           "</arg_key>",
           "<arg_value>",
           "</arg_value>",
           "<think>",
           "</think>"}),
      glm("glm45", {}),
      glm("glm47", {}),
      deepseek_v32(),
      minimax(),
      {"hy_v3",
       "hunyuan_a13b",
       {},
       {{"<tool_calls>\n<tool_call>get<tool_sep>\n<arg_key>a</arg_key>\n<arg_value>1</arg_value>\n"
         "</tool_call>\n<tool_call>put<tool_sep>\n</tool_call>\n</tool_calls>",
         R"(0 get {"a": 1};1 put {};)"},
        {"<think>\nHm.\n</think>\n<answer>\nHello.\n</answer>", "R{Hm.}C{Hello.}"}}},
      {"step3",
       "step3",
       {"<｜tool_calls_begin｜>",
        "<｜tool_calls_end｜>",
        "<｜tool_call_begin｜>",
        "<｜tool_call_end｜>",
        "<｜tool_sep｜>"},
       {{"Hm.</think>Text.<｜tool_calls_begin｜><｜tool_call_begin｜>function<｜tool_sep｜>"
         "<steptml:invoke name=\"get\"><steptml:parameter name=\"a\">x</steptml:parameter>"
         "</steptml:invoke><｜tool_call_end｜><｜tool_call_begin｜>function<｜tool_sep｜>"
         "<steptml:invoke name=\"put\"></steptml:invoke><｜tool_call_end｜><｜tool_calls_end｜>",
         R"(R{Hm.}C{Text.}0 get {"a": "x"};1 put {};)"}}},
  };
}

}  // namespace sluice
