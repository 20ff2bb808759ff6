// SPDX-License-Identifier: Apache-2.0
// cuBLASLt as the baseline of linear layers, opened at run time: y[m, n] = x[m, k] w[n, k]^T, by
// the best algorithm that its heuristic offers, or by one algorithm for every m.
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

  // Returns null, with a line on stderr, if the library is not found.
  static std::unique_ptr<CublasLt> open(GpuRig& rig);
  ~CublasLt();

  // An algorithm, for the shape that it was asked for or one with another m.
  struct Algorithm {
    std::vector<std::byte> data;
  };

  // Returns the algorithms that the heuristic offers, best first; none: the shape is not supported.
  std::vector<Algorithm> algorithms(const Shape& shape);

  // Returns false if the algorithm cannot do this shape.
  bool multiply(
      const Shape& shape, const Algorithm& algorithm, const void* x, const void* w, void* y);

  // Returns the seconds of the fastest of the first few algorithms over `copies` consecutive
  // matrices; 0: none works.
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
