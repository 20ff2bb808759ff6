// SPDX-License-Identifier: Apache-2.0
// Regular expressions in the syntax of tokenizer.json (Oniguruma, UTF-8), run by PCRE2.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "engine/core/status.h"

namespace sluice {

// The contents of \w in brackets (UTS #18), for the parts of `tokenizers` without Oniguruma.
inline constexpr std::string_view kRustWordClass =
    "\\p{L}\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}\\x{200c}\\x{200d}";

class Regex {
 public:
  // kUnsupported: the message has the expression and its unsupported part.
  static Expected<Regex> compile(std::string_view pattern);
  // Matches one extended grapheme cluster.
  static Regex grapheme();
  Regex(Regex&&) noexcept;
  Regex& operator=(Regex&&) noexcept;
  ~Regex();

  struct Range {
    size_t begin = 0;
    size_t end = 0;
  };

  // Working memory of searches, for one thread.
  class Scanner {
   public:
    Scanner();
    ~Scanner();
    Scanner(Scanner&&) noexcept;
    Scanner& operator=(Scanner&&) noexcept;

   private:
    friend class Regex;
    struct Impl;
    std::unique_ptr<Impl> impl_;
  };

  // Finds the first non-empty match in `text` (valid UTF-8) that begins at or after `from`.
  bool find(std::string_view text, size_t from, Scanner& scanner, Range& found) const;

  // Returns `text` with each match replaced by `content`, or surrounded by it. Invalid UTF-8 stays.
  [[nodiscard]] std::string replaced(std::string_view text,
                                     std::string_view content,
                                     bool keeps_match,
                                     Scanner& scanner) const;

 private:
  struct Impl;
  explicit Regex(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace sluice
