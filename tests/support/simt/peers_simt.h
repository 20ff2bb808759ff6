// SPDX-License-Identifier: Apache-2.0
// kernels/cuda/peers.h on the CPU. Devices are threads of the host: a CUDA thread that waits for
// another device lets all others of its launch run first, then other threads of the host.
#pragma once

#include <cstdint>
#include <tuple>
#include <utility>

#include "tests/support/simt/simt.h"

namespace sluice::simt {

// Runs all blocks of the grid, which lie along y, in one schedule.
void run_together(const LaunchShape& shape, const std::function<void()>& body);

}  // namespace sluice::simt

namespace sluice::gpu {

// Few, unlike a device's, so that blocks take several pieces of work in turn in small tests, too.
inline constexpr int kBlocksTogether = 4;

template <typename... Parameters, typename... Arguments>
void launch_together(Stream stream,
                     int64_t blocks,
                     int threads,
                     bool overlaps,
                     void (*kernel)(Parameters...),
                     const Arguments&... args) {
  const auto count = static_cast<unsigned>(blocks);
  const simt::LaunchShape shape{{1, count}, threads, 0, static_cast<int>(count), overlaps};
  const auto call = std::make_pair(kernel, std::make_tuple(args...));
  simt::enqueue(stream, [shape, call] {
    const simt::ParameterSpace parameters(&call, sizeof(call));
    simt::run_together(shape, [&call = call] { std::apply(call.first, call.second); });
  });
}

namespace ptx {

void tell_peer(uint32_t* word, uint32_t number);
bool wait_for_peer(
    const uint32_t* word, uint32_t number, uint32_t* stop, int64_t limit_ns, simt::Site site = {});

}  // namespace ptx
}  // namespace sluice::gpu
