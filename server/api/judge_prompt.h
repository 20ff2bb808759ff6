// SPDX-License-Identifier: Apache-2.0
// The conversation in which a model is asked for the tokens whose logits are a pair's score: its
// chat template's, by the roles query and document, or Qwen3-Reranker's. Any thread.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "engine/core/status.h"
#include "server/prompt/chat_template.h"
#include "server/prompt/validation_context.h"

namespace sluice {

enum class JudgeForm : uint8_t {
  kQwen3,  // the words on Qwen3-Reranker's model card
  kTexts,  // the template's, whose messages are texts
  kParts,  // the template's, whose messages are lists of parts
};

// Returns the form that the model was made for. kUnsupported: neither its template has a place for
// both roles, nor do its files show Qwen3-Reranker.
[[nodiscard]] Expected<JudgeForm> judge_form(const ValidationContext& context);

// Returns the conversation about a pair, after the instruction that is the model's default prompt,
// if any. kInvalidArgument: the template fails.
[[nodiscard]] Expected<std::vector<RenderedSpan>> judge_spans(const ValidationContext& context,
                                                              JudgeForm form,
                                                              std::string_view query,
                                                              std::string_view document);

}  // namespace sluice
