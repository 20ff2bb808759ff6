// SPDX-License-Identifier: Apache-2.0
// Elementary functions in double for tables built once, from IEEE sums, products and one division
// in a fixed order (no libm, no fma), so that every machine computes the same table. Polynomials
// are Taylor series cut where the next term is below 1e-17.
#pragma once

namespace sluice::kernels::cpu {

// x > 0 and normal; relative error below 1e-15 away from 1, absolute below 1e-16 near it.
double log2_f64(double x);

// |x| <= 1000; relative error below 5e-16.
double exp2_f64(double x);

struct SinCos {
  double sin;
  double cos;
};

// |x| <= 1e6; absolute error below 3e-16 of the exact sine and cosine of the double x. Three-part
// Cody-Waite reduction: the first two parts of pi/2 have 33 bits, so n times a part is exact for
// n < 2^20.
SinCos sincos_f64(double x);

}  // namespace sluice::kernels::cpu
