// SPDX-License-Identifier: Apache-2.0
// Bounds of what a parser keeps of one answer. When one is exceeded, the parser gives up what it
// kept the text for: an unfinished call becomes content, a value is passed on as text.
#pragma once

#include <cstddef>
#include <cstdint>

namespace sluice {

inline constexpr size_t kMaxBufferedBytes = 1 << 20;  // names, ids, values, text of unsure calls
inline constexpr size_t kMaxHeldSymbols = 4096;   // bytes or tokens that what follows decides on
inline constexpr int32_t kMaxCalls = 128;         // of an answer; further ones are content
inline constexpr size_t kMaxArgumentDepth = 128;  // of literals that become JSON
inline constexpr size_t kMaxSeparatorBytes = 64;  // white space that belongs to a marker
inline constexpr size_t kMaxParameters = 4096;    // of a call whose JSON is written here

}  // namespace sluice
