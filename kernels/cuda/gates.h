// SPDX-License-Identifier: Apache-2.0
// The gate functions of kernels/elementwise.h with the CPU's bits.
#pragma once

#include "kernels/cuda/gpu.h"
#include "kernels/cuda/math.h"
#include "kernels/cuda/rows.h"
#include "kernels/elementwise.h"

namespace sluice::kernels::cuda {

__device__ __forceinline__ float xielu_of(float g, const Xielu& by) {
  const float p = higher_of(0.0F, g);
  const float n = lower_of(0.0F, g);
  float series = 1.0F / 5040;
  series = __fmaf_rn(series, n, 1.0F / 720);
  series = __fmaf_rn(series, n, 1.0F / 120);
  series = __fmaf_rn(series, n, 1.0F / 24);
  series = __fmaf_rn(series, n, 1.0F / 6);
  series = __fmaf_rn(series, n, 0.5F);
  const float far = __fsub_rn(__fsub_rn(exp_of(n), 1.0F), n);
  const float bent = n < -0.25F ? far : __fmul_rn(__fmul_rn(n, n), series);
  const float curve = __fmaf_rn(__fmul_rn(by.above, p), p, __fmul_rn(by.below, bent));
  return __fmaf_rn(by.slope, g, curve);
}

template <GateFunction kFunction>
__device__ __forceinline__ float gated(float gate, float up, const GateMulArgs& args) {
  if constexpr (kFunction == GateFunction::kSilu) {
    const float limit = args.limit;
    const float bent = silu_of(gate);
    if (limit <= 0) return __fmul_rn(bent, up);
    return __fmul_rn(lower_of(limit, bent), higher_of(-limit, lower_of(limit, up)));
  } else if constexpr (kFunction == GateFunction::kGeluTanh ||
                       kFunction == GateFunction::kGeluTanhAlone) {
    const float inner = __fmaf_rn(__fmul_rn(__fmul_rn(gate, gate), kGeluCubic), gate, gate);
    const float bent = __fadd_rn(1.0F, tanh_of(__fmul_rn(kGeluFactor, inner)));
    const float bell = __fmul_rn(__fmul_rn(0.5F, gate), bent);
    return kFunction == GateFunction::kGeluTanh ? __fmul_rn(bell, up) : bell;
  } else if constexpr (kFunction == GateFunction::kSigmoid) {
    return __fmul_rn(sigmoid_of(gate), up);
  } else if constexpr (kFunction == GateFunction::kRelu) {
    return higher_of(0.0F, gate);
  } else if constexpr (kFunction == GateFunction::kXielu) {
    return xielu_of(gate, args.xielu);
  } else if constexpr (kFunction == GateFunction::kGelu) {
    return gelu_of(gate);
  } else if constexpr (kFunction == GateFunction::kGeluErf) {
    return __fmul_rn(gelu_of(gate), up);
  } else if constexpr (kFunction == GateFunction::kSquaredRelu) {
    const float x = higher_of(0.0F, gate);
    return __fmul_rn(x, x);
  } else {
    const float x = lower_of(kSwigluLimit, gate);
    const float y = higher_of(-kSwigluLimit, lower_of(kSwigluLimit, up));
    const float bent = __fdiv_rn(x, __fadd_rn(1.0F, exp_of(__fmul_rn(kSwigluSlope, x))));
    return __fmul_rn(bent, __fadd_rn(y, 1.0F));
  }
}

template <GateFunction kFunction>
__device__ __forceinline__ Four gated(const Four& gate, const Four& up, const GateMulArgs& args) {
  Four four;
#pragma unroll
  for (int j = 0; j < 4; ++j) four.v[j] = gated<kFunction>(gate.v[j], up.v[j], args);
  return four;
}

}  // namespace sluice::kernels::cuda
