// SPDX-License-Identifier: Apache-2.0
// A GPU of the shim, for tests of code above the kernels: what kernels/cuda/memory.cu is to a real
// one. Its streams are lazy: launches and copies run when somebody waits, so that whoever reads a
// result too early, or changes a copy's source too early, gets wrong bytes. A queue beside the
// operators runs no sooner than somebody waits for it, in its own order or by lead(), or asks a
// second time whether an event of it is done. Its memory can be touched by launches and copies
// alone: the host's first access to it is a segmentation fault. Memory that is lent is shared with
// other processes, which cannot write it. What is recorded keeps its arguments as a CUDA graph
// does, and whoever waits, uploads, allocates or releases meanwhile ends the process.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <set>
#include <string>
#include <vector>

namespace sluice::simt {

// `waits`: for another stream, whose work is run by it; it launches and copies nothing of its own.
struct StreamWork {
  std::function<void()> run;
  bool waits = false;
};

}  // namespace sluice::simt

// What a stream has yet to do.
struct CUstream_st {
  std::mutex mutex;
  std::deque<sluice::simt::StreamWork> work;       // guarded by mutex
  int64_t num_begun = 0;                           // the same: of `work`, gone from it
  std::vector<sluice::simt::StreamWork> recorded;  // the same
  bool is_recording = false;                       // the same: work goes to `recorded`
  std::condition_variable added;                   // to `work`
};

namespace sluice::simt {

// Of the devices opened from now on. `free_bytes`: what each says it has. Launches run in a Run of
// their own per wait, with seeds that follow `seed`; a report ends the process. Devices behind the
// first run what they are given at once, on a thread of theirs: what the first waits for may need
// it.
struct DeviceOptions {
  int64_t free_bytes = int64_t{2} << 30;
  uint64_t seed = 1;
  bool is_there = true;  // false: no device is found
  int count = 1;
  int fails_to_record = -1;  // the device of this number
};

void set_device_options(const DeviceOptions& options);

// Of all devices: launches and runs of recorded work since the process began, bytes allocated now.
int64_t num_device_launches();
int64_t num_device_replays();
int64_t num_device_bytes();
// Waits after which a device had nothing left to do.
int64_t num_device_drains();

// Ranges that have begun since the last call, each below its parents: "step/linear".
std::set<std::string> take_ranges();

}  // namespace sluice::simt
