// SPDX-License-Identifier: Apache-2.0
#include "engine/tokenizer/pipeline/pretokenizer.h"

#include <algorithm>
#include <utility>

#include "engine/tokenizer/text/byte_level.h"
#include "engine/tokenizer/text/utf8.h"

namespace sluice {
namespace {

using Scratch = Pretokenizer::Scratch;

bool find_next(const SplitStage& stage,
               std::string_view text,
               size_t from,
               Scratch& scratch,
               Regex::Range& found) {
  if (const auto* regex = std::get_if<Regex>(&stage.pattern)) {
    return regex->find(text, from, scratch.scanner, found);
  }
  const std::string& literal = std::get<std::string>(stage.pattern);
  if (literal.empty()) return false;
  const size_t begin = text.find(literal, from);
  if (begin == std::string_view::npos) return false;
  found = {begin, begin + literal.size()};
  return true;
}

// The common case: matches and the parts between them each become a piece.
void isolate(const SplitStage& stage, std::string_view text, Scratch& scratch) {
  Regex::Range found;
  size_t position = 0;
  while (position < text.size() && find_next(stage, text, position, scratch, found)) {
    if (found.begin > position) {
      scratch.pieces.push_back(text.substr(position, found.begin - position));
    }
    scratch.pieces.push_back(text.substr(found.begin, found.end - found.begin));
    position = found.end;
  }
  if (position < text.size()) scratch.pieces.push_back(text.substr(position));
}

struct Part {
  std::string_view text;
  bool is_match = false;
};

// Whether a part joins the previous piece instead of starting one. `previous` is the part before.
bool joins_previous(SplitBehavior behavior, const Part& part, const Part& previous) {
  switch (behavior) {
    case SplitBehavior::kMergedWithPrevious:
      return part.is_match && !previous.is_match;
    case SplitBehavior::kMergedWithNext:
      return !part.is_match && previous.is_match;
    case SplitBehavior::kContiguous:
      return part.is_match == previous.is_match;
    default:
      return false;
  }
}

void split_piece(const SplitStage& stage, std::string_view text, Scratch& scratch) {
  Regex::Range found;
  Part previous;
  const auto add = [&](size_t begin, size_t end, bool is_match) {
    if (begin == end) return;
    const Part part{text.substr(begin, end - begin), is_match != stage.invert};
    if (!previous.text.empty() && joins_previous(stage.behavior, part, previous)) {
      std::string_view& last = scratch.pieces.back();
      last = {last.data(), last.size() + part.text.size()};
    } else if (stage.behavior != SplitBehavior::kRemoved || !part.is_match) {
      scratch.pieces.push_back(part.text);
    }
    previous = part;
  };
  size_t position = 0;
  while (position < text.size() && find_next(stage, text, position, scratch, found)) {
    add(position, found.begin, false);
    add(found.begin, found.end, true);
    position = found.end;
  }
  add(position, text.size(), false);
}

void apply(const SplitStage& stage, Scratch& scratch) {
  const bool plain = stage.behavior == SplitBehavior::kIsolated;  // all are pieces, inverted or not
  for (const std::string_view piece : scratch.coarse) {
    if (plain) {
      isolate(stage, piece, scratch);
    } else {
      split_piece(stage, piece, scratch);
    }
  }
  scratch.first_at_start = scratch.first_at_start && !scratch.pieces.empty() &&
                           scratch.pieces.front().data() == scratch.coarse.front().data();
}

void apply(const PrefixSpaceStage& /*stage*/, Scratch& scratch) {
  for (const std::string_view piece : scratch.coarse) {
    scratch.pieces.push_back(piece.starts_with(' ') ? piece : scratch.arena.store(" ", piece));
  }
}

void apply(const MetaspaceStage& stage, Scratch& scratch) {
  const SplitStage at_replacement{stage.replacement, SplitBehavior::kMergedWithNext};
  std::string replaced;
  for (size_t i = 0; i < scratch.coarse.size(); ++i) {
    std::string_view text = scratch.coarse[i];
    if (text.find(' ') != std::string_view::npos) {
      replaced = replace_all(text, " ", stage.replacement);
      text = replaced;
    }
    const bool prepends =
        stage.prepend == MetaspaceStage::Prepend::kAlways ||
        (stage.prepend == MetaspaceStage::Prepend::kFirst && i == 0 && scratch.first_at_start);
    const bool missing = prepends && !text.starts_with(stage.replacement);
    const std::string_view stored =
        scratch.arena.store(missing ? std::string_view(stage.replacement) : "", text);
    if (stage.split) {
      split_piece(at_replacement, stored, scratch);
    } else {
      scratch.pieces.push_back(stored);
    }
  }
}

void apply(const SpellBytesStage& /*stage*/, Scratch& scratch) {
  std::string spelled;
  for (const std::string_view piece : scratch.coarse) {
    spelled.clear();
    for (const char c : piece) spelled += spell_byte(static_cast<uint8_t>(c));
    scratch.pieces.push_back(scratch.arena.store(spelled));
  }
}

void unspell(Scratch& scratch) {
  for (std::string_view& piece : scratch.pieces) {
    // Stages only cut between characters, so the alphabet is intact.
    if (const auto bytes = unspell_bytes(piece)) piece = scratch.arena.store(*bytes);
  }
}

}  // namespace

void Pretokenizer::split(std::string_view text, bool at_start, Scratch& scratch) const {
  scratch.pieces.clear();
  scratch.first_at_start = at_start;
  if (text.empty()) return;
  scratch.pieces.push_back(text);
  bool is_spelled = false;
  for (const PretokenizerStage& stage : stages_) {
    scratch.coarse.swap(scratch.pieces);
    scratch.pieces.clear();
    if (scratch.coarse.empty()) return;
    std::visit([&](const auto& kind) { apply(kind, scratch); }, stage);
    is_spelled |= std::holds_alternative<SpellBytesStage>(stage);
  }
  if (is_spelled && !stays_spelled_) unspell(scratch);
}

}  // namespace sluice
