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

  // Replaces, from the left, the longest rule's string that begins at each place.
  void append_longest(std::string_view text, std::string& out) const;
  // Replaces a grapheme as a whole where the shortest rule that begins it exists and it is short,
  // otherwise each of its characters: what the `tokenizers` package does.
  void append_grapheme(std::string_view grapheme, std::string& out) const;

  // True: by itself this ASCII character stays what it is.
  [[nodiscard]] bool keeps(char c) const { return !changes_[static_cast<uint8_t>(c)]; }

 private:
  struct Rule {
    size_t length = 0;  // bytes it replaces; 0: none
    std::string_view replacement;
  };

  [[nodiscard]] Rule find(std::string_view text, bool longest) const;

  std::vector<uint32_t> units_;
  std::bitset<256> changes_;  // bytes that are a rule's string
  std::string pool_;
};

}  // namespace sluice
