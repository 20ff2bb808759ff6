// SPDX-License-Identifier: Apache-2.0
#include "engine/tokenizer/files/named_templates.h"

namespace sluice {
namespace {

// A branch after a tag of ours. The line feed belongs to the tag, as Hugging Face's settings trim
// it, so that `source` begins a line; the expression protects white space from the next tag, and
// prints a final brace, which would begin a tag with the next one's. A template's final line end is
// not part of its text.
std::string branch(std::string source) {
  for (const char* end : {"\r\n", "\n", "\r"}) {
    if (!source.ends_with(end)) continue;
    source.erase(source.rfind(end));
    break;
  }
  const bool has_brace = source.ends_with('{');
  if (has_brace) source.pop_back();
  return '\n' + source + (has_brace ? "{{ '{' }}" : "{{ '' }}");
}

}  // namespace

std::string joined_templates(const NamedTemplates& templates) {
  const auto& [standard, tool_use, rag] = templates;
  const std::string& other = !standard.empty() ? standard : !tool_use.empty() ? tool_use : rag;
  std::string joined;
  const auto add = [&](const char* variable, const std::string& source) {
    if (source.empty() || source == other) return;
    joined +=
        std::string(joined.empty() ? "{% if " : "{% elif ") + variable + " %}" + branch(source);
  };
  add("tools", tool_use);
  add("documents", rag);
  if (joined.empty()) return other;
  return joined + "{% else %}" + branch(other) + "{% endif %}";
}

}  // namespace sluice
