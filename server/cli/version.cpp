// SPDX-License-Identifier: Apache-2.0
#include "engine/core/version.h"

#include <cstdio>

#include "server/cli/command.h"

namespace sluice {

void print_version(bool number_only) {
  const std::string number(version());
  if (number_only) {
    std::puts(number.c_str());
    return;
  }
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
  std::printf(
      "sluice %s (%s, %s, build %s)\n", number.c_str(), compiler, checks, build_id().c_str());
}

}  // namespace sluice
