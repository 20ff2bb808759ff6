// SPDX-License-Identifier: Apache-2.0
#include "server/tools/marker_scanner.h"

#include <algorithm>
#include <utility>

#include "server/tools/parse_limits.h"

namespace sluice {
namespace {

// This bit marks a symbol as text that begins no marker: no marker has a symbol with it.
constexpr Symbol kIsText = 0x8000;

// The first marker that is this symbol alone, or null.
const OutputFormat::Marker* whole_marker(const OutputFormat& format, Symbol symbol) {
  const auto markers = format.markers();
  const auto found =
      std::ranges::find(markers, std::u16string_view(&symbol, 1), &OutputFormat::Marker::symbols);
  return found == markers.end() ? nullptr : &*found;
}

}  // namespace

void MarkerScanner::push(Symbol symbol) {
  if (at_ > kMaxHeldSymbols) held_.erase(0, std::exchange(at_, 0));
  held_ += symbol;
}

void MarkerScanner::put_back(std::u16string_view symbols) {
  held_.replace(0, std::exchange(at_, 0), symbols);
}

void MarkerScanner::put_back_text(std::u16string_view symbols) {
  put_back(symbols);
  for (size_t i = 0; i < symbols.size(); ++i) held_[i] |= kIsText;
}

void MarkerScanner::put_back_text(std::string_view bytes) {
  std::u16string symbols;
  for (const char c : bytes) symbols += static_cast<uint8_t>(c);
  put_back_text(symbols);
}

bool MarkerScanner::holds_beginning_of(Roles roles) const {
  const OutputFormat::Found found = format_->find(held(), roles);
  return found.may_grow || (found.marker != nullptr && found.marker->symbols == held());
}

void MarkerScanner::drop_held() {
  held_.clear();
  at_ = 0;
}

void MarkerScanner::read(size_t num_symbols) {
  at_ += num_symbols;
  if (at_ == held_.size()) drop_held();
}

std::optional<bool> MarkerScanner::is_text(const OutputFormat::Marker& marker,
                                           const ValueState& value,
                                           bool is_whole) {
  if (value.place == ValuePlace::kNone) return false;
  if (!value_end_) value_end_.emplace(value, marker.role, marker.symbols.size());
  const ValueEnd::Verdict verdict = value_end_->read(*format_, held(), is_whole);
  if (verdict == ValueEnd::Verdict::kUndecided) return std::nullopt;
  value_end_.reset();
  return verdict == ValueEnd::Verdict::kText;
}

std::optional<ScanEvent> MarkerScanner::next(Roles live, const ValueState& value, bool at_end) {
  while (!held().empty()) {
    const auto first = static_cast<Symbol>(held().front() & ~kIsText);
    const bool is_marked_text = held().front() != first;
    OutputFormat::Found at_front;
    if (!is_marked_text) at_front = format_->find(held(), live);
    if (at_front.may_grow && !at_end) return std::nullopt;
    const OutputFormat::Marker* found = at_front.marker;
    if (found == nullptr && first >= kFirstSpecial && !is_marked_text) {
      found = whole_marker(*format_, first);  // it counts everywhere
    }
    if (found != nullptr) {
      const std::optional<bool> is_value = is_text(*found, value, at_end || is_over_);
      if (!is_value) return std::nullopt;
      read(found->symbols.size());
      if (!*is_value) return ScanEvent{.kind = ScanEvent::Kind::kMarker, .marker = found};
      put_back_text(found->text);
      continue;
    }
    read(1);
    if (first < kFirstSpecial) {
      return ScanEvent{.kind = ScanEvent::Kind::kByte, .byte = static_cast<char>(first)};
    }
    const std::string_view name = format_->text_of(first);
    if (is_marked_text || value.place == ValuePlace::kNone) {
      return ScanEvent{.kind = ScanEvent::Kind::kSpecial, .name = name};
    }
    put_back_text(name);  // a part of no whole marker
  }
  return std::nullopt;
}

}  // namespace sluice
