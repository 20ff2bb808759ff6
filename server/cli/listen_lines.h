// SPDX-License-Identifier: Apache-2.0
// The lines by which a server says at its start where clients and routers find it.
#pragma once

#include <string>

namespace sluice {

struct Config;
class HttpServer;

// Returns the URL of the HTTP API, with the host that it listens at; `port`: the one bound.
std::string url_of(const Config& config, int port);

// Logs a warning where others than this machine reach the API, and no key or client certificate is
// asked for.
void warn_of_exposure(const Config& config);

// Prints a line for gRPC and one for routers, if there are such listeners.
void print_listeners(const Config& config, const HttpServer& server);

}  // namespace sluice
