// SPDX-License-Identifier: Apache-2.0
// Makes a family's table of defaults from another family's, as a constant.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <initializer_list>
#include <span>

#include "engine/weights/file_spec.h"

namespace sluice {

// Returns the table with other values in rows that it has.
template <size_t kCount>
constexpr std::array<KeyDefault, kCount> derived_from(std::span<const KeyDefault, kCount> table,
                                                      std::initializer_list<KeyDefault> changed) {
  std::array<KeyDefault, kCount> rows{};
  std::ranges::copy(table, rows.begin());
  for (const KeyDefault& row : changed) {
    *std::ranges::find(rows, row.spelling, &KeyDefault::spelling) = row;
  }
  return rows;
}

// Returns the table with other values in rows that it has, and with further rows.
template <size_t kCount, size_t kAdded>
constexpr std::array<KeyDefault, kCount + kAdded> derived_from(
    std::span<const KeyDefault, kCount> table,
    std::initializer_list<KeyDefault> changed,
    const KeyDefault (&added)[kAdded]) {
  std::array<KeyDefault, kCount + kAdded> rows{};
  std::ranges::copy(derived_from(table, changed), rows.begin());
  std::ranges::copy(added, rows.begin() + kCount);
  return rows;
}

}  // namespace sluice
