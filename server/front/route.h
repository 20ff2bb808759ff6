// SPDX-License-Identifier: Apache-2.0
// One line of the route table (routes.h): what a request must be and which handler answers it.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

#include "server/http/api_errors.h"

namespace sluice {

class FrontEnd;
struct Exchange;

// kProbe: open, and answered even where there are no more connections than the reserved ones.
enum class RouteAuth : unsigned char { kOpen, kKey, kProbe };

struct Route {
  std::string_view method;  // a GET route answers HEAD too
  // A '*' matches one segment that is not empty, '**' at the end any rest that is not.
  std::string_view path;
  void (*handler)(FrontEnd&, Exchange);
  RouteAuth auth;
  ErrorForm errors = ErrorForm::kOpenAi;
  bool reads_kept = false;  // a request may name answers that are kept, which are parsed then
};

bool route_matches(const Route& route, std::string_view path);

// Returns the path with "{id}" for what a star matches.
std::string route_template(const Route& route);

// Return the label values of an HTTP counter.
std::string_view route_name(std::span<const Route> routes, size_t handler);
std::string_view route_method(std::span<const Route> routes, size_t handler);

}  // namespace sluice
