// SPDX-License-Identifier: Apache-2.0
#include "tests/support/simt/reach.h"

#include <cstdio>
#include <string>

#include "tests/support/simt/block.h"

extern "C" const char __executable_start;  // the linker's; code and constants begin there
extern "C" const char __data_start;

namespace sluice::simt {

constinit thread_local const Reach* reach = nullptr;

namespace {

constinit thread_local const ParameterSpace* innermost = nullptr;

std::byte* shared_begin = nullptr;  // written before main
int64_t shared_bytes = 0;

}  // namespace

ParameterSpace::ParameterSpace(const void* begin, int64_t bytes)
    : begin_(static_cast<const std::byte*>(begin)), end_(begin_ + bytes), outer_(innermost) {
  innermost = this;
}

ParameterSpace::~ParameterSpace() { innermost = outer_; }

bool ParameterSpace::contains(const void* p, int64_t bytes) {
  const auto* const first = static_cast<const std::byte*>(p);
  for (const ParameterSpace* space = innermost; space != nullptr; space = space->outer_) {
    if (first >= space->begin_ && first + bytes <= space->end_) return true;
  }
  return false;
}

Reach::Reach() {
  add(&__executable_start, &__data_start - &__executable_start);
  add(&current_thread, sizeof(current_thread));  // read by threadIdx and the like
}

void share_heap(std::byte* begin, int64_t bytes) {
  shared_begin = begin;
  shared_bytes = bytes;
}

std::optional<Reach> reach_of_shared_heap() {
  if (shared_bytes == 0) return std::nullopt;
  Reach of_tests;
  of_tests.add(shared_begin, shared_bytes);
  return of_tests;
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

void check_reach(const void* p, int64_t bytes, const Instruction& who, const void* pc) {
  if (reach == nullptr || ParameterSpace::contains(p, bytes) || reach->contains(p, bytes)) return;
  reach = nullptr;  // one report is enough, and hooks may not throw
  char where[64];
  std::snprintf(where, sizeof(where), " at %p, from %p", p, pc);
  add_report(who + ": " + std::to_string(bytes) + " bytes of host memory" + where);
}

}  // namespace sluice::simt
