// SPDX-License-Identifier: Apache-2.0
// An answer as whole parts, for what is told of it at once: the pieces of a choice, joined. Any one
// thread at a time.
#pragma once

#include <string>
#include <vector>

#include "server/parse/pieces.h"

namespace sluice {

struct AnswerPart {
  PieceKind kind = PieceKind::kContent;  // kReasoning, kContent, or kCallBegin for a call
  std::string text;                      // of a call: its arguments
  std::string name;                      // of a call: the function's
  std::string id;                        // of a call: the client's name for it; its owner sets it
  bool has_ended = false;                // of a call: it is complete
};

// In the order of the answer; neighbours differ in kind, or are calls.
using AnswerParts = std::vector<AnswerPart>;

// Pieces come in the order of their choice.
void add_piece(AnswerParts& parts, const Piece& piece);

// All parts of a kind, joined.
std::string joined_text(const AnswerParts& parts, PieceKind kind);

}  // namespace sluice
