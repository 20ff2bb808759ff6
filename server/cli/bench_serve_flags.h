// SPDX-License-Identifier: Apache-2.0
// The flags of `sluice bench serve` and `sluice bench mock`, for command_line.cpp.
#pragma once

#include "engine/core/status.h"
#include "server/cli/bench_serve_options.h"

namespace CLI {
class App;
}

namespace sluice {

void add_bench_serve_flags(CLI::App& app, BenchServeOptions& options);
void add_bench_mock_flags(CLI::App& app, BenchMockOptions& options);

}  // namespace sluice
