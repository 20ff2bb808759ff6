// SPDX-License-Identifier: Apache-2.0
// Compiled grammars over a vocabulary, which determine the tokens that may follow. A Grammar is
// immutable, and shared on any thread by all answers that follow it; each has its own matcher.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/core/grammar_spec.h"
#include "engine/core/status.h"
#include "engine/core/types.h"

namespace sluice {

// The number of 32-bit words in a mask row for `vocab_size` tokens.
[[nodiscard]] inline size_t token_mask_words(int32_t vocab_size) {
  return static_cast<size_t>(ceil_div(vocab_size, 32));
}

enum class Allowed : uint8_t {
  kSome,
  kAll,      // every token but the vocabulary's control tokens
  kOnlyEnd,  // the text is complete, and nothing may follow
  kNothing,  // no token leads on: the grammar has no text that begins like this
};

// The position of one answer in its grammar. One thread at a time.
class GrammarMatcher {
 public:
  virtual ~GrammarMatcher() = default;

  // False: the token is not allowed here, and nothing has changed. No token is allowed after an end
  // token.
  virtual bool accept(TokenId token) = 0;
  // Reverts the latest tokens, including an end token; at most as many as were accepted.
  virtual void rollback(int32_t num_tokens) = 0;
  // Writes which tokens may follow: bit i % 32 of word i / 32 is token i. End tokens are allowed
  // where the text is complete. `row` has token_mask_words() of the vocabulary's width. Returns
  // kNothing after an end token.
  virtual Allowed fill(std::span<uint32_t> row) = 0;
  // Whether the text could end here.
  [[nodiscard]] virtual bool is_completed() const = 0;
};

class Grammar {
 public:
  virtual ~Grammar() = default;

  [[nodiscard]] virtual std::unique_ptr<GrammarMatcher> match() const = 0;
  [[nodiscard]] virtual int64_t bytes() const = 0;
};

// A grammar, and where in an answer it begins.
struct BoundGrammar {
  std::shared_ptr<const Grammar> grammar;
  std::vector<TokenId> begins_after = {};  // see GrammarSpec
};

inline constexpr char kControlByte = '\xFF';  // in no text

// A vocabulary as grammars see it.
struct GrammarVocabulary {
  std::vector<std::string> tokens;  // by id; control tokens begin with kControlByte
  std::vector<TokenId> ends;        // ascending
  int32_t width = 0;                // of a row of logits; at least tokens.size()
};

struct GrammarLimits {
  int32_t max_whitespace = 16;  // in a run between the tokens of JSON
};

// Compiles for one vocabulary. Immutable; any thread.
class GrammarBackend {
 public:
  virtual ~GrammarBackend() = default;

  // Takes time and memory without bound: the caller bounds both (compile_worker.h). A schema has
  // passed the gate (schema_gate.h). kInvalidArgument: the text is no such grammar, or there is no
  // text that it allows.
  [[nodiscard]] virtual Expected<std::shared_ptr<const Grammar>> compile(
      const GrammarSpec& spec) const = 0;

  // Returns the grammar as bytes for load() in another process with the same vocabulary.
  [[nodiscard]] virtual std::string save(const Grammar& grammar) const = 0;
  // Fails with kDataLoss where the bytes are not what save() returned.
  [[nodiscard]] virtual Expected<std::shared_ptr<const Grammar>> load(
      std::string bytes, const GrammarSpec& spec) const = 0;
};

[[nodiscard]] Expected<std::unique_ptr<GrammarBackend>> create_grammar_backend(
    GrammarVocabulary vocabulary, const GrammarLimits& limits);

}  // namespace sluice
