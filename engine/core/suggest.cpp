// SPDX-License-Identifier: Apache-2.0
#include "engine/core/suggest.h"

#include <algorithm>
#include <vector>

namespace sluice {

size_t edit_distance(std::string_view a, std::string_view b) {
  // Three rows of the table: two back, previous, current.
  std::vector<size_t> before(b.size() + 1);
  std::vector<size_t> previous(b.size() + 1);
  std::vector<size_t> current(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) previous[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    current[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t substitution = previous[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      current[j] = std::min({previous[j] + 1, current[j - 1] + 1, substitution});
      const bool swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
      if (swapped) current[j] = std::min(current[j], before[j - 2] + 1);
    }
    before.swap(previous);
    previous.swap(current);
  }
  return previous[b.size()];
}

std::string nearest_name(std::string_view name, std::span<const std::string> known) {
  const std::string* best = nullptr;
  size_t best_distance = 0;
  for (const std::string& candidate : known) {
    const size_t most = std::max<size_t>(2, candidate.size() / 3);
    if (name.size() > candidate.size() + most) continue;  // of a file, it may be of any length
    const size_t distance = edit_distance(name, candidate);
    if (distance > most) continue;
    if (distance >= candidate.size()) continue;
    if (best == nullptr || distance < best_distance) {
      best = &candidate;
      best_distance = distance;
    }
  }
  return best == nullptr ? std::string() : *best;
}

}  // namespace sluice
