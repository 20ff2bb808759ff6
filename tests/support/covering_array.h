// SPDX-License-Identifier: Apache-2.0
// Settings that are far fewer than all combinations, in which any two values of different axes
// meet.
#pragma once

#include <cstddef>
#include <vector>

namespace sluice::testing {

using ArrayRow = std::vector<size_t>;  // for each axis the index of a value

// num_values: of each axis, one or more. The same rows in every run.
std::vector<ArrayRow> covering_array(const std::vector<size_t>& num_values);

// How many pairs of values no row has.
size_t num_missing_pairs(const std::vector<size_t>& num_values, const std::vector<ArrayRow>& rows);

}  // namespace sluice::testing
