// SPDX-License-Identifier: Apache-2.0
// Flags of `sluice quantize`.
#pragma once

#include "server/cli/command.h"

namespace CLI {
class App;
}

namespace sluice {

void add_quantize_flags(CLI::App& app, QuantizeCommandOptions& options);

}  // namespace sluice
