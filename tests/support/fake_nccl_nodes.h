// SPDX-License-Identifier: Apache-2.0
// Controls tests/support/fake_nccl_nodes.cpp, in this process.
#pragma once

#include <dlfcn.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>

#include "engine/core/status.h"

struct CUstream_st;

namespace sluice::testing {

// What rank `rank` does in this process; 0: nothing of it. Gathers are counted from 1.
struct FakeNodeFaults {
  int32_t rank = -1;
  int32_t stays_away = 0;  // it never joins the others
  int32_t refuses_to_make = 0;
  int32_t bad_call = 0;      // this gather's call returns an error
  int32_t endless_call = 0;  // this gather's call returns when it is aborted
  int32_t bad_gather = 0;    // this gather ends with an error, which no call returns
  int32_t kills = 0;         // the process is killed in this gather
  int32_t stops = 0;         // the process is stopped in this gather
  int32_t abort_ms = 0;      // duration of an abort, and of the gather that it ends
  int32_t versions = 0;      // every question has another answer, whoever asks
};

// Puts work into a stream that writes these bytes; see simt::enqueue().
using FakeEnqueue = void (*)(CUstream_st*, std::function<void()>, std::span<std::byte> written);

// Without `enqueue` gathers run on threads of their own, and are done when NCCL says that they have
// begun.
inline void set_fake_nodes(const std::string& library,
                           const FakeNodeFaults& faults,
                           FakeEnqueue enqueue = nullptr) {
  void* const handle = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  CHECK(handle != nullptr);
  auto* const set = reinterpret_cast<void (*)(const FakeNodeFaults*, FakeEnqueue)>(
      dlsym(handle, "fake_nccl_nodes_set"));
  CHECK(set != nullptr);
  set(&faults, enqueue);
  dlclose(handle);
}

}  // namespace sluice::testing
