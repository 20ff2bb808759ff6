// SPDX-License-Identifier: Apache-2.0
#include "engine/tokenizer/files/mistral_templates.h"

#include <algorithm>
#include <array>

#include "engine/tokenizer/files/tekken.h"

namespace sluice {
namespace {

// A text that is JSON is written as the value that it spells. Readers of templates that have no
// such filter write it as it is.
constexpr std::string_view kJson = R"jinja(
{%- macro as_json(value) -%}
  {%- if value is not string -%}{{- value | tojson -}}
  {%- elif 'from_json' is filter -%}{{- value | from_json(value) | tojson -}}
  {%- else -%}{{- value -}}
  {%- endif -%}
{%- endmacro -%}
)jinja";

// The texts of messages that follow each other are one.
constexpr std::string_view kTexts = R"jinja(
{%- macro texts(group) -%}
  {%- set written = namespace(text=false) -%}
  {%- for message in group -%}
    {{- thought(message, written) -}}
    {%- set content = message.content -%}
    {%- for part in ([{'text': content}] if content is string else content or []) -%}
      {%- if part.text -%}
        {{- '\n\n' if written.text else '' -}}{{- part.text -}}
        {%- set written.text = true -%}
      {%- endif -%}
    {%- endfor -%}
  {%- endfor -%}
{%- endmacro -%}
)jinja";

constexpr std::string_view kNoThought = R"jinja(
{%- macro thought(message, written) -%}{%- endmacro -%}
{%- macro has_thought(group) -%}{%- endmacro -%}
)jinja";

constexpr std::string_view kThought = R"jinja(
{%- macro thought(message, written) -%}
  {%- if message.role == 'assistant' and message.reasoning_content -%}
    {{- '[THINK]' -}}{{- message.reasoning_content -}}{{- '[/THINK]' -}}
    {%- set written.text = false -%}
  {%- endif -%}
{%- endmacro -%}
{%- macro has_thought(group) -%}
  {{- 'yes' if group | selectattr('reasoning_content') | list -}}
{%- endmacro -%}
)jinja";

// Names of calls have nine letters and digits.
constexpr std::string_view kListedCalls = R"jinja(
{%- macro calls(group) -%}
  {%- set written = namespace(call=false) -%}
  {%- for message in group -%}
    {%- for call in message.tool_calls or [] -%}
      {{- ', ' if written.call else '[TOOL_CALLS][' -}}
      {%- set written.call = true -%}
      {{- '{"name": ' -}}{{- call.function.name | tojson -}}
      {{- ', "arguments": ' -}}{{- as_json(call.function.arguments) -}}
      {%- if call.id and call.id != 'null' -%}
        {{- ', "id": ' -}}{{- call.id[-9:] | tojson -}}
      {%- endif -%}
      {{- '}' -}}
    {%- endfor -%}
  {%- endfor -%}
  {{- ']' if written.call else '' -}}
{%- endmacro -%}
)jinja";

constexpr std::string_view kCallsWithIds = R"jinja(
{%- macro calls(group) -%}
  {%- for message in group -%}
    {%- for call in message.tool_calls or [] -%}
      {{- '[TOOL_CALLS]' -}}{{- call.function.name -}}
      {%- if call.id and call.id != 'null' -%}{{- '[CALL_ID]' -}}{{- call.id[-9:] -}}{%- endif -%}
      {{- '[ARGS]' -}}{{- as_json(call.function.arguments) -}}
    {%- endfor -%}
  {%- endfor -%}
{%- endmacro -%}
)jinja";

constexpr std::string_view kCalls = R"jinja(
{%- macro calls(group) -%}
  {%- for message in group -%}
    {%- for call in message.tool_calls or [] -%}
      {{- '[TOOL_CALLS]' -}}{{- call.function.name -}}
      {{- '[ARGS]' -}}{{- as_json(call.function.arguments) -}}
    {%- endfor -%}
  {%- endfor -%}
{%- endmacro -%}
)jinja";

