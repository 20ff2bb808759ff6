// SPDX-License-Identifier: Apache-2.0
// Turns bytes into pieces: holds back an incomplete character or escape sequence of arguments, and
// numbers the calls. Used by OutputParser and its readers; a value.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "server/tools/json_text.h"
#include "server/tools/pieces.h"

namespace sluice {

class PieceWriter {
 public:
  // Where pieces go until the next call; not owned.
  void write_to(Pieces* pieces) { pieces_ = pieces; }

  // `kind`: reasoning or content. No call is open.
  void text(PieceKind kind, std::string_view bytes);

  // False: the answer has kMaxCalls calls, and nothing was written. The name is not empty; no call
  // is open.
  [[nodiscard]] bool begin_call(std::string_view name, std::string_view model_id);
  // JSON of the open call; a control character inside a string is escaped.
  void arguments(std::string_view bytes);
  void end_call();

  // Writes what is held back; invalid bytes become U+FFFD.
  void flush();

  [[nodiscard]] bool call_is_open() const { return call_is_open_; }

  [[nodiscard]] int32_t num_begun() const { return num_begun_; }

  [[nodiscard]] int32_t num_closed() const { return num_begun_ - (call_is_open_ ? 1 : 0); }

 private:
  void append(PieceKind kind, std::string_view bytes);

  Pieces* pieces_ = nullptr;
  PieceKind kind_ = PieceKind::kContent;  // of `held_`
  JsonSpan arguments_;                    // of the open call
  std::string held_;                      // less than a character or than a pair of escapes
  int32_t num_begun_ = 0;
  bool call_is_open_ = false;
};

}  // namespace sluice
