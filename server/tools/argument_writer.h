// SPDX-License-Identifier: Apache-2.0
// Writes a call's arguments as JSON while they are read, for families whose models do not write
// JSON. Python's spacing: {"a": 1, "b": "x"}. Strings are written as they arrive. A value.
#pragma once

#include <string>
#include <string_view>
#include <unordered_set>

#include "server/tools/piece_writer.h"

namespace sluice {

class ArgumentWriter {
 public:
  // Begins a parameter. A repeated name's value is dropped: the first was sent already.
  void begin_value(std::string_view key, PieceWriter& out);

  // JSON of the parameter's value.
  void raw(std::string_view json, PieceWriter& out) const;
  // Content of a string whose quotes are written with raw().
  void escaped(std::string_view bytes, PieceWriter& out) const;

  // The end of the arguments: {} where there were none.
  void end(PieceWriter& out) const;

 private:
  std::unordered_set<std::string> keys_;
  bool is_dropped_ = false;
};

}  // namespace sluice
