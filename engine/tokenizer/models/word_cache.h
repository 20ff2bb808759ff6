// SPDX-License-Identifier: Apache-2.0
// Words already seen in one call of encode(), each with its tokens' place in the output.
// Direct-mapped; it lives for one call, so tokenizers stay immutable and threads share nothing.
#pragma once

#include <string_view>
#include <vector>

#include "engine/core/types.h"

namespace sluice {

class WordCache {
 public:
  // Sized for the text; short texts get no cache, because filling it would cost more than it saves.
  explicit WordCache(size_t text_bytes);

  // Appends the tokens of `word`, which points into this call's text, if they are known. Otherwise
  // returns false, and sets `slot` for remember().
  bool append_known(std::string_view word, std::vector<TokenId>& out, size_t& slot) const;

  // Remembers out[first, first + count) as the tokens of `word`.
  void remember(size_t slot, std::string_view word, size_t first, size_t count);

 private:
  struct Entry {
    std::string_view word;
    size_t first = 0;
    size_t count = 0;
  };

  std::vector<Entry> entries_;  // empty, or a power of two
};

}  // namespace sluice
