// SPDX-License-Identifier: Apache-2.0
#include "server/http/request_id.h"

#include <algorithm>

namespace sluice {

std::string safe_request_id(std::string given) {
  constexpr size_t kMaxLength = 512;
  // Routers append a name of their own to the client's.
  given.resize(std::min(given.size(), given.find(',')));
  const bool is_safe = given.size() <= kMaxLength && std::ranges::all_of(given, [](char c) {
                         return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') ||
                                (c >= 'A' && c <= 'Z') || c == '-' || c == '_' || c == '.' ||
                                c == ':';
                       });
  return is_safe ? given : std::string();
}

}  // namespace sluice
