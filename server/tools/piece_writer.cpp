// SPDX-License-Identifier: Apache-2.0
#include "server/tools/piece_writer.h"

#include "engine/tokenizer/text/utf8.h"
#include "server/tools/parse_limits.h"

namespace sluice {
namespace {

bool is_hex(char c) {
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
}

// The length of the escape sequence of JSON at the front of `text`, which begins with a backslash,
// with its second half where it is a surrogate pair; 0: it is not whole yet. A stray backslash is a
// unit of its own.
size_t escape_length(std::string_view text) {
  if (text.size() < 2) return 0;
  if (text[1] != 'u') return is_ascii(text[1]) ? 2 : 1;
  for (size_t i = 2; i < 6; ++i) {
    if (i >= text.size()) return 0;
    if (!is_hex(text[i])) return 2;
  }
  const bool is_high = (text[2] == 'd' || text[2] == 'D') &&
                       std::string_view("89abAB").find(text[3]) != std::string_view::npos;
  if (!is_high) return 6;
  for (size_t i = 6; i < 12; ++i) {
    if (i >= text.size()) return 0;
    const bool fits = i == 6 ? text[i] == '\\' : i == 7 ? text[i] == 'u' : is_hex(text[i]);
    if (!fits) return 6;
  }
  return 12;
}

// Appends `bytes`, with U+FFFD for invalid ones.
void append_valid(std::string_view bytes, std::string& out) {
  for (size_t at = 0; at < bytes.size();) {
    const Utf8Part part = next_utf8_part(bytes, at);
    out +=
        part.kind == Utf8Kind::kCharacter ? bytes.substr(at, part.length) : kReplacementCharacter;
    at += part.length;
  }
}

}  // namespace

void append_text(Pieces& pieces, PieceKind kind, int32_t call_idx, std::string_view text) {
  if (text.empty()) return;
  if (pieces.empty() || pieces.back().kind != kind || pieces.back().call_idx != call_idx) {
    pieces.push_back({kind, call_idx, std::string(text), {}});
  } else {
    pieces.back().text += text;
  }
}

void PieceWriter::append(PieceKind kind, std::string_view bytes) {
  if (kind != kind_) {
    flush();
    kind_ = kind;
  }
  if (held_.empty() && bytes.size() == 1 && is_ascii(bytes[0]) && bytes[0] != '\\') {
    append_text(*pieces_, kind, kind == PieceKind::kArguments ? num_begun_ - 1 : -1, bytes);
    return;
  }
  held_ += bytes;
  std::string ready;
  size_t at = 0;
  while (at < held_.size()) {
    const std::string_view rest = std::string_view(held_).substr(at);
    if (kind == PieceKind::kArguments && rest[0] == '\\') {
      const size_t length = escape_length(rest);
      if (length == 0) break;
      ready += rest.substr(0, length);
      at += length;
      continue;
    }
    const Utf8Part part = next_utf8_part(held_, at);
    if (part.kind == Utf8Kind::kTruncated) break;
    ready +=
        part.kind == Utf8Kind::kCharacter ? rest.substr(0, part.length) : kReplacementCharacter;
    at += part.length;
  }
  held_.erase(0, at);
  append_text(*pieces_, kind, kind == PieceKind::kArguments ? num_begun_ - 1 : -1, ready);
}

void PieceWriter::flush() {
  std::string ready;
  append_valid(held_, ready);
  held_.clear();
  append_text(*pieces_, kind_, kind_ == PieceKind::kArguments ? num_begun_ - 1 : -1, ready);
}

void PieceWriter::text(PieceKind kind, std::string_view bytes) {
  if (!bytes.empty()) append(kind, bytes);
}

bool PieceWriter::begin_call(std::string_view name, std::string_view model_id) {
  if (num_begun_ == kMaxCalls) return false;
  flush();
  Piece piece{PieceKind::kCallBegin, num_begun_, {}, {}};
  append_valid(name, piece.text);
  append_valid(model_id, piece.model_id);
  pieces_->push_back(std::move(piece));
  ++num_begun_;
  call_is_open_ = true;
  arguments_ = JsonSpan();
  return true;
}

void PieceWriter::arguments(std::string_view bytes) {
  const auto is_raw = [](char c) { return static_cast<uint8_t>(c) < 0x20; };
  size_t begin = 0;
  for (size_t i = 0; i < bytes.size(); ++i) {
    const bool was_escaped = arguments_.is_escaped();
    (void)arguments_.feed(bytes[i]);
    if (!is_raw(bytes[i]) || !arguments_.in_string()) continue;
    if (i > begin) append(PieceKind::kArguments, bytes.substr(begin, i - begin));
    std::string escaped;
    append_json_escaped(bytes.substr(i, 1), escaped);
    // The model's own backslash begins the escape.
    append(PieceKind::kArguments, std::string_view(escaped).substr(was_escaped ? 1 : 0));
    begin = i + 1;
  }
  if (begin < bytes.size()) append(PieceKind::kArguments, bytes.substr(begin));
}

void PieceWriter::end_call() {
  flush();
  pieces_->push_back({PieceKind::kCallEnd, num_begun_ - 1, {}, {}});
  call_is_open_ = false;
}

}  // namespace sluice
