// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <nlohmann/json.hpp>
#include <utility>

#include "engine/core/log.h"
#include "engine/tokenizer/files/json_parts.h"

namespace sluice {

using Json = nlohmann::json;

tl::unexpected<Error> json_error(std::string_view where, const std::string& what) {
  // `where` is a part of tokenizer.json, or a file beside it.
  const std::string file = where.ends_with(".json") ? "" : "tokenizer.json: ";
  return make_error(ErrorCode::kDataLoss, file + std::string(where) + ": " + what);
}

tl::unexpected<Error> json_unsupported(std::string_view where,
                                       std::string_view found,
                                       std::string_view supported) {
  return make_error(ErrorCode::kUnsupported,
                    "tokenizer.json: " + std::string(where) + " \"" +
                        std::string(found.substr(0, 64)) +
                        "\" is not supported; supported: " + std::string(supported));
}

Expected<Json> json_object_in(const std::string& text, const char* file) {
  if (text.empty()) return Json::object();
  if (is_deeper_json(text, kMaxFileLevels)) return json_error(file, "values are nested too deep");
  Json json = Json::parse(json_without_nan(text, file), nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return json_error(file, "it is no JSON object");
  return json;
}

const Json* json_field(const Json& object, std::string_view key) {
  if (!object.is_object()) return nullptr;
  const auto at = object.find(key);
  return at == object.end() || at->is_null() ? nullptr : &*at;
}

const Json* text_config_of(const Json& config) {
  for (const char* name : kTextConfigs) {
    const Json* const nested = json_field(config, name);
    if (nested != nullptr) return nested->is_object() ? nested : nullptr;
  }
  return nullptr;
}

Expected<std::string> json_string(const Json& object,
                                  std::string_view key,
                                  std::string_view where) {
  const Json* field = json_field(object, key);
  if (field == nullptr || !field->is_string()) {
    return json_error(where, "\"" + std::string(key) + "\" has to be a string");
  }
  return field->get<std::string>();
}

Expected<std::string> json_string_or(const Json& object,
                                     std::string_view key,
                                     std::string_view where,
                                     std::string fallback) {
  if (json_field(object, key) == nullptr) return fallback;
  return json_string(object, key, where);
}

Expected<bool> json_bool_or(const Json& object,
                            std::string_view key,
                            std::string_view where,
                            bool fallback) {
  const Json* field = json_field(object, key);
  if (field == nullptr) return fallback;
  if (!field->is_boolean()) {
    return json_error(where, "\"" + std::string(key) + "\" has to be true or false");
  }
  return field->get<bool>();
}

Expected<int64_t> json_integer_or(const Json& object,
                                  std::string_view key,
                                  std::string_view where,
                                  int64_t fallback) {
  const Json* field = json_field(object, key);
  if (field == nullptr) return fallback;
  if (!field->is_number_integer()) {
    return json_error(where, "\"" + std::string(key) + "\" has to be an integer");
  }
  return field->get<int64_t>();
}

std::optional<int64_t> json_whole_number(const Json& value) {
  constexpr double kExact = 9007199254740992;  // 2^53
  if (value.is_number_unsigned() && value.get<uint64_t>() > INT64_MAX) return std::nullopt;
  if (value.is_number_integer()) return value.get<int64_t>();
  if (!value.is_number_float()) return std::nullopt;
  const auto number = value.get<double>();
  if (!(std::fabs(number) <= kExact) || number != std::floor(number)) return std::nullopt;
  return static_cast<int64_t>(number);
}

bool is_deeper_json(std::string_view text, int levels) {
  int level = 0;
  bool is_string = false;
  for (size_t at = 0; at < text.size(); ++at) {
    const char c = text[at];
    if (is_string && c == '\\') {
      ++at;
    } else if (c == '"') {
      is_string = !is_string;
    } else if (!is_string && (c == '{' || c == '[')) {
      if (++level > levels) return true;
    } else if (!is_string && (c == '}' || c == ']')) {
      --level;
    }
  }
  return false;
}

std::string json_without_nan(std::string_view text, std::string_view file) {
  constexpr size_t kMaxShown = 60;  // characters of a key in a warning
  std::string result;
  result.reserve(text.size());
  std::string_view last_string;  // the key, if a number is a member's value
  bool has_warned = file.empty();
  for (size_t at = 0; at < text.size();) {
    if (text[at] == '"') {
      size_t end = at + 1;
      while (end < text.size() && text[end] != '"') end += text[end] == '\\' ? 2 : 1;
      end = std::min(end + 1, text.size());
      last_string = text.substr(at, end - at);
      result += last_string;
      at = end;
      continue;
    }
    std::string_view number;
    for (const std::string_view name : {"NaN", "Infinity", "-Infinity"}) {
      if (text.substr(at).starts_with(name)) number = name;
    }
    if (number.empty()) {
      result += text[at++];
      continue;
    }
    if (!has_warned) warn_of_file(file, last_string.substr(0, kMaxShown), number, "null");
    has_warned = true;
    result += "null";
    at += number.size();
  }
  return result;
}

double score_as_written(double score) {
  constexpr int kMaxPower = 308;  // power of ten in a double
  std::array<char, 64> buffer{};
  const auto end = std::to_chars(buffer.data(),
                                 buffer.data() + buffer.size(),
                                 std::fabs(score),
                                 std::chars_format::scientific);
  if (end.ec != std::errc{} || !std::isfinite(score)) return score;
  uint64_t significand = 0;
  int exponent = 0;
  const char* at = buffer.data();
  for (bool fraction = false; at != end.ptr && *at != 'e'; ++at) {
    if (*at == '.') {
      fraction = true;
      continue;
    }
    significand = significand * 10 + static_cast<uint64_t>(*at - '0');
    exponent -= fraction ? 1 : 0;
  }
  int written = 0;
  const bool plus = at != end.ptr && at + 1 != end.ptr && at[1] == '+';
  std::from_chars(at + (plus ? 2 : 1), end.ptr, written);
  exponent += written;
  if (std::abs(exponent) > kMaxPower) return score;
  // Computes a correctly rounded power of ten below 309.
  std::array<char, 8> power_text{};
  std::snprintf(power_text.data(), power_text.size(), "1e%d", std::abs(exponent));
  double power = 1;
  std::from_chars(power_text.data(), power_text.data() + std::strlen(power_text.data()), power);
  const auto digits = static_cast<double>(significand);
  return std::copysign(exponent < 0 ? digits / power : digits * power, score);
}

}  // namespace sluice
