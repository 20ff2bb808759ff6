// SPDX-License-Identifier: Apache-2.0
// The numbers of this library's exp, log, tanh and erf, for the CPU (kernels/cpu/isa/math16.h) and
// CUDA (kernels/cuda/math.h): both compute the same bits. Coefficients are minimax fits (Remez in
// 40 digits) rounded to float; the digit is the power they belong to.
#pragma once

namespace sluice::kernels {

inline constexpr float kLn2Hi = 0x1.62ep-1F;  // 12 bits: its product with an exponent is exact
inline constexpr float kLn2Lo = 0x1.0bfbe8p-15F;
inline constexpr float kLog2E = 0x1.715476p+0F;
inline constexpr float kRoundMagic = 0x1.8p23F;  // adding and subtracting it rounds to an integer

inline constexpr float kExpTop = 88.37F;     // larger arguments give exp of this
inline constexpr float kExpBottom = -87.3F;  // smaller arguments give 0
inline constexpr float kExpUnder = -0x1.5d3336p+6F;  // the float below kExpBottom
inline constexpr float kExp6 = 0x1.6a2350p-10F;
inline constexpr float kExp5 = 0x1.123a6cp-7F;
inline constexpr float kExp4 = 0x1.5558f4p-5F;
inline constexpr float kExp3 = 0x1.555490p-3F;
inline constexpr float kExp2 = 0x1.fffffcp-2F;

inline constexpr float kLog10 = -0x1.427aeep-4F;
inline constexpr float kLog9 = 0x1.083266p-3F;
inline constexpr float kLog8 = -0x1.0cf286p-3F;
inline constexpr float kLog7 = 0x1.2261cep-3F;
inline constexpr float kLog6 = -0x1.5475a4p-3F;
inline constexpr float kLog5 = 0x1.99a60ep-3F;
inline constexpr float kLog4 = -0x1.00022ap-2F;
inline constexpr float kLog3 = 0x1.55554ap-2F;

inline constexpr float kTanhSmall = 0.625F;  // below it the polynomial, above it exp
inline constexpr float kTanh11 = -0x1.72fe7ep-8F;
inline constexpr float kTanh9 = 0x1.518bf0p-6F;
inline constexpr float kTanh7 = -0x1.b82692p-5F;
inline constexpr float kTanh5 = 0x1.110692p-3F;
inline constexpr float kTanh3 = -0x1.555530p-2F;

// erf(z) / z as a polynomial in z^2 below the border, erfc(z) * exp(z^2) as one in
// 1 / (1 + kErfcSlope * z) above it.
inline constexpr float kErfSmall = 1.0F;
inline constexpr float kErf13 = 0x1.496a30p-14F;
inline constexpr float kErf11 = -0x1.a3f700p-11F;
inline constexpr float kErf9 = 0x1.5405b2p-8F;
inline constexpr float kErf7 = -0x1.b7f90ep-6F;
inline constexpr float kErf5 = 0x1.ce2cf8p-4F;
inline constexpr float kErf3 = -0x1.81273ep-2F;
inline constexpr float kErf1 = 0x1.20dd74p+0F;
inline constexpr float kErfcSlope = 0.4F;
inline constexpr float kErfc7 = -0x1.8a0c6ap-4F;
inline constexpr float kErfc6 = 0x1.5ec222p-3F;
inline constexpr float kErfc5 = 0x1.e4d544p-4F;
inline constexpr float kErfc4 = 0x1.f139d0p-4F;
inline constexpr float kErfc3 = 0x1.f36356p-3F;
inline constexpr float kErfc2 = 0x1.b57992p-3F;
inline constexpr float kErfc1 = 0x1.d256a2p-3F;
inline constexpr float kErfc0 = -0x1.240306p-13F;
inline constexpr float kSqrtHalf = 0x1.6a09e6p-1F;

// Constants of GateFunction (kernels/elementwise.h).
inline constexpr float kGeluCubic = 0.044715F;
inline constexpr float kGeluFactor = 0.7978845608F;  // sqrt(2 / pi)
inline constexpr float kSwigluLimit = 7.0F;
inline constexpr float kSwigluSlope = -1.702F;

}  // namespace sluice::kernels
