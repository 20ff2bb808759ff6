// SPDX-License-Identifier: Apache-2.0
// Which proxy a request goes through, by the variables that other programs read.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "engine/core/status.h"
#include "server/http/client/stream.h"

namespace sluice::client {

// A variable's value; empty: not set.
using Environment = std::function<std::string(const char* name)>;

// By https_proxy or http_proxy (the request's scheme), else all_proxy, each in lower case first,
// except for hosts that no_proxy names: "*", a name and what is below it, an address, a network as
// 10.0.0.0/8, each perhaps with a port. nullopt: none. kInvalidArgument: a proxy of a kind that is
// not spoken; the message names the variable, and never a password.
Expected<std::optional<Proxy>> proxy_for(const ServerAddress& server,
                                         const Environment& environment);

}  // namespace sluice::client
