// SPDX-License-Identifier: Apache-2.0
// cuBLASLt as the baseline of linear layers, opened at run time: y[m, n] = x[m, k] w[n, k]^T, the
// best of what its heuristic offers, or the same algorithm for every m.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "bench/gpu_rig.h"

namespace sluice::bench {

class CublasLt {
 public:
  enum class Type : uint8_t { kBf16, kInt8 };  // sums in fp32, in int32

  struct Shape {
    Type type;
    int32_t m, n, k;
  };

  // Null, with a line on stderr, where the library is not found.
  static std::unique_ptr<CublasLt> open(GpuRig& rig);
  ~CublasLt();

  // Which algorithm; only of the shape that it was asked for, or of one with another m.
  struct Algorithm {
    std::vector<std::byte> data;
  };

  // The algorithms that the heuristic offers, best first; none: the shape is not supported.
  std::vector<Algorithm> algorithms(const Shape& shape);

  // False: the algorithm cannot do this shape.
  bool multiply(
      const Shape& shape, const Algorithm& algorithm, const void* x, const void* w, void* y);

  // Seconds of the fastest of the first few algorithms over `copies` matrices that lie behind each
  // other; 0: none works.
  double best_seconds(
      const Shape& shape, const void* x, const std::byte* w, int32_t copies, void* y);

 private:
  struct Library;
  struct Layouts;

  CublasLt(GpuRig& rig, std::unique_ptr<Library> library);

  GpuRig& rig_;
  std::unique_ptr<Library> library_;
  kernels::DeviceBuffer workspace_;
};

}  // namespace sluice::bench
