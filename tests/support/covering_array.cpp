// SPDX-License-Identifier: Apache-2.0
#include "tests/support/covering_array.h"

#include <algorithm>
#include <cstdint>
#include <random>
#include <set>
#include <tuple>

namespace sluice::testing {
namespace {

using Pair = std::tuple<size_t, size_t, size_t, size_t>;  // axis, value, later axis, value

std::set<Pair> all_pairs(const std::vector<size_t>& num_values) {
  std::set<Pair> pairs;
  for (size_t a = 0; a < num_values.size(); ++a) {
    for (size_t b = a + 1; b < num_values.size(); ++b) {
      for (size_t i = 0; i < num_values[a]; ++i) {
        for (size_t j = 0; j < num_values[b]; ++j) pairs.insert({a, i, b, j});
      }
    }
  }
  return pairs;
}

std::vector<Pair> pairs_of(const ArrayRow& row) {
  std::vector<Pair> pairs;
  for (size_t a = 0; a < row.size(); ++a) {
    for (size_t b = a + 1; b < row.size(); ++b) pairs.emplace_back(a, row[a], b, row[b]);
  }
  return pairs;
}

}  // namespace

// Makes row after row: of some random rows the one that covers the most pairs not covered yet.
std::vector<ArrayRow> covering_array(const std::vector<size_t>& num_values) {
  std::mt19937_64 random(8);
  std::set<Pair> missing = all_pairs(num_values);
  std::vector<ArrayRow> rows;
  while (!missing.empty()) {
    ArrayRow best;
    int64_t most = -1;
    for (int attempt = 0; attempt < 300; ++attempt) {
      ArrayRow row(num_values.size());
      for (size_t a = 0; a < row.size(); ++a) row[a] = random() % num_values[a];
      const auto& [a, i, b, j] = *missing.begin();
      row[a] = i;
      row[b] = j;
      const auto pairs = pairs_of(row);
      const int64_t count =
          std::ranges::count_if(pairs, [&](const Pair& pair) { return missing.contains(pair); });
      if (count <= most) continue;
      most = count;
      best = row;
    }
    for (const Pair& pair : pairs_of(best)) missing.erase(pair);
    rows.push_back(best);
  }
  return rows;
}

size_t num_missing_pairs(const std::vector<size_t>& num_values, const std::vector<ArrayRow>& rows) {
  std::set<Pair> missing = all_pairs(num_values);
  for (const ArrayRow& row : rows) {
    for (const Pair& pair : pairs_of(row)) missing.erase(pair);
  }
  return missing.size();
}

}  // namespace sluice::testing