constexpr std::string_view kJsonResult = R"jinja(
{%- macro result(message) -%}
  {{- '[TOOL_RESULTS]{"content": ' -}}{{- as_json(texts([message]) or '{}') -}}
  {{- ', "call_id": ' -}}{{- (message.tool_call_id or '')[-9:] | tojson -}}
  {{- '}[/TOOL_RESULTS]' -}}
{%- endmacro -%}
)jinja";

constexpr std::string_view kResultWithId = R"jinja(
{%- macro result(message) -%}
  {{- '[TOOL_RESULTS]' -}}{{- (message.tool_call_id or '')[-9:] -}}
  {{- '[TOOL_CONTENT]' -}}{{- texts([message]) -}}{{- '[/TOOL_RESULTS]' -}}
{%- endmacro -%}
)jinja";

constexpr std::string_view kResult = R"jinja(
{%- macro result(message) -%}
  {{- '[TOOL_RESULTS]' -}}{{- texts([message]) -}}{{- '[/TOOL_RESULTS]' -}}
{%- endmacro -%}
)jinja";

constexpr std::string_view kResults = R"jinja(
{%- macro results(group, ids) -%}
  {%- for message in group -%}{{- result(message) -}}{%- endfor -%}
{%- endmacro -%}
)jinja";

// Results come in the order of the calls, `ids`.
constexpr std::string_view kSortedResults = R"jinja(
{%- macro results(group, ids) -%}
  {%- for id in ids -%}
    {%- for message in group if message.tool_call_id == id -%}{{- result(message) -}}{%- endfor -%}
  {%- endfor -%}
  {%- for message in group if message.tool_call_id not in ids -%}
    {{- result(message) -}}
  {%- endfor -%}
{%- endmacro -%}
)jinja";

// Instructions come in front of the last question, or each where it is.
constexpr std::string_view kSystemInside = R"jinja(
{%- set system_is_inside = true -%}
{%- macro instruction(message) -%}{%- endmacro -%}
)jinja";

constexpr std::string_view kSystemInFront = R"jinja(
{%- set system_is_inside = false -%}
{%- macro instruction(message) -%}
  {{- '[SYSTEM_PROMPT]' -}}{{- texts([message]) -}}{{- '[/SYSTEM_PROMPT]' -}}
{%- endmacro -%}
)jinja";

constexpr std::string_view kToolsLast = R"jinja(
{%- set tools_come_first = false -%}
)jinja";

constexpr std::string_view kToolsFirst = R"jinja(
{%- set tools_come_first = true -%}
)jinja";

constexpr std::string_view kConversation = R"jinja(
{%- set system -%}
  {%- for message in messages if message.role == 'system' and message.content -%}
    {{- '\n\n' if not loop.first else '' -}}{{- texts([message]) -}}
  {%- endfor -%}
{%- endset -%}
{%- set at = namespace(begin=0, first=-1, last=-1, opener='', ids=[]) -%}
{%- for message in messages -%}
  {%- if message.role == 'user' -%}
    {%- if at.first < 0 and (loop.last or loop.nextitem.role != 'user') -%}
      {%- set at.first = loop.index0 -%}
    {%- endif -%}
    {%- set at.last = loop.index0 -%}
  {%- endif -%}
  {%- if not at.opener and message.role != 'system' -%}
    {%- set at.opener = message.role -%}
  {%- endif -%}
{%- endfor -%}
{%- macro question(text, is_first, is_last) -%}
  {%- if tools and (is_first if tools_come_first else is_last) -%}
    {{- '[AVAILABLE_TOOLS][' -}}
    {%- for tool in tools -%}
      {{- ', ' if not loop.first else '' -}}
      {{- {'type': 'function',
           'function': {'name': tool.function.name,
                        'description': tool.function.description or '',
                        'parameters': tool.function.parameters or {}}} | tojson -}}
    {%- endfor -%}
    {{- '][/AVAILABLE_TOOLS]' -}}
  {%- endif -%}
  {{- '[INST]' -}}
  {%- if system_is_inside and is_last and system -%}{{- system -}}{{- '\n\n' -}}{%- endif -%}
  {{- text -}}{{- '[/INST]' -}}
{%- endmacro -%}
{{- '<s>' -}}
{%- if system_is_inside and at.opener != 'user' -%}
  {{- question('', at.first < 0, at.last < 0) -}}
{%- endif -%}
{%- for message in messages -%}
  {%- if loop.first or loop.previtem.role != message.role -%}
    {%- set at.begin = loop.index0 -%}
  {%- endif -%}
  {%- if loop.last or loop.nextitem.role != message.role -%}
    {%- set group = messages[at.begin:loop.index0 + 1] -%}
    {%- if message.role == 'user' -%}
      {{- question(texts(group), loop.index0 == at.first, loop.index0 == at.last) -}}
    {%- elif message.role == 'assistant' -%}
      {%- set said = texts(group) -%}
      {{- said if has_thought(group) else said.rstrip(' ') -}}
      {{- calls(group) -}}{{- '</s>' -}}
      {%- for answer in group -%}
        {%- for call in answer.tool_calls or [] -%}
          {%- set at.ids = at.ids + ([call.id] if call.id not in at.ids else []) -%}
        {%- endfor -%}
      {%- endfor -%}
    {%- elif message.role == 'tool' -%}
      {{- results(group, at.ids) -}}
      {%- set at.ids = [] -%}
    {%- elif message.role == 'system' -%}
      {%- for one in group -%}{{- instruction(one) -}}{%- endfor -%}
    {%- else -%}
      {{- raise_exception('There is no role ' ~ message.role ~ ' in this model\'s prompts.') -}}
    {%- endif -%}
  {%- endif -%}
{%- endfor -%})jinja";

