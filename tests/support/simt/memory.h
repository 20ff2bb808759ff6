// SPDX-License-Identifier: Apache-2.0
// A GPU of the shim, for tests of code above the kernels, in place of kernels/cuda/memory.cu. Its
// streams are lazy: launches and copies run when a thread waits, so that code which reads a result
// or changes a copy's source too early gets wrong bytes. A queue beside the operators runs only
// when a thread waits for it, in its own order or by lead(), or asks a second time whether an event
// of it is done. Only launches and copies can touch its memory: the host's first access to it is a
// segmentation fault. Memory that is lent is shared with other processes, which cannot write it. A
// recording keeps its arguments like a CUDA graph, and a thread that waits, uploads, allocates or
// releases meanwhile ends the process.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace sluice::simt {

// `waits`: it waits for another stream and runs its work, but launches and copies nothing itself.
// `host_waited`: a thread had waited for all in front of it when it was put in.
struct StreamWork {
  std::function<void()> run;
  bool waits = false;
  bool host_waited = false;
};

}  // namespace sluice::simt

// The pending work of a stream.
struct CUstream_st {
  std::mutex mutex;

  // Returns the position behind everything so far. Guarded by mutex, as is what follows.
  [[nodiscard]] int64_t end() const { return num_begun + static_cast<int64_t>(work.size()); }

  void add(sluice::simt::StreamWork item) {
    item.host_waited = waited == end();
    work.push_back(std::move(item));
    added.notify_all();
  }

  std::deque<sluice::simt::StreamWork> work;
  int64_t num_begun = 0;  // work that has left `work`
  int64_t waited = 0;     // end of what a thread has waited for
  std::vector<sluice::simt::StreamWork> recorded;
  bool is_recording = false;      // work goes to `recorded`
  std::condition_variable added;  // signals additions to `work`
};

namespace sluice::simt {

// Options of the devices opened from now on. `free_bytes`: what each reports. Launches run in a Run
// of their own per wait, with seeds that follow `seed`; a report ends the process. All devices but
// the first run work at once, on a thread of theirs: work that the first waits for may need it.
struct DeviceOptions {
  int64_t free_bytes = int64_t{2} << 30;
  uint64_t seed = 1;
  bool is_there = true;  // false: no device is found
  int count = 1;
  int fails_to_record = -1;  // number of the device that fails
  const char* name = "shim";
  bool reaches_peers = true;        // whether devices write each other's windows
  bool first_runs_at_once = false;  // other processes' devices wait for it, and no thread does
  int gpu = 0;                      // which of the machine's GPUs they are, for id()
};

void set_device_options(const DeviceOptions& options);

// Launches and runs of recorded work since the process began, and bytes allocated now; all devices.
int64_t num_device_launches();
int64_t num_device_replays();
int64_t num_device_bytes();
// Returns the number of waits after which a device had nothing left to do.
int64_t num_device_drains();

// Returns the ranges that have begun since the last call, each below its parents: "step/linear".
std::set<std::string> take_ranges();

}  // namespace sluice::simt
