// SPDX-License-Identifier: Apache-2.0
// The lines by which a server says at its start what it does and where clients and routers find it.
#pragma once

#include <string>

namespace sluice {

struct Config;
class HttpServer;
struct ModelInfo;

// Returns the URL of the HTTP API, with the host that it listens at; `port`: the one bound.
std::string url_of(const Config& config, int port);

// Logs a warning where others than this machine reach the API, and no key or client certificate is
// asked for.
void warn_of_exposure(const Config& config);

// Prints what the start is going to do, or logs it as an event where lines of the log are JSON.
// `is_answer`: it was asked for, as by --dry-run, and is printed.
void print_plan(const std::string& plan, bool is_answer);

// Prints where the server listens (gRPC, routers, then HTTP) and how long the start took, or logs
// it as one event. `verb`: "serving" or "routing".
void print_ready(const char* verb,
                 const ModelInfo& model,
                 const Config& config,
                 const HttpServer& server,
                 double seconds);

}  // namespace sluice
