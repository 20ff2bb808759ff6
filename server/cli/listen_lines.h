// SPDX-License-Identifier: Apache-2.0
// The lines by which a server says at its start where clients and routers find it.
#pragma once

#include <string>

namespace sluice {

struct Config;
class HttpServer;

// Returns the URL of the HTTP API; `port`: the one bound.
std::string url_of(const Config& config, int port);

// Prints a line for gRPC and one for routers, if there are such listeners.
void print_listeners(const Config& config, const HttpServer& server);

}  // namespace sluice
