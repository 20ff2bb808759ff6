// SPDX-License-Identifier: Apache-2.0
// Writes JSON by appending to a string: one line, always valid UTF-8 (invalid bytes become U+FFFD),
// no tree in between. The token path writes its events with it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace sluice {

// Appends `text` as a quoted JSON string.
void append_json_string(std::string& out, std::string_view text);

// Appends the shortest form that reads back to the same float; infinities and NaN, which JSON
// lacks, become -9999.
void append_json_float(std::string& out, float value);

// Writes objects and arrays with commas in the right places.
class JsonWriter {
 public:
  explicit JsonWriter(std::string& out) : out_(out) {}

  JsonWriter& open_object() { return open('{'); }

  JsonWriter& close_object() { return close('}'); }

  JsonWriter& open_array() { return open('['); }

  JsonWriter& close_array() { return close(']'); }

  JsonWriter& key(std::string_view name);
  JsonWriter& string(std::string_view value);
  JsonWriter& integer(int64_t value);
  JsonWriter& number(float value);
  JsonWriter& decimal(double value);  // three digits after the point

  JsonWriter& boolean(bool value) { return raw(value ? "true" : "false"); }

  JsonWriter& null() { return raw("null"); }

  JsonWriter& raw(std::string_view json);  // a complete value

 private:
  JsonWriter& open(char bracket);
  JsonWriter& close(char bracket);
  void separate();

  std::string& out_;
  bool needs_comma_ = false;
};

// Returns valid UTF-8 with one U+FFFD for each maximal invalid part.
std::string to_valid_utf8(std::string_view bytes);

}  // namespace sluice
