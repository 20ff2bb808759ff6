// SPDX-License-Identifier: Apache-2.0
// What the engine and its compile process say to each other, as frames: the setup once, then a
// spec and its reply in turns.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "engine/core/grammar_spec.h"
#include "engine/core/status.h"
#include "engine/sampling/grammar/grammar.h"

namespace sluice {

// Of one grammar.
struct CompileLimits {
  int32_t wall_s = 5;
  int32_t cpu_s = 2;
  int64_t memory_bytes = int64_t{1} << 30;  // beyond what the vocabulary takes
  int64_t result_bytes = int64_t{64} << 20;
};

// What the worker's process needs to begin.
struct CompileSetup {
  GrammarVocabulary vocabulary;
  GrammarLimits grammar;
  CompileLimits limits;
};

inline constexpr int kCompileSocket = 3;  // the worker's end

std::string encode_setup(const CompileSetup& setup);
// kDataLoss: it is cut.
Expected<CompileSetup> decode_setup(std::string_view bytes);

std::string encode_spec(const GrammarSpec& spec);
Expected<GrammarSpec> decode_spec(std::string_view bytes);

std::string encode_reply(const Expected<std::string>& result);
Expected<std::string> decode_reply(std::string_view bytes);

}  // namespace sluice
