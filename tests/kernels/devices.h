// SPDX-License-Identifier: Apache-2.0
// This machine's instruction sets and some thread counts, for tests of bit equality.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kernels/device.h"

namespace sluice::kernels::test {

struct NamedDevice {
  std::string name;
  Isa isa;
  int32_t threads;
  std::unique_ptr<Device> device;
};

// Returns null if this machine lacks the instruction set.
inline std::unique_ptr<Device> make_device(const std::string& isa, int32_t threads) {
  Device::Options options;
  options.isa = isa;
  options.threads = threads;
  auto device = Device::create(options);
  return device ? std::move(*device) : nullptr;
}

// Returns every available instruction set with each thread count, the scalar one first. Under a
// sanitizer only the last count is used: kernels are checked, and threads share them.
inline std::vector<NamedDevice> devices(std::vector<int32_t> thread_counts) {
#ifdef SLUICE_SANITIZED
  thread_counts.erase(thread_counts.begin(), thread_counts.end() - 1);
#endif
  std::vector<NamedDevice> result;
  for (const char* isa : {"scalar", "avx2", "avx512", "amx"}) {
    for (const int32_t threads : thread_counts) {
      std::unique_ptr<Device> device = make_device(isa, threads);
      if (device == nullptr) continue;
      const Isa which = device->context().isa;
      result.push_back(
          {std::string(isa) + " x" + std::to_string(threads), which, threads, std::move(device)});
    }
  }
  return result;
}

// Uniform values in [0, 1) and roughly normal ones; the same on every machine.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}

  uint32_t bits() {
    state_ = state_ * 6364136223846793005U + 1442695040888963407U;
    return static_cast<uint32_t>(state_ >> 32);
  }

  float uniform() { return static_cast<float>(bits() >> 8) * 0x1p-24F; }

  int32_t below(int32_t n) { return static_cast<int32_t>(bits() % static_cast<uint32_t>(n)); }

  float normal() {
    float sum = -6;
    for (int i = 0; i < 12; ++i) sum += uniform();
    return sum;
  }

  std::vector<float> normals(size_t n, float scale = 1) {
    std::vector<float> values(n);
    for (float& value : values) value = normal() * scale;
    return values;
  }

 private:
  uint64_t state_;
};

}  // namespace sluice::kernels::test
