// SPDX-License-Identifier: Apache-2.0
// Turns `messages` or `prompt` into token ids. In a text prompt the names of control tokens are
// those tokens, because clients that render chats or FIM prompts mean them so. Contents of chat
// messages never become control tokens: only the template's own text is parsed for them.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "engine/core/status.h"
#include "engine/core/types.h"
#include "server/prompt/validation_context.h"

namespace sluice {

struct ChatPrompt {
  std::vector<TokenId> ids;  // at least one
  // The template's text after the last message; if that message is continued, its turn up to the
  // end. Determines whether the output begins inside reasoning.
  std::string tail;
};

Expected<ChatPrompt> chat_prompt(const ValidationContext& context,
                                 const nlohmann::ordered_json& body);

// Returns the ids of a prompt: a string, a list of strings, a list of ids or a list of lists of
// ids.
Expected<std::vector<std::vector<TokenId>>> completion_prompts(const ValidationContext& context,
                                                               const nlohmann::ordered_json& body);

// Applies truncate_prompt_tokens and truncation_side. `reserved`: tokens that -1 leaves for the
// output. Returns for each prompt whether it was cut.
Expected<std::vector<bool>> truncate_prompts(const ValidationContext& context,
                                             const nlohmann::ordered_json& body,
                                             int32_t reserved,
                                             std::vector<std::vector<TokenId>>& prompts);

// Adds variables for chat templates: the tokenizer's named tokens; bos_token and eos_token always.
void add_special_token_names(const Tokenizer& tokenizer, nlohmann::ordered_json& variables);

// Tokenizes a rendered chat as one text: pieces may span the border between template and message.
// Fails like Tokenizer::encode().
Expected<void> encode_spans(const Tokenizer& tokenizer,
                            const std::vector<RenderedSpan>& spans,
                            std::vector<TokenId>& out);

// Returns the text that `echo` puts before each answer of a completion: a text as it was sent; for
// ids, and for a text that was cut, their decoded text without the beginning-of-text token.
std::vector<std::string> prompt_texts(const Tokenizer& tokenizer,
                                      const nlohmann::ordered_json& body,
                                      const std::vector<std::vector<TokenId>>& prompts,
                                      const std::vector<bool>& is_cut);

// Returns the error of a prompt that leaves no room in the context for the output. `limit`: the
// output tokens that the request asked for, if it named a number; `param`: the field with the
// prompt.
Error context_length_error(const ValidationContext& context,
                           std::optional<int64_t> limit,
                           int64_t prompt_tokens,
                           const std::string& param);

}  // namespace sluice
