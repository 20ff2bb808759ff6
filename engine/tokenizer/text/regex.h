// SPDX-License-Identifier: Apache-2.0
// Regular expressions in the syntax of tokenizer.json (Oniguruma, UTF-8), run by PCRE2.
#pragma once

#include <cstdint>
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
    // Bounds the time of the searches that follow, those of one text of `bytes`: together they may
    // take 0.1 s and 2 us for each byte of the thread's time, far more than expressions of linear
    // time do. A clock decides, as PCRE2 does not tell how much it has done; a text is refused or
    // all its matches are found. Without a call, time has no bound.
    void limit_time(size_t bytes);
    // Returns the expression (its beginning) with which the text outgrew its time or a limit of
    // PCRE2; nothing is found from then on. Empty: none.
    [[nodiscard]] std::string_view ended_by() const;
    ~Scanner();
    Scanner(Scanner&&) noexcept;
    Scanner& operator=(Scanner&&) noexcept;

   private:
    friend class Regex;
    struct Impl;
    std::unique_ptr<Impl> impl_;
  };

  // Finds the first non-empty match in `text` (valid UTF-8) that begins at or after `from`. A
  // search that outgrows a limit of PCRE2 finds none.
  bool find(std::string_view text, size_t from, Scanner& scanner, Range& found) const;

  // Returns `text` with each match replaced by `content`, or surrounded by it. Invalid UTF-8 stays.
  [[nodiscard]] std::string replaced(std::string_view text,
                                     std::string_view content,
                                     bool keeps_match,
                                     Scanner& scanner) const;

 private:
  struct Impl;
  enum class Search : uint8_t { kFound, kNone, kOutgrown };

  // Like find() for matches that begin at `last` or before.
  Search find_until(
      std::string_view text, size_t from, size_t last, Scanner& scanner, Range& found) const;

  explicit Regex(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace sluice
