// SPDX-License-Identifier: Apache-2.0
// The targets of a fuzz program, whose first argument names one; the rest is libFuzzer's.
#pragma once

#include <cstddef>
#include <cstdint>

namespace sluice::fuzz {

// One in each target's file, made before main.
class Target {
 public:
  // What libFuzzer calls with each input; returns 0.
  using OneInput = int (*)(const uint8_t* data, size_t size);

  Target(const char* name, OneInput one_input);

  // The one of this name, or null.
  static const Target* find(const char* name);
  // Writes every name to stdout, one a line.
  static void print_names();

  int run(const uint8_t* data, size_t size) const { return one_input_(data, size); }

 private:
  const char* name_;
  OneInput one_input_;
  const Target* next_;
};

}  // namespace sluice::fuzz
