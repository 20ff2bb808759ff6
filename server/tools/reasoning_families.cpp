// SPDX-License-Identifier: Apache-2.0
// How families write reasoning: one row each, with the names of vLLM and SGLang.
#include "server/tools/output_format.h"

namespace sluice {
namespace {

using enum Role;
using Names = std::string_view;

constexpr MarkerText kThink[] = {{kReasoningBegin, "<think>"}, {kReasoningEnd, "</think>"}};
constexpr Names kThinkDetect[] = {"<think>", "</think>"};
constexpr Names kCloseDetect[] = {"</think>"};
constexpr Names kQwen3Names[] = {"smollm3",
                                 "nemotron_v3",
                                 "mimo",
                                 "glm45",
                                 "glm47",
                                 "glm",
                                 "kimi_k2",
                                 "kimi",
                                 "granite_thinking_parser",
                                 "poolside_v1",
                                 "ling3"};
constexpr Names kForcedNames[] = {
    "deepseekv3", "deepseek_v31", "deepseek_v32", "deepseek_v4", "deepseek_v41"};
constexpr Names kForcedOpenNames[] = {"deepseek-r1",
                                      "step3",
                                      "step3p5",
                                      "holo2",
                                      "minimax_m2",
                                      "minimax-m2",
                                      "minimax_m2_append_think",
                                      "minimax",
                                      "olmo3"};

constexpr MarkerText kMistral[] = {{kReasoningBegin, "[THINK]"},
                                   {kReasoningEnd, "[/THINK]"},
                                   {kReasoningBegin, "<think>"},
                                   {kReasoningEnd, "</think>"}};
constexpr Names kMistralDetect[] = {"[THINK]", "[/THINK]"};

constexpr MarkerText kSeed[] = {{kReasoningBegin, "<seed:think>"},
                                {kReasoningEnd, "</seed:think>"}};
constexpr Names kSeedDetect[] = {"<seed:think>"};

constexpr MarkerText kMinimaxM3[] = {{kReasoningBegin, "<mm:think>"},
                                     {kReasoningEnd, "</mm:think>"}};
constexpr Names kMinimaxM3Detect[] = {"<mm:think>"};

constexpr MarkerText kGranite[] = {
    {kReasoningBegin, "<think>"},
    {kReasoningEnd, "</think>"},
    {kReasoningBegin, "Here is my thought process:"},
    {kReasoningBegin, "Here's my thought process:"},
    {kReasoningEnd, "Here is my response:"},
    {kReasoningEnd, "Here's my response:"},
    {kWrapBegin, "<response>"},
    {kWrapEnd, "</response>"},
};
constexpr Names kGraniteDetect[] = {"<response>", "<think>", "thought process"};

constexpr MarkerText kGemma4[] = {{kReasoningBegin, "<|channel>thought\n"},
                                  {kReasoningBegin, "<|channel>thought"},
                                  {kReasoningEnd, "<channel|>"}};
constexpr Names kGemma4Detect[] = {"<|channel>", "<channel|>"};

constexpr Names kHarmonyNames[] = {"gpt-oss", "gpt_oss", "openai"};

constexpr Names kMuseNames[] = {"muse_glimmer", "musespark1x"};

constexpr MarkerText kCohere[] = {
    {kReasoningBegin, "<|START_THINKING|>"},
    {kReasoningEnd, "<|END_THINKING|>"},
    {kWrapBegin, "<|START_RESPONSE|>"},
    {kWrapEnd, "<|END_RESPONSE|>"},
    {kWrapBegin, "<|START_TEXT|>"},
    {kWrapEnd, "<|END_TEXT|>"},
};
constexpr Names kCohereNames[] = {"cohere_command4"};
constexpr Names kCohereDetect[] = {"<|START_THINKING|>"};

constexpr MarkerText kHunyuan[] = {{kReasoningBegin, "<think>"},
                                   {kReasoningEnd, "</think>"},
                                   {kReasoningBegin, "<think:opensource>"},
                                   {kReasoningEnd, "</think:opensource>"},
                                   {kWrapBegin, "<answer>"},
                                   {kWrapEnd, "</answer>"}};
constexpr Names kHunyuanNames[] = {"hunyuan", "hy_v3", "hy_v4"};
constexpr Names kHunyuanDetect[] = {"<think>", "<answer>"};
constexpr Names kHunyuanFormatDetect[] = {"<think{}>", "</think{}>"};
constexpr DetectTexts kHunyuanDetectAlso[] = {kHunyuanFormatDetect};

constexpr MarkerText kSolar[] = {
    {kReasoningBegin, "<|think|>"},
    {kReasoningEnd, "<|end|><|begin|>assistant"},
    {kReasoningEnd, "<|end|><|begin|>assistant<|content|>"},
    {kReasoningEnd, "<|end|>"},
    {kWrapBegin, "<|content|>"},
};
constexpr Names kSolarDetect[] = {"<|think|>", "<|content|>"};

constexpr MarkerText kErnie[] = {{kReasoningBegin, "<think>"},
                                 {kReasoningEnd, "</think>"},
                                 {kWrapBegin, "<response>"},
                                 {kWrapEnd, "</response>"}};

constexpr MarkerText kApriel[] = {{kReasoningBegin, "Here are my reasoning steps:"},
                                  {kReasoningEnd, "[BEGIN FINAL RESPONSE]"},
                                  {kWrapEnd, "[END FINAL RESPONSE]"}};
constexpr Names kAprielDetect[] = {"[BEGIN FINAL RESPONSE]"};

constexpr ReasoningFamily kFamilies[] = {
    {.name = "qwen3",
     .aliases = kQwen3Names,
     .markers = kThink,
     .detect = kThinkDetect,
     .after_begin = 1,
     .before_end = 1,
     .after_end = 2},
    {.name = "deepseek_r1",
     .aliases = kForcedOpenNames,
     .markers = kThink,
     .begins_inside = true,
     .after_begin = 1,
     .before_end = 1,
     .after_end = 2},
    {.name = "deepseek_v3",
     .aliases = kForcedNames,
     .markers = kThink,
     .detect = kCloseDetect,
     .after_begin = 1,
     .before_end = 1,
     .after_end = 2},
    {.name = "mistral", .markers = kMistral, .detect = kMistralDetect},
    {.name = "seed_oss",
     .markers = kSeed,
     .detect = kSeedDetect,
     .after_begin = 1,
     .before_end = 1,
     .after_end = 2},
    {.name = "minimax_m3", .markers = kMinimaxM3, .detect = kMinimaxM3Detect},
    {.name = "granite",
     .markers = kGranite,
     .detect = kGraniteDetect,
     .after_begin = 1,
     .before_end = 2,
     .after_end = 2},
    {.name = "gemma4",
     .markers = kGemma4,
     .detect = kGemma4Detect,
     .before_end = 1,
     .after_end = 1},
    {.name = "openai_gptoss",
     .aliases = kHarmonyNames,
     .implied_by = "openai",
     .text = {.begin = "<|channel|>analysis<|message|>",
              .end = "<|end|><|start|>assistant",
              .answer_begin = "<|channel|>final<|message|>"}},
    {.name = "muse",
     .aliases = kMuseNames,
     .implied_by = "muse",
     .text = {.begin = " to=self<|message|>",
              .end = "<|eom|><|start|>assistant",
              .answer_begin = " to=user<|message|>"}},
    {.name = "kimi_k3",
     .implied_by = "kimi_k3",
     .text = {.begin = "<|open|>think<|sep|>",
              .end = "<|close|>think<|sep|>",
              .answer_begin = "<|open|>response<|sep|>",
              .answer_end = "<|close|>response<|sep|>"}},
    {.name = "cohere_command3",
     .aliases = kCohereNames,
     .markers = kCohere,
     .detect = kCohereDetect},
    {.name = "hunyuan_a13b",
     .aliases = kHunyuanNames,
     .markers = kHunyuan,
     .detect = kHunyuanDetect,
     .detect_also = kHunyuanDetectAlso,
     .after_begin = 1,
     .before_end = 1,
     .after_end = 1},
    {.name = "ernie45",
     .markers = kErnie,
     .begins_inside = true,
     .after_begin = 1,
     .before_end = 1,
     .after_end = 2},
    {.name = "solar_open", .markers = kSolar, .detect = kSolarDetect},
    {.name = "apriel",
     .markers = kApriel,
     .detect = kAprielDetect,
     .begins_inside = true,
     .after_begin = 1,
     .before_end = 1,
     .after_end = 1},
};

}  // namespace

std::span<const ReasoningFamily> reasoning_families() { return kFamilies; }

}  // namespace sluice
