// SPDX-License-Identifier: Apache-2.0
#include "engine/tokenizer/pipeline/charsmap.h"

#include <algorithm>
#include <cstring>

#include "engine/tokenizer/text/utf8.h"

namespace sluice {
namespace {

constexpr size_t kMaxGraphemeBytes = 5;

// These read the fields of a unit.
bool has_leaf(uint32_t unit) { return ((unit >> 8) & 1) != 0; }

uint32_t value_of(uint32_t unit) { return unit & 0x7FFFFFFFU; }

uint32_t label_of(uint32_t unit) { return unit & 0x800000FFU; }

uint32_t offset_of(uint32_t unit) { return (unit >> 10) << ((unit & 0x200U) >> 6); }

}  // namespace

Expected<Charsmap> Charsmap::parse(std::string_view blob) {
  Charsmap map;
  if (blob.empty()) return map;
  uint32_t trie_bytes = 0;
  if (blob.size() < sizeof(trie_bytes)) {
    return make_error(ErrorCode::kDataLoss, "precompiled charsmap: it is cut off");
  }
  std::memcpy(&trie_bytes, blob.data(), sizeof(trie_bytes));
  blob.remove_prefix(sizeof(trie_bytes));
  if (trie_bytes > blob.size() || trie_bytes % sizeof(uint32_t) != 0) {
    return make_error(ErrorCode::kDataLoss,
                      "precompiled charsmap: its trie has " + std::to_string(trie_bytes) +
                          " bytes and " + std::to_string(blob.size()) + " are there");
  }
  map.units_.resize(trie_bytes / sizeof(uint32_t));
  if (trie_bytes != 0) std::memcpy(map.units_.data(), blob.data(), trie_bytes);
  map.pool_ = blob.substr(trie_bytes);
  for (size_t byte = 1; byte < 256; ++byte) {
    const char c = static_cast<char>(byte);
    map.changes_[byte] = map.find({&c, 1}, /*longest=*/false).length != 0;
  }
  return map;
}

Charsmap::Rule Charsmap::find(std::string_view text, bool longest) const {
  Rule rule;
  if (units_.empty()) return rule;
  size_t node = offset_of(units_[0]);
  for (size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<uint8_t>(text[i]);
    if (byte == 0) break;
    node ^= byte;
    if (node >= units_.size() || label_of(units_[node]) != byte) break;
    const uint32_t unit = units_[node];
    node ^= offset_of(unit);
    if (!has_leaf(unit)) continue;
    if (node >= units_.size()) break;
    const size_t begin = value_of(units_[node]);
    if (begin >= pool_.size()) break;
    const size_t end = std::min(pool_.find('\0', begin), pool_.size());
    rule = {i + 1, std::string_view(pool_).substr(begin, end - begin)};
    if (!longest) break;
  }
  return rule;
}

void Charsmap::append_longest(std::string_view text, std::string& out) const {
  for (size_t position = 0; position < text.size();) {
    const Rule rule = find(text.substr(position), /*longest=*/true);
    if (rule.length != 0) {
      out += rule.replacement;
      position += rule.length;
      continue;
    }
    const size_t length = next_utf8_part(text, position).length;
    out += text.substr(position, length);
    position += length;
  }
}

void Charsmap::append_grapheme(std::string_view grapheme, std::string& out) const {
  if (grapheme.size() <= kMaxGraphemeBytes) {
    const Rule rule = find(grapheme, /*longest=*/false);
    if (rule.length != 0) {
      out += rule.replacement;
      return;
    }
  }
  for (size_t position = 0; position < grapheme.size();) {
    const size_t length = next_utf8_part(grapheme, position).length;
    const std::string_view character = grapheme.substr(position, length);
    const Rule rule = find(character, /*longest=*/false);
    out += rule.length != 0 ? rule.replacement : character;
    position += length;
  }
}

}  // namespace sluice
