// SPDX-License-Identifier: Apache-2.0
// Families whose whole answer stands in messages or tags. The forms are those of the families' chat
// templates and of what their models are known to write.
#include "tests/server/tools/goldens.h"

namespace sluice {
namespace {

constexpr std::string_view kStart = "<|end|><|start|>assistant";

GoldenFamily harmony(std::vector<std::string_view> specials) {
  return {
      "openai",
      "openai_gptoss",
      std::move(specials),
      {
          {"<|channel|>final<|message|>Hello.<|return|>", "C{Hello.}", kStart},
          {"<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>"
           "Hello.",
           "R{Hm.}C{Hello.}",
           kStart},
          {"<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary "
           "to=functions.get <|constrain|>json<|message|>{\"a\": 1}<|call|>",
           R"(R{Hm.}0 get {"a": 1};)",
           kStart},
          {"<|channel|>commentary<|message|>I look.<|end|><|start|>assistant to=functions.get"
           "<|channel|>commentary json<|message|>{\"a\": \"é\"}<|call|>",
           R"(C{I look.}0 get {"a": "é"};)",
           kStart},
          {" to=functions.get<|channel|>commentary <|constrain|>json<|message|>{}<|call|>",
           "0 get {};",
           kStart},
          {"<|channel|>analysis to=functions.get<|message|>{}<|call|>", "0 get {};", kStart},
          {"<|channel|>final to=functions.get<|message|><|call|>", "0 get {};", kStart},
          {"<|channel|>commentary to=functions.a<|message|>{}<|call|><|start|>assistant<|channel|>"
           "commentary to=functions.b<|message|>{ }<|call|>",
           "0 a {};1 b { };",
           kStart},
          {"<|channel|>commentary to=functions.a<|message|>{\"x\": \"y",
           R"(0 a {"x": "y)",
           kStart,
           FinishReason::kLength},
          {"<|channel|>commentary to=functions.a<|message|>{\"x\": 1}", R"(0 a {"x": 1};)", kStart},
          {"<|channel|>analysis<|message|>Hm.", "R{Hm.}", kStart, FinishReason::kLength},
          {"<|channel|>analy", "", kStart, FinishReason::kLength},
          {"Hello without a header.", "C{Hello without a header.}", kStart},
          {"assemble", "C{assemble}", kStart},
          {"Hello.<|return|>", "C{Hello.}", "<|start|>assistant<|channel|>final<|message|>"},
          {"Hm.<|end|>", "R{Hm.}", "<|start|>assistant<|channel|>analysis<|message|>"},
          {"{\"a\": 1}<|call|>",
           R"(0 get {"a": 1};)",
           "<|start|>assistant<|channel|>commentary to=functions.get<|message|>"},
          {"<|channel|>commentary to=browser.search<|message|>{\"q\": 1}<|call|>",
           R"(0 browser.search {"q": 1};)",
           kStart},
          {"<|channel|>analysis<|message|>a<|channel|>final<|message|>b", "R{a}C{b}", kStart},
      },
  };
}

GoldenFamily kimi_k3() {
  return {
      "kimi_k3",
      "kimi_k3",
      {"<|open|>", "<|sep|>", "<|close|>"},
      {
          {"<|open|>think<|sep|>Hm.<|close|>think<|sep|><|open|>response<|sep|>Hello.<|close|>"
           "response<|sep|>",
           "R{Hm.}C{Hello.}"},
          {"<|open|>tools<|sep|><|open|>call tool=\"get\" index=\"1\"<|sep|><|open|>argument "
           "key=\"a\" "
           "type=\"string\"<|sep|>03\n\"é\"<|close|>argument<|sep|><|open|>argument key=\"n\" "
           "type=\"number\"<|sep|>3.50<|close|>argument<|sep|><|close|>call<|sep|><|open|>call "
           "tool=\"put\" index=\"2\"<|sep|><|close|>call<|sep|><|close|>tools<|sep|>",
           R"(0 get {"a": "03\n\"é\"", "n": 3.50};1 put {};)"},
          {"Hm.<|close|>think<|sep|>", "R{Hm.}", "<|open|>think<|sep|>"},
          {"<|open|>tools<|sep|><|open|>call tool=\"get\"<|sep|><|open|>argument key=\"a\" "
           "type=\"string\"<|sep|>xy",
           R"(0 get {"a": "xy)",
           "",
           FinishReason::kLength},
          {"<|open|>tools<|sep|><|open|>call tool=\"get\"<|sep|><|open|>argument key=\"a\" "
           "type=\"string\"<|sep|>xy",
           R"(0 get {"a": "xy"};)"},
      },
  };
}

}  // namespace

std::vector<GoldenFamily> channel_goldens() {
  return {
      harmony({"<|start|>",
               "<|end|>",
               "<|message|>",
               "<|channel|>",
               "<|constrain|>",
               "<|call|>",
               "<|return|>"}),
      harmony({}),
      kimi_k3(),
  };
}

}  // namespace sluice