constexpr std::array kV3 = {
    kNoThought, kListedCalls, kJsonResult, kResults, kSystemInside, kToolsLast};
constexpr std::array kV7 = {
    kNoThought, kListedCalls, kResultWithId, kResults, kSystemInFront, kToolsLast};
constexpr std::array kV11 = {
    kNoThought, kCallsWithIds, kResultWithId, kSortedResults, kSystemInFront, kToolsLast};
constexpr std::array kV13 = {
    kNoThought, kCalls, kResult, kSortedResults, kSystemInFront, kToolsFirst};
constexpr std::array kV13WithThoughts = {
    kThought, kCalls, kResult, kSortedResults, kSystemInFront, kToolsFirst};

struct Version {
  std::string_view name;
  const std::array<std::string_view, 6>& parts;
};

// Where two have one name, the first whose tokens the tokenizer has counts.
constexpr std::array<Version, 5> kVersions = {
    {{"v3", kV3}, {"v7", kV7}, {"v11", kV11}, {"v13", kV13WithThoughts}, {"v13", kV13}}};

// The control tokens of all versions.
constexpr std::array<std::string_view, 16> kTokens = {"<s>",
                                                      "</s>",
                                                      "[INST]",
                                                      "[/INST]",
                                                      "[AVAILABLE_TOOLS]",
                                                      "[/AVAILABLE_TOOLS]",
                                                      "[TOOL_CALLS]",
                                                      "[TOOL_RESULTS]",
                                                      "[/TOOL_RESULTS]",
                                                      "[TOOL_CONTENT]",
                                                      "[SYSTEM_PROMPT]",
                                                      "[/SYSTEM_PROMPT]",
                                                      "[ARGS]",
                                                      "[CALL_ID]",
                                                      "[THINK]",
                                                      "[/THINK]"};

std::string source_of(const Version& version) {
  std::string source(kJson);
  for (const std::string_view part : version.parts) source += part;
  return source.append(kTexts).append(kConversation);
}

}  // namespace

std::string mistral_template(std::string_view version) {
  const auto* const found = std::ranges::find(kVersions, version, &Version::name);
  return found == kVersions.end() ? std::string() : source_of(*found);
}

Expected<std::string> template_of_tekken(std::string_view file, const Tokenizer& tokenizer) {
  SLUICE_TRY(const std::string name, tekken_version(file));
  for (const Version& version : kVersions) {
    if (version.name != name) continue;
    std::string source = source_of(version);
    const bool has_tokens = std::ranges::all_of(kTokens, [&](std::string_view token) {
      const bool is_written = source.find(token) != std::string::npos;
      return !is_written || tokenizer.find_token(token) != kInvalidToken;
    });
    if (has_tokens) return source;
  }
  return std::string();
}

}  // namespace sluice
