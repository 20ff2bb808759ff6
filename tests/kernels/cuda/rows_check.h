// SPDX-License-Identifier: Apache-2.0
// Checks that an operator which writes Activations leaves the CPU's bytes, in every format, except
// for NaN payloads.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "kernels/gemm.h"
#include "quant/format.h"
#include "tests/kernels/cuda/schedules.h"
#include "tests/kernels/devices.h"

namespace sluice::kernels::test {

// Compares bit by bit, except for NaN payloads.
inline void expect_same_floats(const std::vector<float>& got, const std::vector<float>& want) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < want.size(); ++i) {
    if (std::isnan(got[i]) && std::isnan(want[i])) continue;
    uint32_t got_bits;
    uint32_t want_bits;
    std::memcpy(&got_bits, &got[i], sizeof(got_bits));
    std::memcpy(&want_bits, &want[i], sizeof(want_bits));
    ASSERT_EQ(got_bits, want_bits) << "element " << i << ": " << got[i] << " and " << want[i];
  }
}

constexpr bool is_half(ActivationFormat format) {
  return format == ActivationFormat::kBF16 || format == ActivationFormat::kF16;
}

// Makes 16-bit rows, which no CPU operator writes: its floats, each rounded if it wrote one.
inline void round_floats(ActivationFormat format,
                         const DeviceBytes& floats,
                         const DeviceBytes& to) {
  float untouched;
  std::memcpy(&untouched, DeviceBytes(sizeof(float)).data(), sizeof(untouched));
  for (size_t i = 0; i < floats.size() / sizeof(float); ++i) {
    const float value = reinterpret_cast<const float*>(floats.data())[i];
    if (value == untouched) continue;
    reinterpret_cast<uint16_t*>(to.data())[i] =
        format == ActivationFormat::kBF16 ? float_to_bf16(value) : float_to_half(value);
  }
}

// Gives every NaN the same bits, since payloads are not defined (kernels/cuda/launch.h).
// DeviceBytes' poison is no NaN in any format.
inline void unify_nans(const Activations& rows) {
  const auto unify = [](float& value) {
    if (std::isnan(value)) value = std::numeric_limits<float>::quiet_NaN();
  };
  const int64_t groups = ceil_div(int64_t{rows.k}, int64_t{kQuantGroup});
  const int64_t values = rows.num_rows * groups * kQuantGroup;
  if (rows.format == ActivationFormat::kFloat) {
    for (int64_t i = 0; i < values; ++i) unify(static_cast<float*>(rows.data)[i]);
    return;
  }
  if (is_half(rows.format)) {
    const uint16_t infinity = rows.format == ActivationFormat::kBF16 ? 0x7F80 : 0x7C00;
    for (int64_t i = 0; i < values; ++i) {
      uint16_t& value = static_cast<uint16_t*>(rows.data)[i];
      if ((value & 0x7FFFU) > infinity) value = 0x7FFF;
    }
    return;
  }
  for (int64_t row = 0; row < rows.num_rows; ++row) {
    for (int64_t group = 0; group < groups; ++group) {
      const ActivationGroup of_row = activation_group(rows, row, group);
      unify(*of_row.scale);
      if (of_row.sum != nullptr) unify(*of_row.sum);
    }
  }
}

inline const std::vector<ActivationFormat> kAllFormats = {ActivationFormat::kFloat,
                                                          ActivationFormat::kInt8,
                                                          ActivationFormat::kInt16,
                                                          ActivationFormat::kInt8Token,
                                                          ActivationFormat::kBF16,
                                                          ActivationFormat::kF16};

// args(out) returns the operator's arguments with `out` in them. `rows` may be more than the
// arguments write: neither may change these rows, which are compared, too.
template <typename MakeArgs, typename OnCpu, typename OnCuda>
void expect_rows_equal(int32_t rows,
                       int32_t k,
                       MakeArgs args,
                       OnCpu on_cpu,
                       OnCuda on_cuda,
                       const std::vector<ActivationFormat>& formats = kAllFormats,
                       Seeds seeds = Seeds::kAll) {
  const auto cpu = make_device("scalar", 1);
  for (const ActivationFormat format : formats) {
    SCOPED_TRACE("format " + std::to_string(static_cast<int>(format)));
    const int64_t bytes = activation_bytes(format, rows, k);
    DeviceBytes want(bytes);
    DeviceBytes got(bytes);
    if (is_half(format)) {
      const DeviceBytes floats(activation_bytes(ActivationFormat::kFloat, rows, k));
      on_cpu(cpu->context(),
             args(carve_activations(ActivationFormat::kFloat, rows, k, floats.data())));
      round_floats(format, floats, want);
    } else {
      on_cpu(cpu->context(), args(carve_activations(format, rows, k, want.data())));
    }
    unify_nans(carve_activations(format, rows, k, want.data()));
    on_schedules(
        [&] {
          got.poison();
          const Activations out = carve_activations(format, rows, k, got.data());
          on_cuda(nullptr, args(out));
          unify_nans(out);
          expect_same_bytes(got.data(), want.data(), want.size());
        },
        seeds);
  }
}

}  // namespace sluice::kernels::test
