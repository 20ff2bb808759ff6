// SPDX-License-Identifier: Apache-2.0
#include "engine/inspect.h"

#include <cstdio>

#include "server/cli/command.h"

namespace sluice {

Expected<void> run_inspect(const Invocation& invocation) {
  SLUICE_TRY(const std::string text, inspect_model(invocation.config, invocation.all));
  std::fputs(text.c_str(), stdout);
  return {};
}

}  // namespace sluice
