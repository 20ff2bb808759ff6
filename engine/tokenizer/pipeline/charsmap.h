// SPDX-License-Identifier: Apache-2.0
// SentencePiece's compiled normalization rules: a double-array trie (darts-clone's layout) from a
// string to an offset into a pool of NUL-terminated replacements.
#pragma once

#include <bitset>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engine/core/status.h"

namespace sluice {

class Charsmap {
 public:
  // kDataLoss: `blob` is cut off. An empty blob changes nothing.
  static Expected<Charsmap> parse(std::string_view blob);

  // At each place from the left, replaces the string of the longest rule that begins there.
  void append_longest(std::string_view text, std::string& out) const;
  // Works like the `tokenizers` package: replaces a short grapheme as a whole if a rule begins it
  // (the shortest one applies), otherwise each of its characters.
  void append_grapheme(std::string_view grapheme, std::string& out) const;

  // True: this ASCII character by itself is unchanged.
  [[nodiscard]] bool keeps(char c) const { return !changes_[static_cast<uint8_t>(c)]; }

 private:
  struct Rule {
    size_t length = 0;  // bytes it replaces; 0: none
    std::string_view replacement;
  };

  [[nodiscard]] Rule find(std::string_view text, bool longest) const;

  std::vector<uint32_t> units_;
  std::bitset<256> changes_;  // bytes that are a rule's whole string
  std::string pool_;
};

}  // namespace sluice
