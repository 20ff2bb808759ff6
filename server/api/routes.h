// SPDX-License-Identifier: Apache-2.0
// The route table: one line per endpoint.
#pragma once

#include <span>

#include "server/front/route.h"

namespace sluice {

std::span<const Route> routes();
// Those that ask how the process is: no model and no key is needed.
std::span<const Route> probe_routes();

}  // namespace sluice
