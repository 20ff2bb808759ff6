// SPDX-License-Identifier: Apache-2.0
#include "server/http/query.h"

#include <algorithm>
#include <charconv>

#include "engine/core/hex.h"
#include "server/json/json_fields.h"

namespace sluice {

std::string query_value(std::string_view query, std::string_view name) {
  while (!query.empty()) {
    const std::string_view item = query.substr(0, query.find('&'));
    if (item.starts_with(name) && item.substr(name.size()).starts_with('=')) {
      return percent_decoded(item.substr(name.size() + 1));
    }
    query.remove_prefix(std::min(item.size() + 1, query.size()));
  }
  return {};
}

Expected<int> page_limit(std::string_view query, int usual, int most) {
  const std::string given = query_value(query, "limit");
  if (given.empty()) return usual;
  int limit = 0;
  const auto read = std::from_chars(given.data(), given.data() + given.size(), limit);
  if (read.ptr != given.data() + given.size() || limit < 1 || limit > most) {
    return invalid("limit must be 1 to " + std::to_string(most) + ".", "limit");
  }
  return limit;
}

}  // namespace sluice
