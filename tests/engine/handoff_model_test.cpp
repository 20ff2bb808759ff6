// SPDX-License-Identifier: Apache-2.0
// Both machines of a handoff, model checked: every order of messages, steps, timers and faults in
// small scopes, and random walks through larger ones. mutations.py beside it asks whether this sees
// bugs. SLUICE_FULL=1: the larger scopes too, 3 GB and minutes.
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "tests/engine/handoff_search.h"
#include "tests/support/tier.h"

namespace sluice::model {
namespace {

struct Case {
  const char* name;
  Scope scope;
};

Rules rules(bool is_early, int num_parts, uint32_t max_attempts, bool timers_are_faults = false) {
  return {.num_parts = num_parts,
          .is_early = is_early,
          .max_attempts = max_attempts,
          .timers_are_faults = timers_are_faults};
}

void expect_right(const std::vector<Case>& cases) {
  for (const Case& one : cases) {
    const Found found = search(one.scope);
    const std::string name = one.name;
    ::testing::Test::RecordProperty(name + ", states", std::to_string(found.num_states));
    EXPECT_EQ(found.violation, "")
        << name << ": " << found.num_states << " states, " << found.num_edges << " edges";
    EXPECT_GT(found.num_states, 1000U) << name;
  }
}

TEST(HandoffModelTest, OneTransferWhoseTimersMayBeDueAtAnyTime) {
  expect_right({
      {"early, 1 part", {.rules = rules(true, 1, 1), .max_faults = 0}},
      {"early, 1 part, retry", {.rules = rules(true, 1, 2), .max_faults = 0}},
      {"early, 2 parts", {.rules = rules(true, 2, 1), .max_faults = 0}},
      {"serial, 1 part", {.rules = rules(false, 1, 1), .max_faults = 0}},
      {"serial, 2 parts", {.rules = rules(false, 2, 1), .max_faults = 0}},
      {"early, 1 part, 1 fault", {.rules = rules(true, 1, 1), .max_faults = 1}},
      {"serial, 2 parts, 1 fault", {.rules = rules(false, 2, 1), .max_faults = 1}},
  });
}

TEST(HandoffModelTest, OneTransferWithFaultsAndTimersAmongThem) {
  expect_right({
      {"early, 1 part", {.rules = rules(true, 1, 1, true), .max_faults = 2}},
      {"early, 2 parts", {.rules = rules(true, 2, 1, true), .max_faults = 2}},
      {"early, 1 part, retry", {.rules = rules(true, 1, 2, true), .max_faults = 2}},
      {"serial, 2 parts", {.rules = rules(false, 2, 1, true), .max_faults = 2}},
      {"serial, 1 part, retry", {.rules = rules(false, 1, 2, true), .max_faults = 2}},
  });
}

// They meet in slots, room and the life of workers.
TEST(HandoffModelTest, TransfersThatShareWorkers) {
  Scope scope{.rules = rules(true, 1, 1, true), .max_faults = 1, .keeps_traces = false};
  std::vector<Case> cases;
  scope.transfers = {{0, 0}, {1, 1}};
  cases.push_back({"two apart", scope});
  scope.transfers = {{0, 0}, {0, 0}};
  cases.push_back({"two of the same workers", scope});
  scope.transfers = {{0, 0}, {1, 0}};
  cases.push_back({"two of one decode worker", scope});
  scope.transfers = {{0, 0}, {0, 1}};
  cases.push_back({"two of one prefill worker", scope});
  scope.transfers = {{0, 0}, {0, 1}, {1, 1}};
  scope.max_faults = 0;
  cases.push_back({"three of two and two workers", scope});
  expect_right(cases);
}

TEST(HandoffModelTest, RandomWalksWithAnyFaults) {
  for (const bool is_early : {false, true}) {
    Scope scope{.rules = rules(is_early, 3, 2), .transfers = {{0, 0}, {0, 0}, {1, 0}}};
    scope.rules.num_slots = 2;
    EXPECT_EQ(walk(scope, testing::sample_of(60'000, 10'000'000), 1).violation, "");
    scope.transfers = {{0, 0}, {0, 1}, {1, 1}};
    EXPECT_EQ(walk(scope, testing::sample_of(60'000, 10'000'000), 2).violation, "");
  }
}

TEST(HandoffModelTest, LargerScopes) {
  if (!testing::is_full()) GTEST_SKIP() << "SLUICE_FULL=1 runs it";
  Scope three{.rules = rules(true, 1, 1, true),
              .transfers = {{0, 0}, {0, 1}, {1, 1}},
              .max_faults = 1,
              .keeps_traces = false};
  expect_right({
      {"early, 1 part, retry, 1 fault", {.rules = rules(true, 1, 2), .max_faults = 1}},
      {"early, 2 parts, retry", {.rules = rules(true, 2, 2), .max_faults = 0}},
      {"early, 3 parts", {.rules = rules(true, 3, 1), .max_faults = 0}},
      {"three of two and two workers, 1 fault", three},
  });
}

}  // namespace
}  // namespace sluice::model
