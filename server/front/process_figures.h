// SPDX-License-Identifier: Apache-2.0
// What the kernel says of this process, for the metrics that Prometheus' own clients have.
#pragma once

namespace sluice {

// Negative: not known.
struct ProcessFigures {
  double cpu_seconds = -1;   // user and system time
  double start_time_s = -1;  // since the Unix epoch
  double resident_bytes = -1;
  double virtual_bytes = -1;
  double num_files = -1;  // open descriptors
  double max_files = -1;  // soft limit of them
};

// Reads /proc/self; some ten microseconds. Any thread.
ProcessFigures process_figures();

}  // namespace sluice
