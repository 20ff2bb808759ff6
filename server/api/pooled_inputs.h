// SPDX-License-Identifier: Apache-2.0
// The texts of a request for vectors or scores: from its body to token ids, as the model's
// tokenizer begins, joins and ends them.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "engine/core/pooling.h"
#include "engine/core/status.h"
#include "engine/core/types.h"
#include "server/front/front_end.h"
#include "server/prompt/validation_context.h"

namespace sluice {

struct ServedModel;

// A client's request for the vectors or scores of some texts.
struct PooledRequest {
  std::string model;                     // the client's spelling
  std::vector<ValidRequest> requests;    // one a text
  std::shared_ptr<TenantLease> lease;    // set at admission
  std::shared_ptr<const ServedModel> served;
  // Rows of each text's tokens that have no vector, ascending; empty: all have one.
  std::vector<std::vector<int32_t>> left_out;

  [[nodiscard]] int64_t num_tokens() const;
};

// How texts become tokens.
struct InputRules {
  bool adds_special_tokens = true;
  int32_t most = 0;         // tokens of a text, special ones included
  bool cuts = false;        // a longer one is cut; else it is an error
  bool cuts_documents = false;  // one that is compared with a query is cut in any case
  bool keeps_end = false;   // what is cut is the beginning
  bool takes_empty = false;  // an empty text is one; else an error
  std::string param;        // the field with the texts, for errors
  std::string prompt;       // put before each text
  TokenId marker = kInvalidToken;     // after the tokens that begin a text, if any
  TokenId expansion = kInvalidToken;  // fills a text up to `expanded_tokens`, if any
  int32_t expanded_tokens = 0;
};

// Ends the error about a text that is too long.
inline constexpr std::string_view kCutAdvice =
    "Please shorten it, or have it cut: by truncate_prompt_tokens, or truncate where the path is "
    "TEI's or Cohere's.";

// kVectors: one of each text; kTokens: one of each token, which models of the former make too.
enum class PooledKind : uint8_t { kVectors, kTokens, kScores, kAny };

// Returns how the model pools; kUnsupported: it generates tokens, or makes scores where vectors are
// wanted, or the other way round.
[[nodiscard]] Expected<PoolingInfo> pooling_of(const ValidationContext& context, PooledKind wanted);

// Which of two kinds of texts one is, where a model tells them apart.
enum class TextSide : uint8_t { kAny, kQuery, kDocument };

// Returns the side that input_type names: query, document or passage, or Cohere's search_query and
// search_document; kAny where it is missing. kInvalidArgument: it names none of these.
[[nodiscard]] Expected<TextSide> read_side(const nlohmann::ordered_json& body);

// Changes the rules to those of one side of late interaction.
void apply_side(const PoolingInfo& info, TextSide side, InputRules& rules);

// Adds the rows of a text whose tokens have no vector on its side.
void leave_out(const PoolingInfo& info, TextSide side, size_t index, PooledRequest& request);

// Reads prompt_name and input_type: the text that is put before others, without either the default
// one. kInvalidArgument: the model has no prompt of that name, which an input_type of read_side()
// need not have, or, where the model marks sides instead, prompt_name is there. Where it need not
// exist, as in Cohere's API, an input_type that is missing or names none means no prompt.
[[nodiscard]] Expected<std::string> read_prompt(const PoolingInfo& info,
                                                const nlohmann::ordered_json& body,
                                                bool must_exist = true);

// Cuts ids to `most`, at the end that the rules say.
void cut_ids(const InputRules& rules, size_t most, std::vector<TokenId>& ids);

// kInvalidArgument: `count` texts, or pairs of them, are none or more than one request may have.
[[nodiscard]] Expected<void> check_num_texts(const ValidationContext& context,
                                             const std::string& param,
                                             size_t count);

// Reads `truncate`: whether texts are cut, and in Cohere's values at which end.
[[nodiscard]] Expected<void> read_cut_side(const nlohmann::ordered_json& body, InputRules& rules);

// Reads add_special_tokens, truncate_prompt_tokens, truncation_side and, in TEI's spelling,
// truncate and truncation_direction. Texts get the default prompt.
[[nodiscard]] Expected<InputRules> read_input_rules(const ValidationContext& context,
                                                    const PoolingInfo& info,
                                                    const nlohmann::ordered_json& body,
                                                    std::string param);

// Returns the token ids of a string, a list of strings, a list of ids or a list of lists of ids.
[[nodiscard]] Expected<std::vector<std::vector<TokenId>>> read_inputs(
    const ValidationContext& context,
    const InputRules& rules,
    const nlohmann::ordered_json& value);

// Returns the ids of `input`, or of the chat in `messages`, whose turn is not continued, with the
// prompt or as the side that the request names.
[[nodiscard]] Expected<std::vector<std::vector<TokenId>>> read_texts(
    const ValidationContext& context,
    const PoolingInfo& info,
    nlohmann::ordered_json& body);

// Makes an engine's request of each prompt.
[[nodiscard]] Expected<PooledRequest> make_pooled_request(
    const ValidationContext& context,
    const nlohmann::ordered_json& body,
    const PoolingParams& params,
    std::vector<std::vector<TokenId>> prompts);

// Returns the ids of one text, or the error that it is empty or too long. `index`: its place, for
// the error; below 0: it is the only one.
[[nodiscard]] Expected<std::vector<TokenId>> encode_input(const ValidationContext& context,
                                                          const InputRules& rules,
                                                          std::string_view text,
                                                          int64_t index);

}  // namespace sluice
