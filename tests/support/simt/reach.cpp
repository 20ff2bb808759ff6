// SPDX-License-Identifier: Apache-2.0
#include "tests/support/simt/reach.h"

#include <pthread.h>

#include <cstdio>
#include <string>

#include "engine/core/status.h"
#include "tests/support/simt/block.h"

extern "C" const char __executable_start;  // the linker's
extern "C" const char _end;

namespace sluice::simt {

constinit thread_local const Reach* reach = nullptr;

namespace {

constinit thread_local const std::byte* parameters_begin = nullptr;
constinit thread_local const std::byte* parameters_end = nullptr;

}  // namespace

ParameterSpace::ParameterSpace(const void* begin, int64_t bytes) {
  parameters_begin = static_cast<const std::byte*>(begin);
  parameters_end = parameters_begin + bytes;
}

ParameterSpace::~ParameterSpace() {
  parameters_begin = nullptr;
  parameters_end = nullptr;
}

Reach::Reach() {
  add(&__executable_start, &_end - &__executable_start);
  // Behind threadIdx and its like; on the stack of every thread but the first.
  add(&current_thread, sizeof(current_thread));
  pthread_attr_t attributes;
  CHECK_EQ(pthread_getattr_np(pthread_self(), &attributes), 0);
  void* stack = nullptr;
  size_t bytes = 0;
  CHECK_EQ(pthread_attr_getstack(&attributes, &stack, &bytes), 0);
  pthread_attr_destroy(&attributes);
  add(stack, static_cast<int64_t>(bytes));
}

void Reach::add(const void* begin, int64_t bytes) {
  const auto* const first = static_cast<const std::byte*>(begin);
  ranges_.emplace_back(first, first + bytes);
}

bool Reach::contains(const void* p, int64_t bytes) const {
  const auto* const first = static_cast<const std::byte*>(p);
  if (first >= last_.first && first + bytes <= last_.second) return true;
  for (const Range& range : ranges_) {
    if (first < range.first || first + bytes > range.second) continue;
    last_ = range;
    return true;
  }
  return false;
}

void check_reach(const void* p, int64_t bytes, const char* who, const void* pc) {
  const auto* const first = static_cast<const std::byte*>(p);
  if (first >= parameters_begin && first + bytes <= parameters_end) return;
  if (reach == nullptr || reach->contains(p, bytes)) return;
  reach = nullptr;  // one report is enough; and no exception, as hooks may not throw
  char where[64];
  std::snprintf(where, sizeof(where), " at %p, from %p", p, pc);
  add_report(std::string(who) + ": " + std::to_string(bytes) + " bytes of host memory" + where);
}

}  // namespace sluice::simt
