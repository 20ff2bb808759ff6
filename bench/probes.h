// SPDX-License-Identifier: Apache-2.0
// The machine's limits that kernels are measured against, probed in the same run.
#pragma once

#include <vector>

#include "kernels/device.h"

namespace sluice::bench {

// Multiply-adds of bytes into 32 bits by the widest vector instruction of the context's set, on all
// threads; 2 operations each.
double probe_int8_gops(const kernels::ExecContext& ctx);

// The rate of AMX on tiles of 16 x 16 x 64; 0 where the context's set is another. Only codes
// without scales inside of k can reach it: formats with scales per group are bound by vectors.
double probe_tile_gops(const kernels::ExecContext& ctx);

// Multiply-adds of floats by the widest vector instruction, on all threads.
double probe_float_gflops(const kernels::ExecContext& ctx);

// Dot products of pairs of bfloat16 added to floats (vdpbf16ps); 0 where the machine has none.
double probe_bf16_gflops(const kernels::ExecContext& ctx);

// Reads of 256 MiB in huge pages, on all threads in four streams each, with or without software
// prefetches, whichever is faster.
double probe_read_gbps(const kernels::ExecContext& ctx);

// The middle one of samples of a probe or of ratios to it; the upper one of two.
double median(std::vector<double> samples);

}  // namespace sluice::bench
