// SPDX-License-Identifier: Apache-2.0
// The parts of a model's output, for any API: reasoning, content and calls of tools. The pieces of
// a choice, in order, are its answer: an answer that is not streamed is its pieces joined.
//
// Order: a call is one kCallBegin, any number of kArguments and, where the call ended, one
// kCallEnd, with no other kind in between: calls never interleave. Reasoning and content come in
// any order.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace sluice {

enum class PieceKind : uint8_t { kReasoning, kContent, kCallBegin, kArguments, kCallEnd };

struct Piece {
  PieceKind kind = PieceKind::kContent;
  // Which call of the answer, from 0, without gaps; -1 for reasoning and content.
  int32_t call_idx = -1;
  // Reasoning, content, arguments: valid UTF-8, whole characters, not empty. The arguments of a
  // call that ended, joined, are a JSON object where the model wrote one; a model's broken JSON is
  // passed on. kCallBegin: the function's name, not empty. kCallEnd: empty.
  std::string text;
  // kCallBegin: the id that the model itself gave the call ("functions.search:0"), valid UTF-8;
  // empty where the family's models give none, or not before the arguments.
  std::string model_id;

  friend bool operator==(const Piece&, const Piece&) = default;
};

// Pieces are appended; neighbours of one kind and call are joined within one list, so that a token
// adds at most one piece for each change of kind.
using Pieces = std::vector<Piece>;

// Appends text to the last piece if that is of the same kind and call, else as a new one. An empty
// text adds nothing.
void append_text(Pieces& pieces, PieceKind kind, int32_t call_idx, std::string_view text);

}  // namespace sluice
