// SPDX-License-Identifier: Apache-2.0
#include "server/tools/pieces.h"

namespace sluice {

void append_text(Pieces& pieces, PieceKind kind, int32_t call_idx, std::string_view text) {
  if (text.empty()) return;
  if (pieces.empty() || pieces.back().kind != kind || pieces.back().call_idx != call_idx) {
    pieces.push_back({kind, call_idx, std::string(text), {}});
  } else {
    pieces.back().text += text;
  }
}

}  // namespace sluice
