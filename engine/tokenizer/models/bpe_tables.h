// SPDX-License-Identifier: Apache-2.0
// Builds BPE models from the tables of files.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/core/status.h"
#include "engine/tokenizer/models/char_bpe.h"
#include "engine/tokenizer/models/token_model.h"
#include "engine/tokenizer/tables/token_table.h"

namespace sluice {

// Returns ids by name for the tokens with `takes_part`; keys are views of `names`. Among equal
// names the first counts.
TokenTable index_names(std::span<const std::string> names,
                       const std::function<bool(TokenId)>& takes_part);

using MergeList = std::vector<std::pair<std::string_view, std::string_view>>;  // by rank

// Selects among several merges of one pair: llama.cpp takes the first, `tokenizers` the last.
enum class RepeatedMerge : uint8_t { kFirst, kLast };

// The treatment of a merge that can never apply because `tokens` lacks a part of it or its result.
enum class UnknownMerge : uint8_t { kRefused, kSkipped };

struct MergeTable {
  BpeMerges merges;
  size_t num_repeated = 0;  // left out: another merge of the pair counts
  size_t num_unknown = 0;   // left out by UnknownMerge::kSkipped
};

// kDataLoss: with UnknownMerge::kRefused, a merge names a token that `tokens` lacks. `prefix`
// starts right parts and is removed from the merged name.
Expected<MergeTable> read_merges(const MergeList& merges,
                                 const TokenTable& tokens,
                                 RepeatedMerge repeated,
                                 UnknownMerge unknown,
                                 std::string_view prefix = {});

// Splits "left right" into its parts; none: the text has another form.
std::optional<std::pair<std::string_view, std::string_view>> split_merge(std::string_view text);

// Returns the merges of a vocabulary that says none (tiktoken): any two tokens that are a third
// together, ranked by its id. Names are spelled by byte_level.h or characters.
BpeMerges ranked_merges(std::span<const std::string> names, const TokenTable& tokens);

// Sets the byte tokens of a byte-level vocabulary and, for `whole_words_first`, the words, which
// are views of `bytes`.
std::unique_ptr<TokenModel> make_byte_bpe(BpeMerges merges,
                                          const TokenTable& tokens,
                                          std::span<const std::string> bytes,
                                          const std::function<bool(TokenId)>& takes_part,
                                          bool whole_words_first,
                                          TokenId unknown = kInvalidToken,
                                          bool fuse_unknown = false);

// Makes SentencePiece's BPE: every way to make a token of two is a merge, ranked by the token's
// score. `can_form` selects the tokens that merging makes. byte_tokens: 256 ids.
std::unique_ptr<TokenModel> make_scored_bpe(std::span<const std::string> names,
                                            std::span<const float> scores,
                                            const std::function<bool(TokenId)>& can_form,
                                            std::span<const TokenId> byte_tokens,
                                            TokenId unknown);

}  // namespace sluice
