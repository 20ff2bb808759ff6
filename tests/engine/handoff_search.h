// SPDX-License-Identifier: Apache-2.0
// Worlds of several transfers between several workers, searched breadth first or walked at random.
// In each state that is reached the rules of handoff_model.cpp hold, and with no message delivered
// any more the workers' own steps and timers alone bring everything to rest.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tests/engine/handoff_model.h"

namespace sluice::model {

inline constexpr int kMaxTransfers = 3;
inline constexpr int kMaxWorkers = 2;  // of a kind

struct Transfer {
  int prefill = 0;  // worker
  int decode = 0;
  friend bool operator==(const Transfer&, const Transfer&) = default;
};

struct Scope {
  Rules rules;
  std::vector<Transfer> transfers = {{}};
  int max_faults = -1;       // of all transfers and workers; -1: any number
  bool may_restart = true;   // each worker, once
  bool keeps_traces = true;  // says how a violation came about; 16 bytes a state
};

struct Found {
  size_t num_states = 0;
  size_t num_edges = 0;
  size_t num_locals = 0;    // different states of one transfer
  size_t num_messages = 0;  // different ones
  std::string violation;    // empty: none
};

// Every state of the scope, or those up to the first violation.
Found search(const Scope& scope);

// `num_steps` random ones, beginning again when a world is at rest or has made 400.
Found walk(const Scope& scope, uint64_t num_steps, uint64_t seed);

}  // namespace sluice::model
