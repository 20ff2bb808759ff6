// SPDX-License-Identifier: Apache-2.0
// Frames between the engine and its compile process: the setup once, then specs and replies in
// turn.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "engine/core/grammar_spec.h"
#include "engine/core/status.h"
#include "engine/sampling/grammar/grammar.h"

namespace sluice {

// Limits of one grammar's compilation.
struct CompileLimits {
  int32_t cpu_s = 2;  // processor time; a grammar that needs more is too complex
  // When it is over first, the machine is too busy, and nothing is known of the grammar.
  int32_t wall_s = 30;
  int64_t memory_bytes = int64_t{1} << 30;  // beyond what the vocabulary takes
  int64_t result_bytes = int64_t{64} << 20;
  // A grammar that took no more than this is small: the engine can compile it again for less than
  // its transfer costs. 0 ms: no grammar is small.
  int32_t small_ms = 100;  // of processor time
  int64_t small_bytes = int64_t{32} << 20;
};

// The stack of a compile process: it refuses grammars that need more, so none needs more elsewhere.
inline constexpr int64_t kCompileStackBytes = int64_t{4} << 20;

// The data that the worker's process starts with.
struct CompileSetup {
  GrammarVocabulary vocabulary;
  GrammarLimits grammar;
  CompileLimits limits;
};

inline constexpr int kCompileSocket = 3;  // the worker's end

std::string encode_setup(const CompileSetup& setup);
// kDataLoss: it is cut.
Expected<CompileSetup> decode_setup(std::string_view bytes);

// kDataLoss: it is cut, or of no GrammarKind.
std::string encode_spec(const GrammarSpec& spec);
Expected<GrammarSpec> decode_spec(std::string_view bytes);

// An empty text means that the grammar compiles, and is small. kDataLoss: it is cut, or of no
// ErrorCode.
std::string encode_reply(const Expected<std::string>& result);
Expected<std::string> decode_reply(std::string_view bytes);

}  // namespace sluice
