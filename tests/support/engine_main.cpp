// SPDX-License-Identifier: Apache-2.0
// Runs the tests, or, in a process that the engine has started to compile a grammar, does that.
#include <gtest/gtest.h>

#include "engine/engine.h"

int main(int argc, char** argv) {
  if (const auto exit_code = sluice::run_helper_process(argc, argv)) return *exit_code;
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
