// SPDX-License-Identifier: Apache-2.0
// Any JSON as variables of a template that touches them in many ways. What the spans call template
// text must not depend on the input: a marker that only inputs hold never shows up in it.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string_view>

#include "server/prompt/chat_template.h"
#include "tests/fuzz/target.h"

namespace {

constexpr std::string_view kTemplate = R"(
{%- for m in messages %}{{ '<|' ~ m.role ~ '|>' }}{{ m.content | trim }}
{%- if m.content is string %}{{ m.content.split('\n')[-1] | upper }}{{ m.content[::-1] }}
{{- m.content | replace('a', 'b') | indent(2) }}{{ m['content'] | tojson(indent=2) }}
{{- '%s|%r' % (m.content, m) }}{{ '{0!r:>9}'.format(m.content) }}{{ m.content | title }}
{%- elif m.content is iterable %}{% for p in m.content %}{{ p.text | default(p) }}{% endfor %}
{%- endif %}{% if m is mapping %}{% for k, v in m | dictsort(by='key') %}{{ k }}={{ v }}
{%- endfor %}{% endif %}{% endfor %}{{ messages | tojson(ensure_ascii=true, sort_keys=true) }}
{{- messages | map(attribute='content') | select('string') | join('+') }})";

}  // namespace

static int jinja_input_input(const uint8_t* data, size_t size) {
  const sluice::TemplateLimits limits = {
      .fuel = 200'000, .max_output_bytes = 1 << 18, .max_memory_bytes = 1 << 22, .max_depth = 32};
  static const auto chat = sluice::ChatTemplate::compile(kTemplate, limits, [] { return 0; });
  if (!chat) std::abort();
  const auto messages =
      nlohmann::ordered_json::parse(std::string_view(reinterpret_cast<const char*>(data), size),
                                    nullptr,
                                    /*allow_exceptions=*/false);
  if (messages.is_discarded()) return 0;
  const auto spans = chat->render({{"messages", messages}});
  if (!spans) return 0;
  for (const sluice::RenderedSpan& span : *spans) {
    if (span.from_template && span.text.find_first_of("@#$&") != std::string::npos) std::abort();
  }
  return 0;
}

const sluice::fuzz::Target jinja_input_target("jinja_input_fuzz", jinja_input_input);
