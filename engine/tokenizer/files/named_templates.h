// SPDX-License-Identifier: Apache-2.0
// Chat templates of a model that has several, by their names in tokenizer_config.json,
// additional_chat_templates/ and GGUF's tokenizer.chat_template.NAME.
#pragma once

#include <string>

namespace sluice {

struct NamedTemplates {
  std::string standard;  // "default", or what has no name
  std::string tool_use;  // where there are tools; empty: none
  std::string rag;       // where there are documents; empty: none
};

// Returns one template that is `tool_use` where there are tools, else `rag` where there are
// documents, else `standard`; `tool_use` or `rag` alone where there is no other. Empty: there are
// none.
std::string joined_templates(const NamedTemplates& templates);

}  // namespace sluice
