// SPDX-License-Identifier: Apache-2.0
// An answer as whole parts, for answers that are sent at once: the pieces of a choice, joined. One
// thread at a time.
#pragma once

#include <string>
#include <vector>

#include "server/tools/pieces.h"

namespace sluice {

struct AnswerPart {
  PieceKind kind = PieceKind::kContent;  // kReasoning, kContent, or kCallBegin for a call
  std::string text;                      // content, or a call's arguments
  std::string name;                      // a call's function
  std::string id;                        // the client's name for a call; set by the owner
  bool has_ended = false;                // a call is complete
};

// Parts in the order of the answer; neighbours differ in kind, or are calls.
using AnswerParts = std::vector<AnswerPart>;

// Adds the next piece of the choice.
void add_piece(AnswerParts& parts, const Piece& piece);

// Returns all parts of a kind, joined.
std::string joined_text(const AnswerParts& parts, PieceKind kind);

}  // namespace sluice
