// SPDX-License-Identifier: Apache-2.0
// Runs the same requests in several ways, and checks that each got the same bits.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "engine/core/config.h"
#include "engine/engine.h"
#include "tests/support/collecting_sink.h"

namespace sluice::testing {

// Returns null, with a failure of the test, if the engine does not start.
std::unique_ptr<Engine> start_engine(const Config& config);

// Returns those of "scalar", "avx2", "avx512" and "amx" that this machine has.
std::vector<std::string> usable_isas();

// Returns `count` requests for a model of at least 250 tokens, with prompts of several lengths and
// log-probabilities, each seeded by its number.
std::vector<ValidRequest> seeded_requests(int32_t count);

// Run the requests all at once, and one after the other; results are in the order of the requests.
std::vector<Collected> run_together(Engine& engine, const std::vector<ValidRequest>& requests);
std::vector<Collected> run_alone(Engine& engine, const std::vector<ValidRequest>& requests);

// Compares tokens, reasons and the bits of all log-probabilities, prompts' included. A difference
// is a fatal failure of the test.
void expect_same(const std::vector<Collected>& expected,
                 const std::vector<Collected>& actual,
                 const std::string& what);

}  // namespace sluice::testing
