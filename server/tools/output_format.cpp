// SPDX-License-Identifier: Apache-2.0
#include "server/tools/output_format.h"

#include <algorithm>

namespace sluice {

OutputFormat::OutputFormat(const CallFamily* calls,
                           const ReasoningFamily* reasoning,
                           const Tokenizer& tokenizer)
    : calls_(calls), reasoning_(reasoning) {
  const auto add = [&](const Markers& markers) {
    for (const MarkerText& marker : markers) {
      markers_.push_back({marker.role, to_symbols(marker.text, tokenizer), marker.text});
      const Symbol first = markers_.back().symbols[0];
      if (first < kFirstSpecial) begun_by_[first] |= roles(marker.role);
    }
  };
  if (reasoning != nullptr) add(reasoning->markers);
  if (calls != nullptr) add(calls->markers);
}

// Special tokens inside a marker, the longest that begin first; the rest is bytes.
std::u16string OutputFormat::to_symbols(std::string_view text, const Tokenizer& tokenizer) {
  std::u16string symbols;
  for (size_t begin = 0; begin < text.size();) {
    size_t length = text.size() - begin;
    TokenId token = kInvalidToken;
    for (; length > 1; --length) {
      token = tokenizer.find_token(text.substr(begin, length));
      if (token != kInvalidToken && tokenizer.is_special(token)) break;
    }
    if (length <= 1) {
      symbols += static_cast<uint8_t>(text[begin++]);
      continue;
    }
    Symbol symbol = symbol_of(token);
    if (symbol == 0) {
      symbol = static_cast<Symbol>(kFirstSpecial + specials_.size());
      specials_.emplace_back(token, text.substr(begin, length));
    }
    symbols += symbol;
    begin += length;
  }
  return symbols;
}

OutputFormat::Found OutputFormat::find(std::u16string_view symbols, Roles roles) const {
  Found found;
  for (const Marker& marker : markers_) {
    if (!contains(roles, marker.role)) continue;
    if (!symbols.starts_with(marker.symbols)) {
      found.may_grow |= marker.symbols.starts_with(symbols);
    } else if (found.marker == nullptr || marker.symbols.size() > found.marker->symbols.size()) {
      found.marker = &marker;
    }
  }
  return found;
}

Symbol OutputFormat::symbol_of(TokenId token) const {
  const auto found = std::find_if(specials_.begin(), specials_.end(), [&](const auto& special) {
    return special.first == token;
  });
  if (found == specials_.end()) return 0;
  return static_cast<Symbol>(kFirstSpecial + (found - specials_.begin()));
}

std::string_view OutputFormat::text_of(Symbol special) const {
  return specials_[special - kFirstSpecial].second;
}

}  // namespace sluice
