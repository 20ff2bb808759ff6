// SPDX-License-Identifier: Apache-2.0
// The flags of the commands `sluice bench ...`, for command_line.cpp.
#pragma once

#include "engine/core/status.h"
#include "server/cli/bench_options.h"

namespace CLI {
class App;
}

namespace sluice {

void add_bench_flags(CLI::App& app, BenchOptions& options);
void add_bench_serve_flags(CLI::App& app, BenchServeOptions& options);
void add_bench_throughput_flags(CLI::App& app, BenchOfflineOptions& options);
void add_bench_latency_flags(CLI::App& app, BenchOfflineOptions& options);
void add_bench_mock_flags(CLI::App& app, BenchMockOptions& options);
void add_bench_compare_flags(CLI::App& app, BenchCompareOptions& options);
void add_bench_kv_transfer_flags(CLI::App& app, BenchKvTransferOptions& options);

}  // namespace sluice
