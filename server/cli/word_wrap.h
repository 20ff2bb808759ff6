// SPDX-License-Identifier: Apache-2.0
// Breaks lines of text that arrives in pieces at spaces, so that a terminal does not break words.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>

namespace sluice {

// One answer's lines. A word is held back until what follows it has arrived; one that is longer
// than a line is broken at its end. Lines of code, between fences of ```, are left as they are.
// Widths are those of the process's locale (wcwidth).
class WordWrap {
 public:
  // `width`: columns of the terminal; 0: nothing is broken or held back.
  WordWrap(size_t width, std::function<void(std::string_view)> show);

  // Takes the next piece; characters may be split between two.
  void add(std::string_view piece);
  // Shows what is held back.
  void finish();

 private:
  void take(std::string_view character);
  void end_word();
  void end_line();

  const size_t width_;
  const std::function<void(std::string_view)> show_;
  std::string part_;          // of a character
  std::string word_;          // held back
  std::string spaces_;        // before the word, not yet shown
  std::string line_start_;    // the first characters of the line, to tell a fence
  size_t word_columns_ = 0;
  size_t column_ = 0;         // of what is shown, without spaces_
  bool is_code_ = false;
};

}  // namespace sluice
