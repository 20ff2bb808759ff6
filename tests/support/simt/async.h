// SPDX-License-Identifier: Apache-2.0
// A block's mbarriers, and its products and copies in flight.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <vector>

#include "tests/support/simt/ptx_simt.h"
#include "tests/support/simt/race.h"

namespace sluice::simt {

struct MbarrierState {
  int arrivals = 0;
  int owner = 0;           // the thread that initialized it
  bool published = false;  // to copies, by a fence of the owner
  int pending = 0;         // arrivals that this phase still waits for
  int64_t bytes = 0;       // bytes likewise; below 0 if they came before they were announced
  uint32_t phase = 0;
  std::vector<int> waiting;
  Clock clock;          // this phase's arrivals'
  Clock done_clock[2];  // that of the latest complete phase of each parity
};

struct Product {
  MatrixType type;
  int columns;
  uint64_t a;
  uint64_t b;
  bool accumulate;
  const uint32_t* accumulators;  // lane 0's, which name the set
  int64_t group;
  Site site;
  Clock clock;                      // its warp's knowledge at the issue
  std::vector<uint32_t> rows = {};  // [32 lanes][4], A if it is in registers
};

// Registers that a product reads until the wait: no thread may change them.
struct HeldRows {
  std::vector<uint32_t> words;  // [32 lanes][4], their values at the issue
  const uint32_t* registers[32];
  int64_t group;
  Site site;
};

// Registers that belong to a warp's unit between issue and wait.
struct Accumulators {
  std::vector<uint32_t> words;  // [32 lanes][columns / 2]
  uint32_t* registers[32] = {};
  int pending = 0;     // products that have not run
  int64_t group = -1;  // the latest product's
};

struct WarpUnit {
  std::deque<Product> queue;
  std::map<const uint32_t*, Accumulators> accumulators;
  std::vector<HeldRows> held;
  int64_t issued = 0;                // products so far
  int64_t open_group = 0;            // group of products not committed yet
  std::map<int64_t, uint32_t> time;  // a group's last product, on the unit's clock
};

struct ThreadCopy {
  std::byte* to;
  const std::byte* from;
  int bytes;
  int64_t group;
};

// The cp.async copies of a thread.
struct ThreadCopies {
  std::deque<ThreadCopy> queue;  // copies that have not happened
  int64_t open_group = 0;
  int64_t latest = -1;               // the latest group with a copy
  int64_t waited = -1;               // this group and earlier ones are waited for
  std::map<int64_t, uint32_t> time;  // a group's last copy, on the unit's clock
};

struct AsyncState {
  explicit AsyncState(int num_threads);

  // Called when every thread has ended.
  void check_end() const;

  std::vector<MbarrierState> barriers;
  std::vector<WarpUnit> units;       // by warp
  std::vector<ThreadCopies> copies;  // by thread
  std::vector<bool> ordered;         // by thread: wgmma_fence since the last wait
  Site issue_site;
};

// Fails unless the kernel runs as on a Hopper GPU.
void check_hopper(const char* who, Site site);

}  // namespace sluice::simt
