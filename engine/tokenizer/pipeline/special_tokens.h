// SPDX-License-Identifier: Apache-2.0
// Finds the names of control and user-defined tokens in text: leftmost first, then longest.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "engine/core/types.h"
#include "engine/tokenizer/tables/byte_trie.h"

namespace sluice {

class SpecialTokens {
 public:
  // The longest allowed name: it bounds the work per byte of text.
  static constexpr size_t kMaxNameBytes = 256;

  struct Flags {
    bool is_control = false;   // found only where the caller allows it
    bool single_word = false;  // found only if no word character touches it
    bool strips_left = false;  // takes the white space before it
    bool strips_right = false;
  };

  // The name must be new, not empty and at most kMaxNameBytes long.
  void add(std::string_view name, TokenId token, const Flags& flags);

  struct Match {
    TokenId token = kInvalidToken;  // kInvalidToken: nothing found
    size_t begin = 0;
    size_t end = 0;
    Flags flags;
  };

  [[nodiscard]] bool empty() const { return empty_; }

  // Returns the longest name at `position`; a control token must end at or before `control_end`.
  [[nodiscard]] Match match_at(std::string_view text, size_t position, size_t control_end) const;

  // Returns the first position from `position` on where a name may start; text.size(): none.
  [[nodiscard]] size_t next_candidate(std::string_view text, size_t position) const;

 private:
  struct Node {
    TokenId token = kInvalidToken;
    Flags flags;
  };

  ByteTrie<Node> names_{64};
  std::array<bool, 256> starts_{};  // bytes with which a name starts
  bool empty_ = true;
};

}  // namespace sluice
