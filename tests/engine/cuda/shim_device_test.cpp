// SPDX-License-Identifier: Apache-2.0
// --device where the shim says how much memory a GPU has, that there is none, and that the host
// touched what it must not.
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdio>
#include <memory>
#include <string>

#include "engine/engine.h"
#include "engine/model_runner.h"
#include "kernels/device.h"
#include "tests/engine/cuda/tiny_model.h"
#include "tests/support/same_bits.h"
#include "tests/support/simt/memory.h"

namespace sluice {
namespace {

using testing::start_engine;
using testing::TinyModel;
using testing::TinyWeights;

// The shim's options for one test.
class ShimOptions {
 public:
  explicit ShimOptions(const simt::DeviceOptions& options) { simt::set_device_options(options); }

  ShimOptions(const ShimOptions&) = delete;
  ShimOptions& operator=(const ShimOptions&) = delete;

  ~ShimOptions() { simt::set_device_options({}); }
};

std::string error_of(const Config& config) {
  const Expected<PlannedDevice> planned = plan_on_device(config);
  return planned ? "" : planned.error().message;
}

TEST(CudaDevice, WithoutAGpuAutoTakesTheCpuAndCudaIsRefused) {
  const TinyModel model(TinyWeights::kInt8);
  const ShimOptions options({.is_there = false});
  const Expected<PlannedDevice> planned = plan_on_device(model.config("auto"));
  ASSERT_TRUE(planned.has_value());
  EXPECT_EQ(planned->device->name().substr(0, 4), "cpu:");
  EXPECT_EQ(error_of(model.config("cuda")), "no CUDA device: the shim hides it");
}

TEST(CudaDevice, ThePlanIsOfTheDevicesMemory) {
  const TinyModel model(TinyWeights::kInt8);
  Config config = model.config("cuda");
  config.kv_cache_memory = 0;
  const Expected<PlannedDevice> planned = plan_on_device(config);
  ASSERT_TRUE(planned.has_value());
  const MemoryPlan& plan = planned->model.plan;
  EXPECT_TRUE(plan.on_device);
  EXPECT_LT(plan.available_bytes, int64_t{1} << 30);
  EXPECT_GT(plan.available_bytes, int64_t{1} << 29);
  EXPECT_NE(plan.describe().find("available on the device"), std::string::npos);
  // Eight sequences of 256 tokens are all that can run.
  EXPECT_EQ(plan.kv_tokens(), 8 * 256);
  // Everything that is then allocated on the device is in the plan, but for what is rounded up.
  const std::unique_ptr<Engine> engine = start_engine(config);
  ASSERT_NE(engine, nullptr);
  EXPECT_LE(simt::num_device_bytes(), plan.total_bytes() + 16 * 4096);
  EXPECT_GT(simt::num_device_bytes(), plan.total_bytes() - 4096);
}

TEST(CudaDevice, WhatDoesNotFitTheDeviceIsRefusedWithNumbers) {
  const ShimOptions options({.free_bytes = (int64_t{256} << 20) + (int64_t{1} << 20)});
  const TinyModel model(TinyWeights::kBF16);
  for (const char* device : {"cuda", "auto"}) {  // the CPU must not hide that it did not fit
    const std::string error = error_of(model.config(device));
    EXPECT_EQ(error.rfind("memory plan: weights ", 0), 0U) << error;
    EXPECT_NE(error.find("available 1.0 MiB"), std::string::npos) << error;
  }
}

using CudaDeviceDeathTest = ::testing::Test;

TEST(CudaDeviceDeathTest, TheHostCannotReadADevicesMemory) {
  auto device = kernels::Device::create({.type = DeviceType::kCuda, .threads = 1});
  ASSERT_TRUE(device.has_value());
  const auto buffer = kernels::DeviceBuffer::allocate((*device)->memory(), 64, "test");
  ASSERT_TRUE(buffer.has_value());
  EXPECT_DEATH(std::fprintf(stderr, "%d", static_cast<int>(*buffer->data())), "");
}

}  // namespace
}  // namespace sluice
