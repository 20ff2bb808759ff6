// SPDX-License-Identifier: Apache-2.0
#include "server/api/answer_parts.h"

namespace sluice {

void add_piece(AnswerParts& parts, const Piece& piece) {
  switch (piece.kind) {
    case PieceKind::kReasoning:
    case PieceKind::kContent:
      if (parts.empty() || parts.back().kind != piece.kind)
        parts.push_back({piece.kind, {}, {}, {}});
      parts.back().text += piece.text;
      break;
    case PieceKind::kCallBegin:
      parts.push_back({PieceKind::kCallBegin, {}, piece.text, piece.model_id});
      break;
    case PieceKind::kArguments:
      parts.back().text += piece.text;
      break;
    case PieceKind::kCallEnd:
      parts.back().has_ended = true;
      break;
  }
}

std::string joined_text(const AnswerParts& parts, PieceKind kind) {
  std::string text;
  for (const AnswerPart& part : parts) {
    if (part.kind == kind) text += part.text;
  }
  return text;
}

}  // namespace sluice
