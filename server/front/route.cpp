// SPDX-License-Identifier: Apache-2.0
#include "server/front/route.h"

#include <algorithm>

namespace sluice {

bool route_matches(const Route& route, std::string_view path) {
  std::string_view pattern = route.path;
  while (true) {
    const size_t star = pattern.find('*');
    if (path.substr(0, star) != pattern.substr(0, star)) return false;
    if (star == std::string_view::npos) return true;
    path.remove_prefix(star);
    pattern.remove_prefix(star + 1);
    if (pattern == "*") return !path.empty();
    const size_t length = std::min(path.find('/'), path.size());
    if (length == 0) return false;
    path.remove_prefix(length);
  }
}

std::string route_template(const Route& route) {
  const size_t star = route.path.find('*');
  if (star == std::string_view::npos) return std::string(route.path);
  const size_t rest = route.path.ends_with("**") ? route.path.size() : star + 1;
  return std::string(route.path.substr(0, star)) + "{id}" + std::string(route.path.substr(rest));
}

std::string_view route_name(std::span<const Route> routes, size_t handler) {
  return handler < routes.size() ? routes[handler].path : "none";
}

std::string_view route_method(std::span<const Route> routes, size_t handler) {
  return handler < routes.size() ? routes[handler].method : "";
}

}  // namespace sluice
