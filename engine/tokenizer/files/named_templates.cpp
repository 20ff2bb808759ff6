// SPDX-License-Identifier: Apache-2.0
#include "engine/tokenizer/files/named_templates.h"

namespace sluice {
namespace {

// A branch after a tag of ours. The line feed belongs to the tag, as Hugging Face's settings trim
// it, so that `source` begins a line; the empty expression protects white space from the next tag.
// A template's final line feed is not part of its text.
std::string branch(std::string source) {
  if (source.ends_with('\n')) source.pop_back();
  return '\n' + source + "{{ '' }}";
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
