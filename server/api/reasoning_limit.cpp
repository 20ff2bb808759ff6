// SPDX-License-Identifier: Apache-2.0
#include "server/api/reasoning_limit.h"

#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "server/json/json_fields.h"
#include "server/tools/output_families.h"
#include "server/tools/output_parser.h"

namespace sluice {
namespace {

constexpr const char* kName = "thinking_token_budget";

// Text of a piece as the vocabulary has it: one token, or those that spell it.
Expected<std::vector<TokenId>> tokens_of(const CallPieces& pieces, const Tokenizer& tokenizer) {
  std::vector<TokenId> tokens;
  for (const CallPiece& piece : pieces) {
    TokenId token = piece.token;
    if (token == kInvalidToken) token = tokenizer.find_token(piece.text);
    if (token != kInvalidToken) {
      tokens.push_back(token);
    } else {
      SLUICE_TRY_VOID(tokenizer.encode(piece.text, SpecialText::kText, tokens));
    }
  }
  return tokens;
}

// A marker that is text can be spelled by other tokens than ours, and is then not seen.
bool begins_with_token(const CallPieces& pieces, const Tokenizer& tokenizer) {
  return pieces.front().token != kInvalidToken ||
         tokenizer.find_token(pieces.front().text) != kInvalidToken;
}

tl::unexpected<Error> unsupported(const std::string& why) {
  return make_error(
      ErrorCode::kUnsupported, std::string(kName) + " is not supported " + why, kName);
}

}  // namespace

Expected<ReasoningLimit> read_reasoning_limit(const ValidationContext& context,
                                              const nlohmann::ordered_json& body,
                                              std::string_view prompt_tail) {
  SLUICE_TRY(const auto max_tokens,
             read_integer(body, kName, -1, std::numeric_limits<int32_t>::max()));
  if (!max_tokens || *max_tokens < 0) return ReasoningLimit{};  // -1: no limit
  const OutputFamilies* families = context.families;
  if (families == nullptr || families->reasoning == nullptr) {
    return unsupported("for a model whose reasoning is not known; --reasoning-parser names it.");
  }
  const std::optional<ReasoningForm> form = reasoning_form(*families->reasoning, context.tokenizer);
  if (!form || !begins_with_token(form->begin, context.tokenizer) ||
      !begins_with_token(form->end, context.tokenizer)) {
    return unsupported("for reasoning of the family '" +
                       std::string(name_of(*families->reasoning)) +
                       "', whose marks are no tokens of this vocabulary.");
  }
  const OutputParser parser(families->format, nullptr, prompt_tail, ParserOptions{});
  const bool is_inside = parser.in_reasoning();
  if (!is_inside && ends_reasoning(*families->reasoning, prompt_tail)) return ReasoningLimit{};
  ReasoningLimit limit;
  limit.max_tokens = static_cast<int32_t>(*max_tokens);
  SLUICE_TRY(limit.end, tokens_of(form->end, context.tokenizer));
  if (!is_inside) {
    SLUICE_TRY(limit.begin, tokens_of(form->begin, context.tokenizer));
  }
  return limit;
}

}  // namespace sluice
