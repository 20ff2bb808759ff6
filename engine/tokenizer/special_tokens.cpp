// SPDX-License-Identifier: Apache-2.0
#include "engine/tokenizer/special_tokens.h"

#include "engine/core/status.h"

namespace sluice {
namespace {

uint64_t edge_key(uint64_t node, char byte) { return (node << 8) | static_cast<uint8_t>(byte); }

}  // namespace

void SpecialTokens::add(std::string_view name, TokenId token, const Flags& flags) {
  CHECK(!name.empty() && name.size() <= kMaxNameBytes);
  uint64_t node = 0;
  for (const char c : name) {
    const uint64_t next = edges_.find(edge_key(node, c));
    if (next != PairMap::kAbsent) {
      node = next;
      continue;
    }
    edges_.insert(edge_key(node, c), nodes_.size());
    node = nodes_.size();
    nodes_.emplace_back();
  }
  CHECK_EQ(nodes_[node].token, kInvalidToken);
  nodes_[node] = {token, flags};
  starts_[static_cast<uint8_t>(name[0])] = true;
  empty_ = false;
}

SpecialTokens::Match SpecialTokens::match_at(std::string_view text,
                                             size_t position,
                                             size_t control_end) const {
  Match best;
  uint64_t node = 0;
  for (size_t i = position; i < text.size(); ++i) {
    node = edges_.find(edge_key(node, text[i]));
    if (node == PairMap::kAbsent) break;
    const Node& here = nodes_[node];
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
