// SPDX-License-Identifier: Apache-2.0
// Where a thread is in a ring of stages that mbarriers guard: full when the copies are there, empty
// when every consumer has let go.
#pragma once

#include "kernels/cuda/gpu.h"

namespace sluice::kernels::cuda {

template <int kStages>
struct Cursor {
  int stage = 0;
  int parity = 0;  // of the stage's phase of `full`; of `empty` the other

  __device__ __forceinline__ void advance() {
    if (++stage < kStages) return;
    stage = 0;
    parity ^= 1;
  }
};

}  // namespace sluice::kernels::cuda
