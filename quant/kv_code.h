// SPDX-License-Identifier: Apache-2.0
// The form of a row in an int8 or fp8 cache: the definition that kernels must meet. A row is one
// head's K or V of one token; its codes depend on nothing else.
//
// With a = max |x|, all in float and rounded to nearest even: scale = a / 127 (int8) or a / 448
// (e4m3, the finite kind of OCP's fp8), code = round(x * (1 / scale)), value = code * scale. Where
// a is 0, or so small that 1 / scale overflows, codes and scale are 0. Where a value is infinite or
// NaN, codes are 0 and the scale is NaN, so that it stays visible.
#pragma once

#include <cstdint>
#include <span>

#include "engine/core/types.h"

namespace sluice {

float e4m3_to_float(uint8_t code);   // exact; 0x7F and 0xFF are NaN
uint8_t float_to_e4m3(float value);  // to nearest even; above 464, infinite or NaN: 0x7F, signed
uint8_t e4m3_code(float value);      // e4m3 code of a finite e4m3 value, without a search

// Writes row.size() codes of `dtype` (kI8 as two's complement, kF8E4M3) and returns the scale.
float encode_kv_row(DType dtype, std::span<const float> row, uint8_t* codes);
// Returns the value of a code before its scale.
float kv_code_value(DType dtype, uint8_t code);

}  // namespace sluice
