// SPDX-License-Identifier: Apache-2.0
#include "engine/spec/forced.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <optional>
#include <utility>
#include <vector>

#include "engine/core/status.h"
#include "engine/sampling/grammar/grammar_state.h"

namespace sluice {
namespace {

// A text has about as many tokens that begin it as it has characters.
constexpr size_t kMaxSpellings = 64;
constexpr size_t kWordBits = 32;

// Classes of agreement for confidence_bin().
enum Agreement : int32_t { kOnlyText, kOnlyToken };

class ForcedProposer final : public Proposer {
 public:
  ForcedProposer(int32_t vocab_size, TokenText text)
      : mask_(token_mask_words(vocab_size)), text_(std::move(text)) {}

  std::string_view name() const override { return to_string(DraftSource::kForced); }

  void begin(int32_t slot, const RequestRecord& request) override {
    if (slots_.size() <= static_cast<size_t>(slot)) slots_.resize(static_cast<size_t>(slot) + 1);
    Bound& bound = slots_[static_cast<size_t>(slot)];
    bound.num_prompt_tokens = static_cast<size_t>(request.num_prompt_tokens);
    bound.state.reset();
    if (request.grammar != nullptr) bound.state = std::make_unique<GrammarState>(request.grammar);
  }

  void propose(int32_t slot, std::span<const TokenId> known, int32_t max, Draft& draft) override {
    draft.clear(DraftSource::kForced);
    Bound& bound = slots_[static_cast<size_t>(slot)];
    if (bound.state == nullptr) return;
    if (!bound.state->follow({{}, known.subspan(bound.num_prompt_tokens)})) return;
    while (draft.size < max && bound.state->is_bound()) {
      const Allowed allowed = bound.state->fill(mask_);
      if (allowed == Allowed::kAll || allowed == Allowed::kNothing) return;
      const std::optional<Forced> next = only_one();
      if (!next) return;
      draft.push(next->token, confidence_bin(0, next->agreement));
      if (!bound.state->accept(next->token)) return;
    }
  }

  void end(int32_t slot, std::span<const TokenId>) override {
    slots_[static_cast<size_t>(slot)].state.reset();
  }

  int64_t memory_bytes() const override {
    auto bytes =
        static_cast<int64_t>(slots_.capacity() * sizeof(Bound) + mask_.size() * sizeof(uint32_t));
    for (const Bound& bound : slots_) {
      if (bound.state != nullptr) bytes += bound.state->memory_bytes();
    }
    return bytes;
  }

 private:
  struct Bound {
    std::unique_ptr<GrammarState> state;  // after the known tokens, or after their draft
    size_t num_prompt_tokens = 0;
  };

  struct Forced {
    TokenId token;
    Agreement agreement;
  };

  // Returns the mask's only token, or the longest of tokens that all begin one text.
  [[nodiscard]] std::optional<Forced> only_one() const {
    std::array<TokenId, kMaxSpellings> tokens;
    size_t count = 0;
    for (size_t word = 0; word < mask_.size(); ++word) {
      for (uint32_t bits = mask_[word]; bits != 0; bits &= bits - 1) {
        if (count == kMaxSpellings) return std::nullopt;
        tokens[count++] =
            static_cast<TokenId>(word * kWordBits + static_cast<size_t>(std::countr_zero(bits)));
      }
    }
    if (count == 1) return Forced{tokens[0], kOnlyToken};
    if (count == 0 || text_ == nullptr) return std::nullopt;
    const std::span<const TokenId> spellings(tokens.data(), count);
    const TokenId longest =
        *std::ranges::max_element(spellings, {}, [&](TokenId id) { return text_(id).size(); });
    const std::string_view whole = text_(longest);
    const bool is_one_text = std::ranges::all_of(spellings, [&](TokenId id) {
      const std::string_view part = text_(id);
      return !part.empty() && whole.starts_with(part);
    });
    if (!is_one_text) return std::nullopt;
    return Forced{longest, kOnlyText};
  }

  std::vector<uint32_t> mask_;
  TokenText text_;
  std::vector<Bound> slots_;
};

}  // namespace

std::unique_ptr<Proposer> make_forced_proposer(int32_t vocab_size, TokenText text) {
  return std::make_unique<ForcedProposer>(vocab_size, std::move(text));
}

int64_t forced_max_bytes(int32_t num_requests, int64_t max_length) {
  // Masks for more tokens than any vocabulary has; tokens and slots grow by doubling.
  constexpr int64_t kMaskBytes = int64_t{1} << 17;
  constexpr int64_t kStateBytes = 256;
  const auto token = static_cast<int64_t>(sizeof(TokenId));
  return kMaskBytes + num_requests * 2 * (kStateBytes + token * (max_length + kMaxDraftTokens));
}

}  // namespace sluice
