// SPDX-License-Identifier: Apache-2.0
#include "server/tools/argument_writer.h"

#include "server/tools/json_text.h"
#include "server/tools/parse_limits.h"

namespace sluice {
void ArgumentWriter::begin_value(std::string_view key, PieceWriter& out) {
  const bool is_first = keys_.empty();
  is_dropped_ = keys_.size() == kMaxParameters || !keys_.insert(std::string(key)).second;
  if (is_dropped_) return;
  std::string json = is_first ? "{\"" : ", \"";
  append_json_escaped(key, json);
  json += "\": ";
  out.arguments(json);
}

void ArgumentWriter::raw(std::string_view json, PieceWriter& out) const {
  if (!is_dropped_) out.arguments(json);
}

void ArgumentWriter::escaped(std::string_view bytes, PieceWriter& out) const {
  if (is_dropped_) return;
  std::string json;
  append_json_escaped(bytes, json);
  out.arguments(json);
}

void ArgumentWriter::end(PieceWriter& out) const { out.arguments(keys_.empty() ? "{}" : "}"); }

}  // namespace sluice
