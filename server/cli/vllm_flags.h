// SPDX-License-Identifier: Apache-2.0
// The flags of `vllm serve`, and what becomes of each here.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace sluice {

enum class Fate : uint8_t {
  kSame,     // a knob of the same name and meaning
  kRenamed,  // a knob under another name
  kIgnored,  // cannot change an answer: a warning, unless the value is `neutral`
  kNeutral,  // an error unless the value is one of `neutral`, or the flag --no-...
  kApart,    // translate_serve() sees to it
};

enum class Values : uint8_t { kNone, kOne, kSome };  // kSome: up to the next flag

struct FlagRow {
  std::string_view name;  // without dashes
  Values values;
  Fate fate;
  std::string_view other = {};  // kRenamed: ours; kIgnored and kNeutral: values that need no word
};

// Returns the row of a flag without dashes; null: no flag of vLLM that we know has this name.
const FlagRow* find_flag(std::string_view name);

// Returns the nearest flag to a mistyped one; empty: none is near.
std::string nearest_flag(std::string_view name);

}  // namespace sluice
