// SPDX-License-Identifier: Apache-2.0
// What the programs that measure attention share: their caches and their command line,
//   [--isa I] [--threads N] [--only TEXT]
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>
#include <utility>

#include "engine/core/aligned_buffer.h"
#include "kernels/device.h"

namespace sluice::bench {

// Returns a cache of bfloat16 from 0.5 to 2, either sign.
inline AlignedBuffer random_cache(int64_t bytes) {
  auto buffer = AlignedBuffer::allocate(bytes, "cache");
  if (!buffer) std::exit(1);
  std::minstd_rand rng(1);
  auto* const halves = reinterpret_cast<uint16_t*>(buffer->data());
  for (int64_t i = 0; i < bytes / 2; ++i) {
    halves[i] = static_cast<uint16_t>((rng() & 0x8000) + 0x3F00 + (rng() & 0xFF));
  }
  return std::move(*buffer);
}

// Prints `header` and runs run_shape(context, shape) for shapes whose `name` contains the TEXT.
template <typename Shapes, typename Run>
int run_shapes(int argc, char** argv, const char* header, const Shapes& shapes, Run run_shape) {
  kernels::Device::Options options;
  std::string only;
  for (int i = 1; i < argc; i += 2) {
    const std::string flag = i + 1 < argc ? argv[i] : "";
    if (flag == "--isa") {
      options.isa = argv[i + 1];
    } else if (flag == "--threads") {
      options.threads = std::atoi(argv[i + 1]);
    } else if (flag == "--only") {
      only = argv[i + 1];
    } else {
      std::fprintf(stderr, "usage: %s [--isa I] [--threads N] [--only TEXT]\n", argv[0]);
      return 2;
    }
  }
  const auto device = kernels::Device::create(options);
  if (!device) {
    std::fprintf(stderr, "%s\n", device.error().message.c_str());
    return 1;
  }
  std::printf("%s, %d threads\n%s\n", (*device)->name().c_str(), (*device)->num_threads(), header);
  for (const auto& shape : shapes) {
    if (std::string(shape.name).find(only) != std::string::npos) {
      run_shape((*device)->context(), shape);
    }
  }
  return 0;
}

}  // namespace sluice::bench
