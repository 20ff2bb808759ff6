// SPDX-License-Identifier: Apache-2.0
#include "engine/tokenizer/models/bpe_tables.h"

#include <algorithm>
#include <set>

#include "engine/tokenizer/models/byte_bpe.h"
#include "engine/tokenizer/text/byte_level.h"
#include "engine/tokenizer/text/utf8.h"

namespace sluice {
namespace {

tl::unexpected<Error> bad_merge(size_t rank, std::string_view left, std::string_view right) {
  return make_error(ErrorCode::kDataLoss,
                    "tokenizer vocabulary: merge " + std::to_string(rank) + " \"" +
                        std::string(left) + " " + std::string(right) +
                        "\" names a token that the vocabulary lacks");
}

// Returns characters that occur in tokens but are not tokens, in order of code points.
std::vector<std::string_view> find_extra_characters(std::span<const std::string> names,
                                                    const std::function<bool(TokenId)>& can_form,
                                                    const TokenTable& tokens) {
  std::set<std::string_view> extras;
  for (size_t id = 0; id < names.size(); ++id) {
    if (!can_form(static_cast<TokenId>(id))) continue;
    const std::string_view name = names[id];
    for (size_t position = 0; position < name.size();) {
      const size_t length = next_utf8_part(name, position).length;
      const std::string_view character = name.substr(position, length);
      position += length;
      if (length < name.size() && tokens.find(character) == kInvalidToken) {
        extras.insert(character);
      }
    }
  }
  return {extras.begin(), extras.end()};
}

}  // namespace

TokenTable index_names(std::span<const std::string> names,
                       const std::function<bool(TokenId)>& takes_part) {
  TokenTable table(names);
  for (size_t id = 0; id < names.size(); ++id) {
    const auto token = static_cast<TokenId>(id);
    if (!names[id].empty() && takes_part(token)) table.insert(token);
  }
  return table;
}

Expected<MergeTable> read_merges(const MergeList& merges,
                                 const TokenTable& tokens,
                                 RepeatedMerge repeated,
                                 UnknownMerge unknown,
                                 std::string_view prefix) {
  MergeTable table{.merges = BpeMerges(merges.size())};
  std::string joined;
  for (size_t i = 0; i < merges.size(); ++i) {
    const size_t rank = repeated == RepeatedMerge::kFirst ? i : merges.size() - 1 - i;
    const auto& [left_name, right_name] = merges[rank];
    const TokenId left = tokens.find(left_name);
    const TokenId right = tokens.find(right_name);
    const bool is_prefixed = std::string_view(right_name).starts_with(prefix);
    joined.assign(left_name).append(right_name.substr(is_prefixed ? prefix.size() : 0));
    const TokenId merged = tokens.find(joined);
    if (left == kInvalidToken || right == kInvalidToken || merged == kInvalidToken) {
      if (unknown == UnknownMerge::kRefused) return bad_merge(rank, left_name, right_name);
      ++table.num_unknown;
      continue;
    }
    const bool is_new = table.merges.add(left, right, static_cast<uint32_t>(rank), merged);
    table.num_repeated += is_new ? 0 : 1;
  }
  return table;
}

std::optional<std::pair<std::string_view, std::string_view>> split_merge(std::string_view text) {
  const size_t space = text.find(' ', 1);
  if (space == std::string_view::npos || space + 1 == text.size()) return std::nullopt;
  return std::pair(text.substr(0, space), text.substr(space + 1));
}

BpeMerges ranked_merges(std::span<const std::string> names, const TokenTable& tokens) {
  BpeMerges merges(2 * names.size());
  for (const std::string_view name : names) {
    const TokenId merged = tokens.find(name);
    if (name.empty() || merged == kInvalidToken) continue;
    for (size_t cut = next_utf8_part(name, 0).length; cut < name.size();
         cut += next_utf8_part(name, cut).length) {
      const TokenId left = tokens.find(name.substr(0, cut));
      if (left == kInvalidToken) continue;
      const TokenId right = tokens.find(name.substr(cut));
      if (right == kInvalidToken) continue;
      merges.add(left, right, static_cast<uint32_t>(merged), merged);
    }
  }
  return merges;
}

std::unique_ptr<TokenModel> make_byte_bpe(BpeMerges merges,
                                          const TokenTable& tokens,
                                          std::span<const std::string> bytes,
                                          const std::function<bool(TokenId)>& takes_part,
                                          bool whole_words_first,
                                          TokenId unknown,
                                          bool fuse_unknown) {
  auto model = std::make_unique<ByteBpe>(std::move(merges));
  model->set_unknown(unknown, fuse_unknown);
  for (int byte = 0; byte < 256; ++byte) {
    const TokenId token = tokens.find(spell_byte(static_cast<uint8_t>(byte)));
    if (token != kInvalidToken && takes_part(token)) {
      model->set_byte_token(static_cast<uint8_t>(byte), token);
    }
  }
  if (whole_words_first) model->set_whole_words(index_names(bytes, takes_part));
  return model;
}

std::unique_ptr<TokenModel> make_scored_bpe(std::span<const std::string> names,
                                            std::span<const float> scores,
                                            const std::function<bool(TokenId)>& can_form,
                                            std::span<const TokenId> byte_tokens,
                                            TokenId unknown) {
  TokenTable tokens = index_names(names, can_form);
  const auto extras = find_extra_characters(names, can_form, tokens);
  const auto first_extra = static_cast<TokenId>(names.size());
  std::vector<TokenId> order;  // by falling score; equal scores share a rank
  for (size_t id = 0; id < names.size(); ++id) {
    const auto token = static_cast<TokenId>(id);
    if (can_form(token) && tokens.find(names[id]) == token) order.push_back(token);
  }
  std::stable_sort(
      order.begin(), order.end(), [&](TokenId a, TokenId b) { return scores[a] > scores[b]; });
  const auto find_symbol = [&](std::string_view part) {
    const TokenId token = tokens.find(part);
    if (token != kInvalidToken) return token;
    const auto at = std::lower_bound(extras.begin(), extras.end(), part);
    if (at == extras.end() || *at != part) return kInvalidToken;
    return first_extra + static_cast<TokenId>(at - extras.begin());
  };
  BpeMerges merges(2 * order.size());
  uint32_t rank = 0;
  for (size_t i = 0; i < order.size(); ++i) {
    if (i > 0 && scores[order[i]] != scores[order[i - 1]]) ++rank;
    const std::string_view name = names[order[i]];
    for (size_t cut = next_utf8_part(name, 0).length; cut < name.size();
         cut += next_utf8_part(name, cut).length) {
      const TokenId left = find_symbol(name.substr(0, cut));
      if (left == kInvalidToken) continue;
      const TokenId right = find_symbol(name.substr(cut));
      if (right != kInvalidToken) merges.add(left, right, rank, order[i]);
    }
  }
  auto model = std::make_unique<CharBpe>(
      std::move(merges), CharBpe::Options{unknown, /*fuse_unknown=*/false, false, first_extra});
  for (const TokenId token : order) model->add_token(names[token], token);
  for (const std::string_view character : extras) model->add_extra(character);
  for (size_t byte = 0; byte < byte_tokens.size(); ++byte) {
    model->set_byte_token(static_cast<uint8_t>(byte), byte_tokens[byte]);
  }
  return model;
}

}  // namespace sluice
