// SPDX-License-Identifier: Apache-2.0
// Families of models by how they write calls and reasoning. A family is a row of a table, found by
// the names that vLLM and SGLang give its parsers, or by what the chat template and the vocabulary
// hold. Rows are constants; resolve_format() makes of a pair of rows, once per model, what
// OutputParser reads. All functions: any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/tokenizer/tokenizer.h"
#include "server/tools/call_form.h"

namespace sluice {

struct CallFamily;       // how calls are written; a row of call_families.cpp
struct ReasoningFamily;  // how reasoning is written; a row of reasoning_families.cpp
class OutputFormat;      // both, for one vocabulary

// How ids of calls must look where a call has no id of the model's own.
enum class CallIdRule : uint8_t {
  kAny,
  kNineAlphanumeric,  // Mistral: templates refuse others
  kCounted,           // Kimi K2: functions.NAME:IDX, IDX counted over the whole conversation
};

// By a name that --tool-call-parser or --reasoning-parser takes, without "auto" and "none"; null:
// unknown.
const CallFamily* find_call_family(std::string_view name);
const ReasoningFamily* find_reasoning_family(std::string_view name);

// All names that the two functions know, ascending: for --help and errors.
std::vector<std::string_view> call_family_names();
std::vector<std::string_view> reasoning_family_names();

// vLLM's name of the family.
std::string_view name_of(const CallFamily& family);
std::string_view name_of(const ReasoningFamily& family);
CallIdRule id_rule_of(const CallFamily& family);
// Whether the tokenizers published with these models sort the keys of tools before a template gets
// them.
bool sorts_tools(const CallFamily& family);

// Either may be null: none was recognised.
struct DetectedFamilies {
  const CallFamily* calls = nullptr;
  const ReasoningFamily* reasoning = nullptr;
};

// What a template's source (Jinja text) and the vocabulary show. Nothing is rendered: whether the
// template prints tools is for its caller to find out. A reasoning family whose markers are not in
// the template is not recognised, except where the call family implies it.
DetectedFamilies detect_families(std::string_view template_source, const Tokenizer& tokenizer);

// Either row may be null: no calls, no reasoning; a reasoning row of a family that writes both in
// one form brings its calls along. A marker that is one special token of the vocabulary counts as
// that token alone; others count as text, whichever tokens spell them.
std::shared_ptr<const OutputFormat> resolve_format(const CallFamily* calls,
                                                   const ReasoningFamily* reasoning,
                                                   const Tokenizer& tokenizer);

// How the family's models write calls with this vocabulary.
CallForm call_form(const CallFamily& family, const Tokenizer& tokenizer);

// The first markers of the row's reasoning that the vocabulary has as tokens, or the first of all.
// None: a row that names no way to write it.
std::optional<ReasoningForm> reasoning_form(const ReasoningFamily& family,
                                            const Tokenizer& tokenizer);

// A prompt with this tail (as of OutputParser) has ended the reasoning of its answer.
bool ends_reasoning(const ReasoningFamily& family, std::string_view prompt_tail);

}  // namespace sluice
