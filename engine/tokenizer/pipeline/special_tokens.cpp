// SPDX-License-Identifier: Apache-2.0
#include "engine/tokenizer/pipeline/special_tokens.h"

#include "engine/core/status.h"

namespace sluice {
void SpecialTokens::add(std::string_view name, TokenId token, const Flags& flags) {
  CHECK(!name.empty() && name.size() <= kMaxNameBytes);
  Node& node = names_.at(name);
  CHECK_EQ(node.token, kInvalidToken);
  node = {token, flags};
  starts_[static_cast<uint8_t>(name[0])] = true;
  empty_ = false;
}

SpecialTokens::Match SpecialTokens::match_at(std::string_view text,
                                             size_t position,
                                             size_t control_end) const {
  Match best;
  uint64_t node = names_.kRoot;
  for (size_t i = position; i < text.size(); ++i) {
    node = names_.child(node, text[i]);
    if (node == names_.kAbsent) break;
    const Node& here = names_.value(node);
    if (here.token == kInvalidToken || (here.flags.is_control && i + 1 > control_end)) continue;
    best = {here.token, position, i + 1, here.flags};
  }
  return best;
}

size_t SpecialTokens::next_candidate(std::string_view text, size_t position) const {
  if (empty_) return text.size();
  while (position < text.size() && !starts_[static_cast<uint8_t>(text[position])]) ++position;
  return position;
}

}  // namespace sluice
