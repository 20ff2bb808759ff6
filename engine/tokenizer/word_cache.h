// SPDX-License-Identifier: Apache-2.0
// Words met before in one call of encode, each with the place in the output where its tokens are.
// Direct-mapped; it lives for one call, so tokenizers stay immutable and threads share nothing.
#pragma once

#include <string_view>
#include <vector>

#include "engine/core/types.h"

namespace sluice {

class WordCache {
 public:
  // Sized for the text; short texts get no cache, as filling it would cost more than it saves.
  explicit WordCache(size_t text_bytes);

  // Appends the tokens of `word`, which points into the text of this call, if they are known.
  // Otherwise false, and `slot` says where to `remember` them.
  bool append_known(std::string_view word, std::vector<TokenId>& out, size_t& slot) const;

  // The tokens of `word` are out[first, out.size()).
  void remember(size_t slot, std::string_view word, size_t first, size_t count);

 private:
  struct Entry {
    std::string_view word;
    size_t first = 0;
    size_t count = 0;
  };

  std::vector<Entry> entries_;  // none, or a power of two
};

}  // namespace sluice
