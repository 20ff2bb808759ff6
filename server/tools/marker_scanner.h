// SPDX-License-Identifier: Apache-2.0
// First pass of OutputParser: symbols of an output to events: a byte of text, a marker, a special
// token that is none. A marker that is spread over tokens is held until it is whole or has become
// text. What was read as part of a call and is none is put back, and comes again. A value.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "server/tools/output_format.h"
#include "server/tools/value_end.h"

namespace sluice {

struct ScanEvent {
  enum class Kind : uint8_t { kByte, kMarker, kSpecial };
  Kind kind;
  char byte = 0;                                 // kByte
  const OutputFormat::Marker* marker = nullptr;  // kMarker
  std::string_view name = {};                    // kSpecial: the token's text
};

class MarkerScanner {
 public:
  // `format` outlives the scanner's use and may be null if nothing is pushed.
  explicit MarkerScanner(const OutputFormat* format) : format_(format) {}

  void push(Symbol symbol);

  // No further symbol will be pushed.
  void finish() { is_over_ = true; }

  // The next event; nullopt: all is read, or the next one depends on symbols that have not been
  // pushed. `live`: the roles that count here (a marker that is one special token always does);
  // `value`: the value of a call that is being read, whose text may spell markers; `at_end`: what
  // is held is whole.
  std::optional<ScanEvent> next(Roles live, const ValueState& value, bool at_end);

  // These symbols come next, as if they had just been pushed.
  void put_back(std::u16string_view symbols);
  // They come next as text: no marker is looked for in them.
  void put_back_text(std::u16string_view symbols);
  void put_back_text(std::string_view bytes);

  // Pushed and not read yet.
  [[nodiscard]] std::u16string_view held() const { return std::u16string_view(held_).substr(at_); }

  // What is held begins a marker with one of the roles.
  [[nodiscard]] bool holds_beginning_of(Roles roles) const;

  void drop_held();

 private:
  // Whether `marker`, at the front and inside of a value, is text of it; nullopt: it depends on
  // what follows.
  std::optional<bool> is_text(const OutputFormat::Marker& marker,
                              const ValueState& value,
                              bool is_whole);
  void read(size_t num_symbols);

  const OutputFormat* format_;
  std::u16string held_;
  size_t at_ = 0;                      // where what is not read begins
  std::optional<ValueEnd> value_end_;  // of the marker at the front
  bool is_over_ = false;
};

}  // namespace sluice
