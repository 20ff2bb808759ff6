// SPDX-License-Identifier: Apache-2.0
// Cuts text into the pieces inside which tokens may form: stages as tokenizer.json names them, each
// applied to the pieces of the previous one.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "engine/core/status.h"
#include "engine/tokenizer/tables/text_arena.h"
#include "engine/tokenizer/text/regex.h"

namespace sluice {

// The treatment of the matches of a Split.
enum class SplitBehavior : uint8_t {
  kRemoved,
  kIsolated,
  kMergedWithPrevious,
  kMergedWithNext,
  kContiguous,  // neighbouring matches are one piece
};

struct SplitStage {
  std::variant<Regex, std::string> pattern;  // a string is matched literally
  SplitBehavior behavior = SplitBehavior::kIsolated;
  bool invert = false;  // the parts between matches count as matches
};

// Puts a space before every piece without one (ByteLevel's add_prefix_space).
struct PrefixSpaceStage {};

// SentencePiece's spaces: each becomes `replacement`, one is put in front, and pieces begin with
// it.
struct MetaspaceStage {
  enum class Prepend : uint8_t { kNever, kFirst, kAlways };

  std::string replacement;
  Prepend prepend = Prepend::kAlways;
  bool split = true;
};

// Replaces bytes by their spelling (byte_level.h) for later stages; undone at the end if the model
// needs bytes.
struct SpellBytesStage {};

using PretokenizerStage =
    std::variant<SplitStage, PrefixSpaceStage, MetaspaceStage, SpellBytesStage>;

class Pretokenizer {
 public:
  // `stays_spelled`: the model gets the spelling of SpellBytesStage.
  explicit Pretokenizer(std::vector<PretokenizerStage> stages, bool stays_spelled = false)
      : stages_(std::move(stages)), stays_spelled_(stays_spelled) {}

  // Working memory of split(), reused for many texts by one thread. Pieces point into the split
  // text or into `arena`.
  struct Scratch {
    std::vector<std::string_view> pieces;
    std::vector<std::string_view> coarse;
    Regex::Scanner scanner;
    TextArena arena;
    bool first_at_start = false;  // pieces[0] begins the whole input
  };

  // Leaves the pieces of `text` (valid UTF-8) in scratch.pieces; `at_start`: the input begins here.
  // With the expressions of published models, time is linear.
  void split(std::string_view text, bool at_start, Scratch& scratch) const;

 private:
  std::vector<PretokenizerStage> stages_;
  bool stays_spelled_;
};

}  // namespace sluice
