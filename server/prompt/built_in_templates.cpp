// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <utility>

#include "engine/tokenizer/files/mistral_templates.h"
#include "server/prompt/chat_template.h"

namespace sluice {
namespace {

// What encoding_dsv32.py beside the weights of DeepSeek V3.2 writes, but for two things: a question
// at the end opens an answer only where add_generation_prompt asks for one, and where the model
// thinks, developers' messages before the last question stay.
constexpr std::string_view kDeepseekV32 = R"jinja(
{%- set thinks = (thinking is defined and thinking)
                 or (enable_thinking is defined and enable_thinking) -%}
{%- set dsml = '｜DSML｜' -%}
{%- macro described(tools) -%}
  {{- '\n\n## Tools\n\n'
      ~ 'You have access to a set of tools you can use to answer the user\'s question.\n'
      ~ 'You can invoke functions by writing a "<' ~ dsml ~ 'function_calls>" block like the '
      ~ 'following as part of your reply to the user:\n'
      ~ '<' ~ dsml ~ 'function_calls>\n'
      ~ '<' ~ dsml ~ 'invoke name="$FUNCTION_NAME">\n'
      ~ '<' ~ dsml ~ 'parameter name="$PARAMETER_NAME" string="true|false">$PARAMETER_VALUE</'
      ~ dsml ~ 'parameter>\n...\n</' ~ dsml ~ 'invoke>\n'
      ~ '<' ~ dsml ~ 'invoke name="$FUNCTION_NAME2">\n...\n</' ~ dsml ~ 'invoke>\n'
      ~ '</' ~ dsml ~ 'function_calls>\n\n'
      ~ 'String and scalar parameters should be specified as is without any escaping or quotes, '
      ~ 'while lists and objects should use JSON format. The "string" attribute should be set to '
      ~ '"true" for string type parameters and "false" for other types (numbers, booleans, arrays, '
      ~ 'objects).\n\n'
      ~ 'If the thinking_mode is enabled, then after function results you should strongly consider '
      ~ 'outputting a thinking block. Here is an example:\n\n'
      ~ '<' ~ dsml ~ 'function_calls>\n...\n</' ~ dsml ~ 'function_calls>\n\n'
      ~ '<function_results>\n...\n</function_results>\n\n'
      ~ '<think>...thinking about results</think>\n\n'
      ~ 'Here are the functions available in JSONSchema format:\n<functions>\n' -}}
  {%- for tool in tools -%}
    {{- tool.function | tojson -}}{{- '\n' -}}
  {%- endfor -%}
  {{- '</functions>\n' -}}
{%- endmacro -%}
{%- macro beside(tools, response_format) -%}
  {%- if tools -%}{{- described(tools) -}}{%- endif -%}
  {%- if response_format -%}
    {{- '\n\n## Response Format:\n\n'
        ~ 'You MUST strictly adhere to the following schema to reply:\n' -}}
    {{- response_format | tojson -}}
  {%- endif -%}
{%- endmacro -%}
{%- set at = namespace(user=-1, calls=0, results=0) -%}
{%- for message in messages -%}
  {%- if message.role == 'user' or message.role == 'developer' -%}
    {%- set at.user = loop.index0 -%}
  {%- endif -%}
{%- endfor -%}
{{- '<｜begin▁of▁sentence｜>' -}}
{%- if tools and messages[0].role != 'system' -%}{{- described(tools) -}}{%- endif -%}
{%- for message in messages -%}
  {%- if message.role == 'system' -%}
    {%- set at.calls = 0 -%}
    {{- message.content or '' -}}
    {{- beside(tools if tools and loop.first else message.tools, message.response_format) -}}
  {%- elif message.role == 'user' or message.role == 'developer' -%}
    {%- set at.calls = 0 -%}
    {{- '<｜User｜>' -}}
    {%- if message.role == 'developer' -%}
      {%- if not message.content -%}
        {{- raise_exception('A message of role developer must have content.') -}}
      {%- endif -%}
      {{- beside(message.tools, message.response_format) -}}
      {{- '\n\n# The user\'s message is: ' -}}
    {%- endif -%}
    {{- message.content -}}
    {%- if add_generation_prompt or not loop.last -%}
      {{- '<｜Assistant｜>' -}}
      {{- '<think>' if thinks and loop.index0 == at.user else '</think>' -}}
    {%- endif -%}
  {%- elif message.role == 'assistant' -%}
    {%- set calls = message.tool_calls or [] -%}
    {%- set at.calls = calls | length -%}
    {%- set at.results = 0 -%}
    {%- if thinks and loop.index0 > at.user -%}
      {{- message.reasoning_content or '' -}}{{- '</think>' -}}
    {%- endif -%}
    {{- message.content or '' -}}
    {%- if calls -%}
      {{- '\n\n<' ~ dsml ~ 'function_calls>\n' -}}
      {%- for call in calls -%}
        {{- '<' ~ dsml ~ 'invoke name="' ~ call.function.name ~ '">\n' -}}
        {%- for key, value in call.function.arguments.items() -%}
          {{- '<' ~ dsml ~ 'parameter name="' ~ key ~ '" string="'
              ~ ('true' if value is string else 'false') ~ '">' -}}
          {{- value if value is string else value | tojson -}}
          {{- '</' ~ dsml ~ 'parameter>' ~ ('' if loop.last else '\n') -}}
        {%- endfor -%}
        {{- '\n</' ~ dsml ~ 'invoke>\n' -}}
      {%- endfor -%}
      {{- '</' ~ dsml ~ 'function_calls>' -}}
    {%- endif -%}
    {{- '<｜end▁of▁sentence｜>' -}}
  {%- elif message.role == 'tool' -%}
    {%- set at.results = at.results + 1 -%}
    {%- if at.results > at.calls -%}
      {{- raise_exception('A message of role tool must follow a call that it answers.') -}}
    {%- endif -%}
    {{- '\n\n<function_results>' if at.results == 1 else '' -}}
    {{- '\n<result>' -}}{{- message.content or '' -}}{{- '</result>' -}}
    {%- if at.results == at.calls -%}
      {{- '\n</function_results>' -}}
      {%- if add_generation_prompt or not loop.last -%}
        {{- '\n\n<think>' if thinks and loop.index0 > at.user else '\n\n</think>' -}}
      {%- endif -%}
    {%- endif -%}
  {%- else -%}
    {{- raise_exception('There is no role ' ~ message.role ~ ' in this model\'s prompts.') -}}
  {%- endif -%}
{%- endfor -%})jinja";

// Those for a family's models, by config.json's model_type and GGUF's architecture.
constexpr std::array<std::pair<std::string_view, std::string_view>, 2> kTemplates = {
    {{"deepseek_v32", kDeepseekV32}, {"deepseek32", kDeepseekV32}}};

constexpr std::string_view kMistral = "mistral_";

}  // namespace

std::string built_in_template(std::string_view name) {
  for (const auto& [family, source] : kTemplates) {
    if (family == name) return std::string(source);
  }
  if (name.starts_with(kMistral)) return mistral_template(name.substr(kMistral.size()));
  return {};
}

}  // namespace sluice
