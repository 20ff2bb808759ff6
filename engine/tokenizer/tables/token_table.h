// SPDX-License-Identifier: Apache-2.0
// Maps strings to token ids: open addressing, 8 bytes a slot, over strings stored elsewhere by id.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/core/types.h"

namespace sluice {

class TokenTable {
 public:
  // `texts` is indexed by id, and must outlive the table at its address.
  explicit TokenTable(std::span<const std::string> texts);

  // Returns false, without change, where a token with the same text is present already.
  bool insert(TokenId token);
  // Returns kInvalidToken if absent.
  [[nodiscard]] TokenId find(std::string_view text) const;

 private:
  struct Entry {
    TokenId token = kInvalidToken;
    uint32_t hash = 0;  // upper half, to skip most comparisons
  };

  [[nodiscard]] size_t find_slot(std::string_view text, uint64_t hash) const;

  std::span<const std::string> texts_;
  std::vector<Entry> entries_;  // a power of two of them, at most half in use
};

}  // namespace sluice
