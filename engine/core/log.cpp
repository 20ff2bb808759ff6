// SPDX-License-Identifier: Apache-2.0
#include "engine/core/log.h"

#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <memory>

namespace sluice {
namespace {

// Times are RFC 3339 in UTC: lines of several hosts sort. The JSON object is closed here, after the
// pairs.
constexpr const char* kTextPattern = "%Y-%m-%dT%H:%M:%S.%eZ %^%L%$ %v";
constexpr const char* kJsonPattern = R"({"time":"%Y-%m-%dT%H:%M:%S.%eZ","level":"%l",%v})";

spdlog::level::level_enum to_spdlog(LogLevel level) {
  switch (level) {
    case LogLevel::kTrace:
      return spdlog::level::trace;
    case LogLevel::kDebug:
      return spdlog::level::debug;
    case LogLevel::kInfo:
      return spdlog::level::info;
    case LogLevel::kWarning:
      return spdlog::level::warn;
    case LogLevel::kError:
      return spdlog::level::err;
  }
  return spdlog::level::info;
}

spdlog::logger& logger() {
  static const std::shared_ptr<spdlog::logger> instance = [] {  // spdlog's registry owns it too
    auto made = spdlog::stderr_color_mt("sluice");
    made->set_pattern(kTextPattern, spdlog::pattern_time_type::utc);
    return made;
  }();
  return *instance;
}

// Returns the length in bytes of a valid UTF-8 character at `at`, or 0.
size_t character_bytes(std::string_view text, size_t at) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[at + i]); };
  const unsigned lead = byte(0);
  const size_t length = lead < 0x80                   ? 1
                        : lead >= 0xC2 && lead < 0xE0 ? 2
                        : lead >= 0xE0 && lead < 0xF0 ? 3
                        : lead >= 0xF0 && lead < 0xF5 ? 4
                                                      : 0;
  if (length == 0 || at + length > text.size()) return 0;
  for (size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return 0;
  }
  const bool is_overlong = (lead == 0xE0 && byte(1) < 0xA0) || (lead == 0xF0 && byte(1) < 0x90);
  const bool is_outside = (lead == 0xED && byte(1) > 0x9F) || (lead == 0xF4 && byte(1) > 0x8F);
  return is_overlong || is_outside ? 0 : length;
}

void append_json_text(std::string& out, std::string_view text) {
  out += '"';
  for (size_t at = 0; at < text.size();) {
    const size_t length = character_bytes(text, at);
    const char c = text[at];
    if (length == 0 || static_cast<unsigned char>(c) < 0x20) {
      char escape[8];
      std::snprintf(escape, sizeof escape, "\\u%04x", length == 0 ? 0xFFFD : c);
      out += escape;
    } else {
      if (c == '"' || c == '\\') out += '\\';
      out += text.substr(at, length);
    }
    at += std::max<size_t>(length, 1);
  }
  out += '"';
}

// Tells whether the character changes the order or the lines in which others are shown: U+061C,
// U+200E, U+200F, U+2028 to U+202E, U+2066 to U+2069.
bool reorders(std::string_view character) {
  if (character == "\u061C" || character == "\u200E" || character == "\u200F") return true;
  return character.size() == 3 && ((character >= "\u2028" && character <= "\u202E") ||
                                   (character >= "\u2066" && character <= "\u2069"));
}

// Returns the text with a space for each control character, so that one event stays one line, reads
// in its order and no terminal obeys it, and with U+FFFD for each byte that is not UTF-8.
std::string printable(std::string_view text) {
  std::string out;
  for (size_t at = 0; at < text.size();) {
    const size_t length = character_bytes(text, at);
    const auto lead = static_cast<unsigned char>(text[at]);
    const bool is_c1 =
        length == 2 && lead == 0xC2 && static_cast<unsigned char>(text[at + 1]) < 0xA0;
    if (length == 0) {
      out += "\uFFFD";
    } else if (lead < 0x20 || lead == 0x7F || is_c1 || reorders(text.substr(at, length))) {
      out += ' ';
    } else {
      out += text.substr(at, length);
    }
    at += std::max<size_t>(length, 1);
  }
  return out;
}

bool g_json = false;  // written at start-up

}  // namespace

void init_log(LogLevel level, LogFormat format) {
  g_json = format == LogFormat::kJson;
  logger().set_level(to_spdlog(level));
  logger().set_pattern(g_json ? kJsonPattern : kTextPattern, spdlog::pattern_time_type::utc);
}

bool log_is_json() { return g_json; }

bool log_enabled(LogLevel level) { return logger().should_log(to_spdlog(level)); }

LogLine::LogLine(LogLevel level, std::string_view event) : level_(level) {
  if (!g_json) {
    text_ = event;
    return;
  }
  text_ = "\"event\":";
  append_json_text(text_, event);
}

LogLine& LogLine::add_plain(std::string_view key, std::string_view value) {
  if (g_json) {
    text_ += ',';
    append_json_text(text_, key);
    text_.append(":").append(value);
  } else {
    text_.append(" ").append(key).append("=").append(value);
  }
  return *this;
}

LogLine& LogLine::add(std::string_view key, std::string_view value) {
  if (g_json) {
    text_ += ',';
    append_json_text(text_, key);
    text_ += ':';
    append_json_text(text_, value);
    return *this;
  }
  text_.append(" ").append(key).append("=");
  const std::string shown = printable(value);
  if (!shown.empty() && shown.find_first_of(" \"=") == std::string::npos) {
    text_.append(shown);
    return *this;
  }
  text_.push_back('"');
  for (const char c : shown) {
    if (c == '"' || c == '\\') text_.push_back('\\');
    text_.push_back(c);
  }
  text_.push_back('"');
  return *this;
}

LogLine& LogLine::add(std::string_view key, double value) {
  char buffer[32];
  const int length = std::snprintf(buffer, sizeof buffer, "%.6g", value);
  if (g_json && !std::isfinite(value)) return add_plain(key, "null");
  return add_plain(key, std::string_view(buffer, static_cast<size_t>(length)));
}

void LogLine::emit() const {
  logger().log(to_spdlog(level_), spdlog::string_view_t(text_.data(), text_.size()));
}

void warn_of_file(std::string_view file,
                  std::string_view key,
                  std::string_view found,
                  std::string_view counts_as) {
  log_event(LogLevel::kWarning,
            "file_oddity",
            "file",
            file,
            "key",
            key,
            "found",
            found,
            "counts_as",
            counts_as);
}

}  // namespace sluice
