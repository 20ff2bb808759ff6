// SPDX-License-Identifier: Apache-2.0
// Erasure from a table of open addressing with linear probing.
#pragma once

#include <cstddef>
#include <vector>

namespace sluice {

// Empties a cell of a table whose size is a power of two and that has another empty cell. Later
// members of the probe run move up, so no tombstones collect. home(cell) is the index at which a
// search for the cell begins.
template <typename Cell, typename Home>
void close_hole(std::vector<Cell>& cells, size_t hole, const Cell& empty, Home home) {
  const size_t mask = cells.size() - 1;
  for (size_t i = (hole + 1) & mask; cells[i] != empty; i = (i + 1) & mask) {
    if (((i - home(cells[i])) & mask) < ((i - hole) & mask)) continue;
    cells[hole] = cells[i];
    hole = i;
  }
  cells[hole] = empty;
}

}  // namespace sluice
