// SPDX-License-Identifier: Apache-2.0
// --device with a shim that reports a GPU's memory, the absence of a GPU, or forbidden accesses by
// the host.
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "engine/run/model_runner.h"
#include "engine/sampling/device_sampling.h"
#include "kernels/cuda/gpu.h"
#include "kernels/cuda/ptx.h"
#include "kernels/device.h"
#include "kernels/device_memory.h"
#include "tests/engine/cuda/tiny_model.h"
#include "tests/support/fake_kv_peers.h"
#include "tests/support/same_bits.h"
#include "tests/support/simt/memory.h"
#include "tests/support/simt/overlap.h"
#include "tests/support/varied_requests.h"

namespace sluice {
namespace {

using testing::start_engine;
using testing::TinyModel;
using testing::TinyWeights;

// Sets the shim's options for one test.
class ShimOptions {
 public:
  explicit ShimOptions(const simt::DeviceOptions& options) { simt::set_device_options(options); }

  ShimOptions(const ShimOptions&) = delete;
  ShimOptions& operator=(const ShimOptions&) = delete;

  ~ShimOptions() { simt::set_device_options({}); }
};

std::string error_of(const Config& config) {
  const Expected<PlannedDevices> planned = plan_on_devices(config);
  return planned ? "" : planned.error().message;
}

TEST(CudaDevice, WithoutAGpuAutoTakesTheCpuAndCudaIsRefused) {
  const TinyModel model(TinyWeights::kInt8);
  const ShimOptions options({.is_there = false});
  const Expected<PlannedDevices> planned = plan_on_devices(model.config("auto"));
  ASSERT_TRUE(planned.has_value());
  EXPECT_EQ(planned->devices[0]->name().substr(0, 4), "cpu:");
  EXPECT_EQ(error_of(model.config("cuda")), "no CUDA device: the shim hides it");
}

TEST(CudaDevice, ARefusalNamesTheVariableThatHidesGpus) {
  const TinyModel model(TinyWeights::kInt8);
  ASSERT_EQ(setenv("CUDA_VISIBLE_DEVICES", "MIG-5d5d5d5d-0000", 1), 0);
  const ShimOptions options({.is_there = false});
  const std::string none = error_of(model.config("cuda"));
  simt::set_device_options({.count = 1});
  Config config = model.config("cuda");
  config.tensor_parallel_size = 2;
  const std::string few = error_of(config);
  unsetenv("CUDA_VISIBLE_DEVICES");
  const std::string names = "; CUDA_VISIBLE_DEVICES is 'MIG-5d5d5d5d-0000'";
  EXPECT_NE(none.find("the shim hides it" + names), std::string::npos) << none;
  EXPECT_NE(few.find("found 1, expected 2" + names), std::string::npos) << few;
}

// Two models of GPUs may add up differently: neither goes on with the other's stream or KV.
TEST(CudaDevice, TheFingerprintNamesTheGpusModel) {
  const TinyModel model(TinyWeights::kInt8);
  const auto fingerprint_on = [&](const char* name) {
    const ShimOptions options({.name = name});
    const std::unique_ptr<Engine> engine = start_engine(model.config("cuda"));
    return engine == nullptr ? "" : engine->model().system_fingerprint;
  };
  const std::string on_a = fingerprint_on("GPU A");
  EXPECT_EQ(on_a.substr(0, 3), "fp_");
  EXPECT_EQ(fingerprint_on("GPU A"), on_a);
  EXPECT_NE(fingerprint_on("GPU B"), on_a);
  EXPECT_NE(start_engine(model.config("cpu"))->model().system_fingerprint, on_a);
}

// CUDA shows a slice of a GPU (MIG) as a device with a name and memory of its own.
TEST(CudaDevice, ASliceOfAGpuIsNamedAndPlannedByWhatItHas) {
  const TinyModel model(TinyWeights::kInt8);
  constexpr int64_t kFree = int64_t{512} << 20;
  const ShimOptions options({.free_bytes = kFree, .name = "NVIDIA H200 MIG 1g.18gb"});
  Config config = model.config("cuda");
  config.kv_cache_memory = 0;
  const Expected<PlannedDevices> planned = plan_on_devices(config);
  ASSERT_TRUE(planned.has_value());
  EXPECT_EQ(planned->devices[0]->name(), "cuda:NVIDIA H200 MIG 1g.18gb");
  EXPECT_GT(planned->model.plan.available_bytes, 0);
  EXPECT_LT(planned->model.plan.total_bytes(), kFree);
  const std::unique_ptr<Engine> engine = start_engine(config);
  ASSERT_NE(engine, nullptr);
  EXPECT_EQ(engine->model().backend, "cuda:NVIDIA H200 MIG 1g.18gb");
  EXPECT_LT(simt::num_device_bytes(), kFree);
}

TEST(CudaDevice, ThePlanIsOfTheDevicesMemory) {
  const TinyModel model(TinyWeights::kInt8);
  Config config = model.config("cuda");
  config.kv_cache_memory = 0;
  const Expected<PlannedDevices> planned = plan_on_devices(config);
  ASSERT_TRUE(planned.has_value());
  const MemoryPlan& plan = planned->model.plan;
  EXPECT_TRUE(plan.on_device);
  const int64_t free_bytes = simt::DeviceOptions{}.free_bytes;
  EXPECT_LT(plan.available_bytes, free_bytes);
  EXPECT_GT(plan.available_bytes, free_bytes / 2);
  EXPECT_NE(plan.describe().find("available on the device"), std::string::npos);
  // The plan covers eight sequences of 256 tokens, the most that can run.
  EXPECT_EQ(plan.kv_tokens(), 8 * 256);
  // The plan includes everything allocated on the device, except rounding.
  const std::unique_ptr<Engine> engine = start_engine(config);
  ASSERT_NE(engine, nullptr);
  EXPECT_LE(simt::num_device_bytes(), plan.total_bytes() + 16 * 4096);
  EXPECT_GT(simt::num_device_bytes(), plan.total_bytes() - 4096);
}

// The plan includes the slots that each role needs.
TEST(CudaDevice, ThePlanHasTheSlotsOfKvThatTravels) {
  constexpr int64_t kSlot = int64_t{2} << 20;
  const TinyModel model(TinyWeights::kInt8);
  struct Case {
    const char* role;
    int64_t device_slots;
    int64_t pinned_slots;
  };
  for (const Case& one : {Case{"both", 32, 20}, {"prefill", 16, 16}, {"decode", 16, 4}}) {
    SCOPED_TRACE(one.role);
    Config config = model.config("cuda");
    config.role = one.role;
    config.kv_listen = "127.0.0.1:0";
    config.kv_transfer_buffer = 4 * kSlot;
    const Expected<PlannedDevices> planned = plan_on_devices(config);
    ASSERT_TRUE(planned.has_value());
    const MemoryPlan& plan = planned->model.plan;
    EXPECT_EQ(plan.kv_slot_bytes, one.device_slots * kSlot);
    EXPECT_EQ(plan.kv_landing_bytes, one.pinned_slots * kSlot);
    testing::FakeKvPeers peers;
    const auto engine = create_worker_engine(config, peers.opener("w"));
    ASSERT_TRUE(engine.has_value()) << engine.error().message;
    EXPECT_LE(simt::num_device_bytes(), plan.total_bytes() + 16 * 4096);
    EXPECT_GT(simt::num_device_bytes(), plan.total_bytes() - 4096);
  }
  // Slots take room from the cache; a direct transfer needs no host memory.
  Config config = model.config("cuda");
  config.kv_cache_memory = 0;
  config.enforce_eager = true;
  const ShimOptions options({.free_bytes = (int64_t{256} << 20) + 34 * kSlot});
  const Expected<PlannedDevices> without = plan_on_devices(config);
  config.kv_listen = "127.0.0.1:0";
  config.kv_transport = "nccl";
  config.kv_transfer_buffer = 4 * kSlot;
  const Expected<PlannedDevices> with = plan_on_devices(config);
  ASSERT_TRUE(without.has_value() && with.has_value());
  EXPECT_EQ(with->model.plan.kv_slot_bytes, (16 + 4 + 8 + 1) * kSlot);
  EXPECT_EQ(with->model.plan.kv_landing_bytes, 0);
  config.kv_transport = "tcp";
  config.kv_transfer_buffer = 1000 * kSlot;
  const ShimOptions fewer({.free_bytes = (int64_t{256} << 20) + 32 * kSlot});
  EXPECT_NE(error_of(config).find("memory plan: "), std::string::npos);
}

TEST(CudaDevice, WhatDoesNotFitTheDeviceIsRefusedWithNumbers) {
  const ShimOptions options({.free_bytes = (int64_t{256} << 20) + (int64_t{1} << 20)});
  const TinyModel model(TinyWeights::kBF16);
  for (const char* device : {"cuda", "auto"}) {  // the CPU must not hide that it did not fit
    Config config = model.config(device);
    config.enforce_eager = true;
    const std::string error = error_of(config);
    EXPECT_EQ(error.rfind("memory plan: weights ", 0), 0U) << error;
    EXPECT_NE(error.find("available 1.0 MiB"), std::string::npos) << error;
    config.enforce_eager = false;  // four recorded steps of two layers
    EXPECT_NE(error_of(config).find("available 0.0 MiB"), std::string::npos) << error_of(config);
  }
}

// A recording fixes the arguments, but reads memory when it runs. A step that put its input
// somewhere else would run on the old one, as this test shows.
TEST(ShimRecording, KeepsItsArgumentsAndReadsMemoryAsItThenIs) {
  auto device = kernels::Device::create({.type = DeviceType::kCuda, .threads = 1});
  ASSERT_TRUE(device.has_value());
  kernels::DeviceMemory& memory = (*device)->memory();
  const auto input = kernels::DeviceBuffer::allocate(memory, 1, "test");
  const auto moved = kernels::DeviceBuffer::allocate(memory, 1, "test");
  const auto output = kernels::DeviceBuffer::allocate(memory, 1, "test");
  ASSERT_TRUE(input.has_value() && moved.has_value() && output.has_value());
  const auto put = [&](const kernels::DeviceBuffer& to, int value) {
    const auto byte = static_cast<std::byte>(value);
    memory.upload(to.data(), &byte, 1);
    memory.wait();
  };
  const auto got = [&] {
    std::byte byte{};
    memory.download(&byte, output->data(), 1);
    memory.wait();
    return static_cast<int>(byte);
  };
  put(*input, 1);
  memory.begin_recording();
  memory.copy(output->data(), input->data(), 1);
  const auto recorded = memory.end_recording();
  ASSERT_TRUE(recorded.has_value());
  EXPECT_EQ(got(), 0);
  put(*input, 2);
  (*recorded)->run();
  EXPECT_EQ(got(), 2);
  put(*moved, 3);
  (*recorded)->run();
  EXPECT_EQ(got(), 2);
}

// Work queued behind an event is still pending when the event has come: a reader of its result, or
// of its source, would notice.
TEST(ShimEvents, WaitForWhatWasBeforeThemAlone) {
  auto device = kernels::Device::create({.type = DeviceType::kCuda, .threads = 1});
  ASSERT_TRUE(device.has_value());
  kernels::DeviceMemory& memory = (*device)->memory();
  const auto buffer = kernels::DeviceBuffer::allocate(memory, 2, "test");
  ASSERT_TRUE(buffer.has_value());
  const auto event = memory.make_event();
  event->wait();  // not recorded yet
  std::byte sent[2] = {std::byte{1}, std::byte{2}};
  std::byte got[2] = {};
  const int64_t drains = simt::num_device_drains();
  memory.upload(buffer->data(), sent, 2);
  memory.download(got, buffer->data(), 1);
  event->record();
  memory.download(got + 1, buffer->data() + 1, 1);
  event->wait();
  EXPECT_EQ(got[0], std::byte{1});
  EXPECT_EQ(got[1], std::byte{0});
  EXPECT_EQ(simt::num_device_drains(), drains);
  event->record();
  event->wait();
  EXPECT_EQ(got[1], std::byte{2});
  EXPECT_EQ(simt::num_device_drains(), drains + 1);
}

TEST(CudaDevice, StepsAndOperatorsHaveRanges) {
  const TinyModel model(TinyWeights::kInt8);
  simt::take_ranges();
  const std::unique_ptr<Engine> engine = start_engine(model.config("cuda"));
  ASSERT_NE(engine, nullptr);
  testing::run_together(*engine, {testing::tiny_requests()[0]});
  const std::set<std::string> ranges = simt::take_ranges();
  for (const char* name :
       {"linear", "step", "step/linear", "step/attention", "step/sample", "step/recorded layers"}) {
    EXPECT_TRUE(ranges.contains(name)) << name;
  }
}

// The scheduler learns the device's time of a step, even if it samples nothing.
TEST(CudaDevice, StepsThatSampleNothingAreWaitedFor) {
  auto device = kernels::Device::create({.type = DeviceType::kCuda, .threads = 1});
  ASSERT_TRUE(device.has_value());
  kernels::DeviceMemory& memory = (*device)->memory();
  auto sampling =
      DeviceSampling::create(memory, {.max_rows = 2, .max_logprobs = 1, .vocab_size = 16});
  const auto buffer = kernels::DeviceBuffer::allocate(memory, 1, "test");
  ASSERT_TRUE(sampling.has_value() && buffer.has_value());
  const std::byte sent{7};
  std::byte got{};
  sampling->send(0, {});
  memory.upload(buffer->data(), &sent, 1);
  memory.download(&got, buffer->data(), 1);
  sampling->choose((*device)->context(), 0);
  EXPECT_EQ(got, std::byte{0});
  EXPECT_TRUE(sampling->wait(0).empty());
  EXPECT_EQ(got, sent);
}

using ShimRecordingDeathTest = ::testing::Test;

TEST(ShimRecordingDeathTest, NobodyWaitsUploadsAllocatesOrReleasesMeanwhile) {
  auto device = kernels::Device::create({.type = DeviceType::kCuda, .threads = 1});
  ASSERT_TRUE(device.has_value());
  kernels::DeviceMemory& memory = (*device)->memory();
  const auto buffer = kernels::DeviceBuffer::allocate(memory, 64, "test");
  const auto pinned = kernels::DeviceBuffer::allocate_pinned(memory, 64, "test");
  ASSERT_TRUE(buffer.has_value() && pinned.has_value());
  const auto event = memory.make_event();
  const std::byte byte{};
  memory.begin_recording();
  EXPECT_DEATH(memory.wait(), "is_recording");
  EXPECT_DEATH(event->record(), "is_recording");
  EXPECT_DEATH(event->wait(), "is_recording");
  EXPECT_DEATH(memory.upload(buffer->data(), &byte, 1), "is_recording");
  EXPECT_DEATH((void)memory.allocate(64, "test", AlignedBuffer::Pages::kSmall), "is_recording");
  EXPECT_DEATH((void)memory.allocate_pinned(64, "test"), "is_recording");
  EXPECT_DEATH(memory.release(buffer->data()), "is_recording");
  EXPECT_DEATH(memory.release_pinned(pinned->data()), "is_recording");
  ASSERT_TRUE(memory.end_recording().has_value());
}

void early_reader(const std::byte* p) {
  simt::check_early_read(p, 1, nullptr);
  gpu::ptx::wait_for_launches();
}

// What a queue beside the steps wrote is not there yet for a launch that overlaps, although its
// stream waits for the queue; after a launch that does not overlap it is.
TEST(ShimQueueDeathTest, ALaunchThatOverlapsReadsWhatAQueueWroteBehindItsWait) {
  auto device = kernels::Device::create({.type = DeviceType::kCuda, .threads = 1});
  ASSERT_TRUE(device.has_value());
  kernels::DeviceMemory& memory = (*device)->memory();
  gpu::Stream const stream = (*device)->context().stream;
  const auto buffer = kernels::DeviceBuffer::allocate(memory, 1, "test");
  ASSERT_TRUE(buffer.has_value());
  memory.wait();
  const auto queue = memory.make_queue();
  const std::byte byte{};
  const std::byte* const p = buffer->data();
  const auto write = [&] {
    queue->upload(buffer->data(), &byte, 1);
    queue->lead();
  };
  write();
  gpu::launch(stream, {.threads = 1}, +[] {});
  gpu::launch(stream, {.threads = 1, .overlaps = true}, early_reader, p);
  memory.wait();
  EXPECT_DEATH(
      {
        write();
        gpu::launch(stream, {.threads = 1, .overlaps = true}, early_reader, p);
        memory.wait();
      },
      "a read before wait_for_launches");
}

// Such a device has a thread of its own, which runs one piece of work after the other.
TEST(ShimQueueDeathTest, ALaunchThatOverlapsReadsEarlyOnADeviceThatRunsWorkAtOnce) {
  const ShimOptions options({.first_runs_at_once = true});
  const auto run = [](bool host_waits) {
    auto device = kernels::Device::create({.type = DeviceType::kCuda, .threads = 1});
    ASSERT_TRUE(device.has_value());
    kernels::DeviceMemory& memory = (*device)->memory();
    const auto buffer = kernels::DeviceBuffer::allocate(memory, 1, "test");
    ASSERT_TRUE(buffer.has_value());
    const std::byte byte{};
    const std::byte* const p = buffer->data();
    memory.upload(buffer->data(), &byte, 1);
    if (host_waits) memory.wait();
    const gpu::Stream stream = (*device)->context().stream;
    gpu::launch(stream, {.threads = 1, .overlaps = true}, early_reader, p);
    memory.wait();
  };
  run(true);
  EXPECT_DEATH(run(false), "a read before wait_for_launches");
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
