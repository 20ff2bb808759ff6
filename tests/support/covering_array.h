// SPDX-License-Identifier: Apache-2.0
// Settings that are far fewer than all combinations, but contain each pair of values of two axes.
#pragma once

#include <cstddef>
#include <vector>

namespace sluice::testing {

using ArrayRow = std::vector<size_t>;  // the index of a value, for each axis

// num_values: at least one, for each axis. The rows are the same in every run.
std::vector<ArrayRow> covering_array(const std::vector<size_t>& num_values);

// Returns how many pairs of values no row has.
size_t num_missing_pairs(const std::vector<size_t>& num_values, const std::vector<ArrayRow>& rows);

}  // namespace sluice::testing
