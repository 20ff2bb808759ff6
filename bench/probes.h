// SPDX-License-Identifier: Apache-2.0
// What the machine gives: the limits that kernels are measured against, probed in the same run.
#pragma once

#include "kernels/device.h"

namespace sluice::bench {

// Multiply-adds of bytes into 32 bits by the widest instruction of the context's set, all threads
// busy; 2 operations each.
double probe_int8_gops(const kernels::ExecContext& ctx);

// Reads of a buffer far larger than any cache, all threads.
double probe_read_gbps(const kernels::ExecContext& ctx);

}  // namespace sluice::bench
