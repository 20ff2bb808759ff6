// SPDX-License-Identifier: Apache-2.0
#include "tests/server/tools/call_generator.h"

#include <utility>

namespace sluice {
namespace {

using Json = nlohmann::ordered_json;
using Calls = std::vector<TestCall>;

// A call's JSON object as templates write it.
std::string object(const TestCall& call, std::string_view name_key, std::string_view argument_key) {
  return "{\"" + std::string(name_key) + "\": " + Json(call.name).dump() + ", \"" +
         std::string(argument_key) + "\": " + call.arguments.dump() + "}";
}

std::string array(const Calls& calls, std::string_view name_key, std::string_view argument_key) {
  std::string text = "[";
  for (const TestCall& call : calls) {
    if (text.size() > 1) text += ", ";
    text += object(call, name_key, argument_key);
  }
  return text + "]";
}

std::string each(const Calls& calls, std::string_view between, auto write) {
  std::string text;
  for (size_t i = 0; i < calls.size(); ++i) {
    if (i > 0) text += between;
    text += write(calls[i]);
  }
  return text;
}

std::string hermes(const Calls& calls) {
  return each(calls, "\n", [](const TestCall& call) {
    return "<tool_call>\n" + object(call, "name", "arguments") + "\n</tool_call>";
  });
}

std::string bare(const Calls& calls) {
  return each(calls, "; ", [](const TestCall& call) { return object(call, "name", "parameters"); });
}

std::string toolcall(const Calls& calls) {
  return "<TOOLCALL>" + array(calls, "name", "arguments") + "</TOOLCALL>";
}

std::string granite(const Calls& calls) {
  return "<|tool_call|>" + array(calls, "name", "arguments");
}

std::string functools(const Calls& calls) {
  return "functools" + array(calls, "name", "arguments");
}

std::string phi4(const Calls& calls) {
  return "<|tool_call|>" + array(calls, "name", "arguments") + "<|/tool_call|>";
}

std::string cohere(const Calls& calls) {
  return "<|START_ACTION|>" + array(calls, "tool_name", "parameters") + "<|END_ACTION|>";
}

std::string command_r(const Calls& calls) {
  return "Action: ```json\n" + array(calls, "tool_name", "parameters") + "\n```";
}

std::string tool_calls(const Calls& calls) {
  return "<tool_calls>" + array(calls, "name", "arguments") + "</tool_calls>";
}

std::string apertus(const Calls& calls) {
  return "<|tools_prefix|>[" +
         each(calls,
              ", ",
              [](const TestCall& call) {
                return "{" + Json(call.name).dump() + ": " + call.arguments.dump() + "}";
              }) +
         "]<|tools_suffix|>";
}

std::string internlm(const Calls& calls) {
  return each(calls, "\n", [](const TestCall& call) {
    return "<|action_start|><|plugin|>" + object(call, "name", "parameters") + "<|action_end|>";
  });
}

std::string gigachat(const Calls& calls) {
  return each(calls, "", [](const TestCall& call) {
    return "function call<|role_sep|>\n" + object(call, "name", "arguments") + "<|message_sep|>";
  });
}

std::string function_call(const Calls& calls) {
  return each(calls, "\n", [](const TestCall& call) {
    return "<function_call> " + object(call, "name", "arguments");
  });
}

std::string xlam(const Calls& calls) { return array(calls, "name", "arguments"); }

std::string longcat(const Calls& calls) {
  return each(calls, "\n", [](const TestCall& call) {
    return "<longcat_tool_call>" + object(call, "name", "arguments") + "</longcat_tool_call>";
  });
}

std::string dots(const Calls& calls) {
  return each(calls, "\n", [](const TestCall& call) {
    return "<dots_function_call>" + object(call, "name", "arguments") + "</dots_function_call>";
  });
}

std::string mistral(const Calls& calls) {
  return each(calls, "", [](const TestCall& call) {
    return "[TOOL_CALLS]" + call.name + "[ARGS]" + call.arguments.dump();
  });
}

std::string deepseek_v3(const Calls& calls) {
  return "<｜tool▁calls▁begin｜>" +
         each(calls,
              "\n",
              [](const TestCall& call) {
                return "<｜tool▁call▁begin｜>function<｜tool▁sep｜>" + call.name + "\n```json\n" +
                       call.arguments.dump() + "\n```<｜tool▁call▁end｜>";
              }) +
         "<｜tool▁calls▁end｜>";
}

std::string deepseek_v31(const Calls& calls) {
  return "<｜tool▁calls▁begin｜>" +
         each(calls,
              "",
              [](const TestCall& call) {
                return "<｜tool▁call▁begin｜>" + call.name + "<｜tool▁sep｜>" +
                       call.arguments.dump() + "<｜tool▁call▁end｜>";
              }) +
         "<｜tool▁calls▁end｜>";
}

std::string kimi_k2(const Calls& calls) {
  return "<|tool_calls_section_begin|>" +
         each(calls,
              "",
              [](const TestCall& call) {
                return "<|tool_call_begin|>functions." + call.name +
                       ":0<|tool_call_argument_begin|>" + call.arguments.dump() +
                       "<|tool_call_end|>";
              }) +
         "<|tool_calls_section_end|>";
}

std::string functionary(const Calls& calls) {
  return each(calls, "", [](const TestCall& call) {
    return "<function=" + call.name + ">" + call.arguments.dump() + "</function>";
  });
}

// A value between tags: strings as they are, others as JSON.
std::string plain(const Json& value) {
  return value.is_string() ? value.get<std::string>() : value.dump();
}

std::string parameters(const TestCall& call, auto write) {
  std::string text;
  for (const auto& [key, value] : call.arguments.items()) text += write(key, value);
  return text;
}

std::string xml_call(const TestCall& call, std::string_view newline) {
  const std::string line(newline);
  return "<function=" + call.name + ">\n" +
         parameters(call,
                    [&](const auto& key, const Json& value) {
                      return "<parameter=" + key + ">" + line + plain(value) + line +
                             "</parameter>\n";
                    }) +
         "</function>\n";
}

std::string qwen3_coder(const Calls& calls) {
  return each(calls, "\n", [](const TestCall& call) {
    return "<tool_call>\n" + xml_call(call, "\n") + "</tool_call>";
  });
}

std::string mimo(const Calls& calls) {
  return each(calls, "\n", [](const TestCall& call) {
    return "<tool_call>\n" + xml_call(call, "") + "</tool_call>";
  });
}

std::string seed_oss(const Calls& calls) {
  return each(calls, "\n", [](const TestCall& call) {
    return "<seed:tool_call>\n" + xml_call(call, "") + "</seed:tool_call>";
  });
}

std::string glm_call(const TestCall& call, std::string_view after_name, std::string_view newline) {
  const std::string line(newline);
  return "<tool_call>" + call.name + std::string(after_name) + line +
         parameters(call,
                    [&](const auto& key, const Json& value) {
                      return "<arg_key>" + key + "</arg_key>" + line + "<arg_value>" +
                             plain(value) + "</arg_value>" + line;
                    }) +
         "</tool_call>";
}

std::string glm45(const Calls& calls) {
  return each(calls, "\n", [](const TestCall& call) { return glm_call(call, "", "\n"); });
}

std::string glm47(const Calls& calls) {
  return each(calls, "", [](const TestCall& call) { return glm_call(call, "", ""); });
}

std::string hy_v3(const Calls& calls) {
  return "<tool_calls>\n" +
         each(
             calls, "\n", [](const TestCall& call) { return glm_call(call, "<tool_sep>", "\n"); }) +
         "\n</tool_calls>";
}

std::string deepseek_v32(const Calls& calls) {
  return "<｜DSML｜function_calls>\n" +
         each(calls,
              "",
              [](const TestCall& call) {
                return "<｜DSML｜invoke name=\"" + call.name + "\">\n" +
                       parameters(call,
                                  [](const auto& key, const Json& value) {
                                    return "<｜DSML｜parameter name=\"" + key + "\" string=\"" +
                                           (value.is_string() ? "true" : "false") + "\">" +
                                           plain(value) + "</｜DSML｜parameter>\n";
                                  }) +
                       "</｜DSML｜invoke>\n";
              }) +
         "</｜DSML｜function_calls>";
}

std::string invoke(const Calls& calls, const std::string& prefix, std::string_view newline) {
  const std::string line(newline);
  return each(calls, "", [&](const TestCall& call) {
    return "<" + prefix + "invoke name=\"" + call.name + "\">" + line +
           parameters(call,
                      [&](const auto& key, const Json& value) {
                        return "<" + prefix + "parameter name=\"" + key + "\">" + plain(value) +
                               "</" + prefix + "parameter>" + line;
                      }) +
           "</" + prefix + "invoke>" + line;
  });
}

std::string minimax(const Calls& calls) {
  return "<minimax:tool_call>\n" + invoke(calls, "", "\n") + "</minimax:tool_call>";
}

std::string step3(const Calls& calls) {
  return "<｜tool_calls_begin｜>" +
         each(calls,
              "",
              [](const TestCall& call) {
                return "<｜tool_call_begin｜>function<｜tool_sep｜>" +
                       invoke({call}, "steptml:", "") + "<｜tool_call_end｜>";
              }) +
         "<｜tool_calls_end｜>";
}

std::string minicpm5(const Calls& calls) {
  return each(calls, "\n", [](const TestCall& call) {
    const std::string arguments = parameters(call, [](const auto& key, const Json& value) {
      const std::string text = plain(value);
      const bool is_raw = value.is_string() && text.find_first_of("<&\n") != std::string::npos;
      return "<param name=\"" + key + "\">" + (is_raw ? "<![CDATA[" + text + "]]>" : text) +
             "</param>";
    });
    return "<function name=\"" + call.name + "\">" + arguments + "</function>";
  });
}

std::string minimax_m3(const Calls& calls) {
  const std::string mark = "]<]minimax[>[<";
  const std::string text = each(calls, "", [&](const TestCall& call) {
    const std::string arguments = parameters(call, [&](const auto& key, const Json& value) {
      return mark + key + ">" + plain(value) + mark + "/" + key + ">";
    });
    return mark + "invoke name=\"" + call.name + "\">" + arguments + mark + "/invoke>\n";
  });
  return mark + "tool_call>\n" + text + mark + "/tool_call>";
}

std::string muse(const Calls& calls) {
  return each(calls, "<|eom|>", [](const TestCall& call) {
    return "<|start|>assistant to=" + call.name + "<|message|><atem:function_calls>\n" +
           invoke({call}, "atem:", "\n") + "</atem:function_calls>";
  });
}

std::string solar_open(const Calls& calls) {
  return "<|tool_calls|>" +
         each(calls,
              "",
              [](const TestCall& call) {
                return "<|tool_call:begin|>a1b2c3<|tool_call:name|>" + call.name +
                       "<|tool_call:args|>" + call.arguments.dump() + "<|tool_call:end|>";
              }) +
         "<|calls|>";
}

// A value as Python's repr() writes it, with JSON's escapes, which Python reads as well.
std::string literal(const Json& value) {
  if (value.is_boolean()) return value.get<bool>() ? "True" : "False";
  if (value.is_null()) return "None";
  std::string text;
  if (value.is_array()) {
    for (const Json& item : value) text += (text.empty() ? "" : ", ") + literal(item);
    return "[" + text + "]";
  }
  if (!value.is_object()) return value.dump();
  for (const auto& [key, item] : value.items()) {
    text += (text.empty() ? "" : ", ") + Json(key).dump() + ": " + literal(item);
  }
  return "{" + text + "}";
}

std::string python_call(const TestCall& call) {
  std::string text;
  for (const auto& [key, value] : call.arguments.items()) {
    text += (text.empty() ? "" : ", ") + key + "=" + literal(value);
  }
  return call.name + "(" + text + ")";
}

std::string pythonic(const Calls& calls) { return "[" + each(calls, ", ", python_call) + "]"; }

std::string llama4(const Calls& calls) {
  return "<|python_start|>" + pythonic(calls) + "<|python_end|>";
}

std::string lfm2(const Calls& calls) {
  return "<|tool_call_start|>" + pythonic(calls) + "<|tool_call_end|>";
}

std::string olmo3(const Calls& calls) {
  return "<function_calls>\n" + each(calls, "\n", python_call) + "\n</function_calls>";
}

std::string gemma_value(const Json& value, const std::string& quote) {
  if (value.is_string()) return quote + value.get<std::string>() + quote;
  std::string text;
  if (value.is_array()) {
    for (const Json& item : value) text += (text.empty() ? "" : ",") + gemma_value(item, quote);
    return "[" + text + "]";
  }
  if (!value.is_object()) return value.dump();
  for (const auto& [key, item] : value.items()) {
    text += (text.empty() ? "" : ",") + key + ":" + gemma_value(item, quote);
  }
  return "{" + text + "}";
}

std::string gemma4(const Calls& calls) {
  return each(calls, "", [](const TestCall& call) {
    return "<|tool_call>call:" + call.name + gemma_value(call.arguments, "<|\"|>") + "<tool_call|>";
  });
}

std::string functiongemma(const Calls& calls) {
  return each(calls, "", [](const TestCall& call) {
    return "<start_function_call>call:" + call.name + gemma_value(call.arguments, "<escape>") +
           "<end_function_call>";
  });
}

std::string harmony(const Calls& calls) {
  return each(calls, "", [](const TestCall& call) {
    return "<|start|>assistant<|channel|>commentary to=functions." + call.name +
           " <|constrain|>json<|message|>" + call.arguments.dump() + "<|call|>";
  });
}

std::string kimi_k3(const Calls& calls) {
  return "<|open|>tools<|sep|>" +
         each(calls,
              "",
              [](const TestCall& call) {
                return "<|open|>call tool=\"" + call.name + "\" index=\"1\"<|sep|>" +
                       parameters(call,
                                  [](const auto& key, const Json& value) {
                                    return "<|open|>argument key=\"" + key + "\" type=\"" +
                                           (value.is_string() ? "string" : "other") + "\"<|sep|>" +
                                           plain(value) + "<|close|>argument<|sep|>";
                                  }) +
                       "<|close|>call<|sep|>";
              }) +
         "<|close|>tools<|sep|>";
}

}  // namespace

std::vector<FamilyWriter> family_writers() {
  const auto json = [](std::string_view name, auto write) {
    FamilyWriter writer{.calls = name, .reasoning = "qwen3", .specials = {}, .write = write};
    writer.reasoning_begin = "<think>\n";
    writer.reasoning_end = "\n</think>\n\n";
    writer.keeps_bytes = writer.may_hold_markers = true;
    return writer;
  };
  const auto tagged = [&](std::string_view name, auto write) {
    FamilyWriter writer = json(name, write);
    writer.keeps_bytes = writer.may_hold_markers = false;
    return writer;
  };
  std::vector<FamilyWriter> writers = {
      json("hermes", hermes),
      json("nemotron_nano_v2", toolcall),
      json("granite", granite),
      json("phi4_mini", phi4),
      json("phi4_mini_json", functools),
      json("firefunction", functools),
      json("command_r", command_r),
      json("jamba", tool_calls),
      json("apertus", apertus),
      json("internlm", internlm),
      json("gigachat3", gigachat),
      json("granite-20b-fc", function_call),
      json("longcat", longcat),
      json("dots", dots),
      json("functionary", functionary),
      json("solar_open", solar_open),
      json("deepseek_v3", deepseek_v3),
      json("deepseek_v31", deepseek_v31),
      json("kimi_k2", kimi_k2),
      tagged("qwen3_coder", qwen3_coder),
      tagged("mimo", mimo),
      tagged("glm45", glm45),
      tagged("glm47", glm47),
      tagged("hy_v3", hy_v3),
      tagged("deepseek_v32", deepseek_v32),
      tagged("minimax_m2", minimax),
      tagged("step3", step3),
      tagged("minicpm5", minicpm5),
      tagged("minimax_m3", minimax_m3),
      tagged("lfm2", lfm2),
      tagged("olmo3", olmo3),
      tagged("functiongemma", functiongemma),
  };
  for (FamilyWriter& writer : writers) {
    if (writer.calls == "lfm2" || writer.calls == "olmo3") writer.may_hold_markers = true;
  }
  FamilyWriter special = json("cohere_command3", cohere);
  special.reasoning = "cohere_command3";
  special.reasoning_begin = "<|START_THINKING|>";
  special.reasoning_end = "<|END_THINKING|>";
  special.content_begin = "<|START_RESPONSE|>";
  special.content_end = "<|END_RESPONSE|>";
  special.may_hold_markers = false;  // whoever writes their letters writes the tokens
  special.specials = {"<|START_ACTION|>",
                      "<|END_ACTION|>",
                      "<|START_THINKING|>",
                      "<|END_THINKING|>",
                      "<|START_RESPONSE|>",
                      "<|END_RESPONSE|>"};
  writers.push_back(special);
  special = json("mistral", mistral);
  special.reasoning = "mistral";
  special.reasoning_begin = "[THINK]";
  special.reasoning_end = "[/THINK]";
  special.specials = {"[TOOL_CALLS]", "[ARGS]", "[THINK]", "[/THINK]"};
  special.may_hold_markers = false;
  writers.push_back(special);
  special = tagged("seed_oss", seed_oss);
  special.reasoning = "seed_oss";
  special.reasoning_begin = "<seed:think>\n";
  special.reasoning_end = "\n</seed:think>\n";
  writers.push_back(special);
  special = tagged("glm45", glm45);
  special.reasoning = "glm45";
  special.specials = {"<tool_call>",
                      "</tool_call>",
                      "<arg_key>",
                      "</arg_key>",
                      "<arg_value>",
                      "</arg_value>",
                      "<think>",
                      "</think>"};
  writers.push_back(special);
  special = tagged("deepseek_v32", deepseek_v32);
  special.specials = {"｜DSML｜"};
  writers.push_back(special);
  special = tagged("gemma4", gemma4);
  special.reasoning = "gemma4";
  special.reasoning_begin = "<|channel>thought\n";
  special.reasoning_end = "\n<channel|>";
  special.specials = {"<|tool_call>", "<tool_call|>", "<|\"|>", "<|channel>", "<channel|>"};
  writers.push_back(special);
  using Write = std::string (*)(const Calls&);
  for (const auto& [name, write] :
       std::initializer_list<std::pair<std::string_view, Write>>{{"llama3_json", bare},
                                                                 {"xlam", xlam},
                                                                 {"pythonic", pythonic},
                                                                 {"llama4_pythonic", llama4}}) {
    special = json(name, write);
    special.keeps_bytes = write == bare || write == xlam;
    special.takes_text_before = false;
    special.takes_text_after = write != llama4;
    writers.push_back(special);
  }
  special = json("openai", harmony);
  special.reasoning = "openai_gptoss";
  special.reasoning_begin = "<|start|>assistant<|channel|>analysis<|message|>";
  special.reasoning_end = "<|end|>";
  special.content_begin = "<|start|>assistant<|channel|>final<|message|>";
  special.content_end = "<|end|>";
  special.specials = {
      "<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|constrain|>", "<|call|>"};
  special.may_hold_markers = false;
  writers.push_back(special);
  special = tagged("muse", muse);
  special.reasoning = "muse";
  special.reasoning_begin = "<|start|>assistant to=self<|message|>";
  special.reasoning_end = "<|eom|>";
  special.content_begin = "<|start|>assistant to=user<|message|>";
  special.content_end = "<|eom|>";
  special.specials = {"<|start|>", "<|message|>", "<|eom|>", "<|eot|>"};
  writers.push_back(special);
  special = tagged("kimi_k3", kimi_k3);
  special.reasoning = "kimi_k3";
  special.reasoning_begin = "<|open|>think<|sep|>";
  special.reasoning_end = "<|close|>think<|sep|>";
  special.content_begin = "<|open|>response<|sep|>";
  special.content_end = "<|close|>response<|sep|>";
  special.specials = {"<|open|>", "<|sep|>", "<|close|>"};
  writers.push_back(special);
  return writers;
}

}  // namespace sluice
