// SPDX-License-Identifier: Apache-2.0
// Running the same requests in several ways, and asking whether each got the same bits.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "engine/core/config.h"
#include "engine/engine.h"
#include "tests/support/collecting_sink.h"

namespace sluice::testing {

// Null, with a failure of the test, where the engine does not start.
std::unique_ptr<Engine> start_engine(const Config& config);

// "scalar", "avx2", "avx512" and "amx", as far as this machine has them.
std::vector<std::string> usable_isas();

// So many requests for a model of at least 250 tokens, their prompts of several lengths; seeded,
// each by its number, with log-probabilities.
std::vector<ValidRequest> seeded_requests(int32_t count);

// All at once, and one after the other; results in the order of the requests.
std::vector<Collected> run_together(Engine& engine, const std::vector<ValidRequest>& requests);
std::vector<Collected> run_alone(Engine& engine, const std::vector<ValidRequest>& requests);

// Tokens, reasons and the bits of all log-probabilities, prompts' included. A difference is a fatal
// failure of the test.
void expect_same(const std::vector<Collected>& expected,
                 const std::vector<Collected>& actual,
                 const std::string& what);

}  // namespace sluice::testing
