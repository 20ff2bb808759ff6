// SPDX-License-Identifier: Apache-2.0
#include "engine/core/version.h"

#include <cstdio>

#include "server/cli/command.h"

namespace sluice {

void print_version() {
#ifdef __clang__
  const char* compiler = "clang " __clang_version__;
#else
  const char* compiler = "g++ " __VERSION__;
#endif
#ifdef NDEBUG
  const char* checks = "release";
#else
  const char* checks = "with debug checks";
#endif
  const std::string number(version());
  std::printf(
      "sluice %s (%s, %s, build %s)\n", number.c_str(), compiler, checks, build_id().c_str());
}

}  // namespace sluice
