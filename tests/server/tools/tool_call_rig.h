// SPDX-License-Identifier: Apache-2.0
// Grammars of forced calls, compiled for a vocabulary of bytes.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <utility>

#include "engine/sampling/grammar/structural_tag_gate.h"
#include "server/tools/tool_call_grammar.h"
#include "tests/support/byte_grammar.h"

namespace sluice::testing {

inline std::shared_ptr<const Grammar> compile(Expected<GrammarSpec> made) {
  EXPECT_TRUE(made) << made.error().message;
  if (!made) return nullptr;
  GrammarSpec spec = std::move(*made);
  const auto gated = gate_structural_tag(spec.text, spec.is_best_effort, {});
  EXPECT_TRUE(gated) << gated.error().message;
  if (!gated) return nullptr;
  spec.text = *gated;
  const auto grammar = byte_backend({.max_whitespace = 1})->compile(spec);
  EXPECT_TRUE(grammar) << grammar.error().message;
  return grammar ? *grammar : nullptr;
}

}  // namespace sluice::testing
