// SPDX-License-Identifier: Apache-2.0
// A thread's position in a ring of stages that mbarriers guard: a stage is full when its copies are
// there, and empty when every consumer has released it.
#pragma once

#include "kernels/cuda/gpu.h"

namespace sluice::kernels::cuda {

template <int kStages>
struct Cursor {
  int stage = 0;
  int parity = 0;  // the stage's `full` phase; `empty` has the other

  __device__ __forceinline__ void advance() {
    if (++stage < kStages) return;
    stage = 0;
    parity ^= 1;
  }
};

}  // namespace sluice::kernels::cuda
