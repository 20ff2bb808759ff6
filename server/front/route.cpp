// SPDX-License-Identifier: Apache-2.0
#include "server/front/route.h"

namespace sluice {

bool route_matches(const Route& route, std::string_view path) {
  if (!route.path.ends_with('*')) return path == route.path;
  const std::string_view prefix = route.path.substr(0, route.path.size() - 1);
  return path.size() > prefix.size() && path.starts_with(prefix);
}

std::string_view route_name(std::span<const Route> routes, size_t handler) {
  return handler < routes.size() ? routes[handler].path : "none";
}

std::string_view route_method(std::span<const Route> routes, size_t handler) {
  return handler < routes.size() ? routes[handler].method : "";
}

}  // namespace sluice
