// SPDX-License-Identifier: Apache-2.0
#include "tests/fuzz/target.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "engine/core/log.h"

namespace {

const sluice::fuzz::Target* last_made = nullptr;
const sluice::fuzz::Target* chosen = nullptr;

}  // namespace

namespace sluice::fuzz {

Target::Target(const char* name, OneInput one_input)
    : name_(name), one_input_(one_input), next_(last_made) {
  last_made = this;
}

const Target* Target::find(const char* name) {
  const Target* target = last_made;
  while (target != nullptr && std::strcmp(target->name_, name) != 0) target = target->next_;
  return target;
}

void Target::print_names() {
  for (const Target* target = last_made; target != nullptr; target = target->next_) {
    std::puts(target->name_);
  }
}

}  // namespace sluice::fuzz

// Called before libFuzzer reads its arguments. Without a target's name it prints all of them.
extern "C" int LLVMFuzzerInitialize(int* num_arguments, char*** arguments) {
  using sluice::fuzz::Target;
  const bool has_name = *num_arguments >= 2;
  if (has_name) chosen = Target::find((*arguments)[1]);
  if (chosen == nullptr) {
    Target::print_names();
    std::exit(has_name ? 2 : 0);
  }
  (*arguments)[1] = (*arguments)[0];
  ++*arguments;
  --*num_arguments;
  // Warnings of odd files would be most of the time.
  sluice::init_log(sluice::LogLevel::kError);
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  return chosen->run(data, size);
}
