// SPDX-License-Identifier: Apache-2.0
// Sets of Unicode characters, and how expressions write them as classes.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace sluice {

// Halves of surrogate pairs are no characters and in no set.
class CharacterSet {
 public:
  static constexpr int32_t kLast = 0x10FFFF;

  CharacterSet() = default;
  // The characters of both ends and between; `from` is at most `to`.
  CharacterSet(int32_t from, int32_t to) { add(from, to); }
  // All characters of ASCII text.
  explicit CharacterSet(std::string_view text);

  void add(int32_t from, int32_t to);
  void add(const CharacterSet& other);

  [[nodiscard]] CharacterSet complement() const;
  [[nodiscard]] CharacterSet without(const CharacterSet& other) const;
  [[nodiscard]] bool contains(int32_t character) const;
  [[nodiscard]] bool is_empty() const { return ranges_.empty(); }
  [[nodiscard]] bool is_single() const {
    return ranges_.size() == 1 && ranges_[0].first == ranges_[0].second;
  }
  // The least; there is one.
  [[nodiscard]] int32_t first() const { return ranges_.front().first; }

  // An expression for one of the characters, of which there is one: "[a-z\]]", or "\^". XGrammar's
  // readers of expressions all take it for this set: none of its escapes reads on into the next
  // character, and no class begins with a caret, escaped or not, which they take for a negation.
  [[nodiscard]] std::string expression() const;

 private:
  std::vector<std::pair<int32_t, int32_t>> ranges_;  // ascending, apart from each other
};

// \d and \w of ASCII.
[[nodiscard]] const CharacterSet& decimal_digits();
[[nodiscard]] const CharacterSet& word_characters();

}  // namespace sluice
