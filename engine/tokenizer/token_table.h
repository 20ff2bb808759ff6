// SPDX-License-Identifier: Apache-2.0
// Token ids by string: open addressing over views that outlive the table.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "engine/core/types.h"

namespace sluice {

class TokenTable {
 public:
  explicit TokenTable(size_t num_tokens);

  // False, and no change, where the string is there already.
  bool insert(std::string_view text, TokenId token);
  // kInvalidToken: not there.
  [[nodiscard]] TokenId find(std::string_view text) const;

 private:
  struct Entry {
    std::string_view text;
    TokenId token = kInvalidToken;
    uint32_t hash = 0;  // upper half, to skip most comparisons
  };

  [[nodiscard]] size_t find_slot(std::string_view text, uint64_t hash) const;

  std::vector<Entry> entries_;  // a power of two of them, at most half in use
};

}  // namespace sluice
