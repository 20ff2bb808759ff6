// SPDX-License-Identifier: Apache-2.0
// Logging: one line per event, a stable event name and key=value pairs. The back end is spdlog in
// its compiled form; this header does not include it. Never called on the step path above debug.
#pragma once

#include <concepts>
#include <cstdint>
#include <string>
#include <string_view>

namespace sluice {

enum class LogLevel : uint8_t { kTrace, kDebug, kInfo, kWarning, kError };

// kJson: one object a line, with time, level, event and the pairs.
enum class LogFormat : uint8_t { kText, kJson };

// Sets the threshold and sends lines to stderr, with their times in UTC (RFC 3339). At start-up,
// before other threads log.
void init_log(LogLevel level, LogFormat format = LogFormat::kText);
// What a server has to say to people is then an event, too. Any thread.
bool log_is_json();
bool log_enabled(LogLevel level);

class LogLine {
 public:
  LogLine(LogLevel level, std::string_view event);

  LogLine& add(std::string_view key, std::string_view value);  // quoted if it has blanks
  LogLine& add(std::string_view key, const char* value) {
    return add(key, std::string_view(value));
  }
  LogLine& add(std::string_view key, const std::string& value) {
    return add(key, std::string_view(value));
  }
  LogLine& add(std::string_view key, bool value) {
    return add_plain(key, value ? "true" : "false");
  }
  LogLine& add(std::string_view key, double value);
  template <std::integral T>
  LogLine& add(std::string_view key, T value) {
    return add_plain(key, std::to_string(value));
  }

  void emit() const;

 private:
  LogLine& add_plain(std::string_view key, std::string_view value);  // value written bare

  LogLevel level_;
  std::string text_;
};

namespace detail {
inline void add_pairs(LogLine&) {}

template <typename Value, typename... Rest>
void add_pairs(LogLine& line, std::string_view key, const Value& value, const Rest&... rest) {
  line.add(key, value);
  add_pairs(line, rest...);
}
}  // namespace detail

// log_event(LogLevel::kInfo, "request_finished", "id", id, "output_tokens", n);
template <typename... Args>
void log_event(LogLevel level, std::string_view event, const Args&... args) {
  static_assert(sizeof...(args) % 2 == 0, "log_event takes key, value pairs");
  if (!log_enabled(level)) return;
  LogLine line(level, event);
  detail::add_pairs(line, args...);
  line.emit();
}

// Logs a warning "file_oddity": a model's file has something that no writer should write and that
// changes no answer. `key`: key or tensor; `found`: its value; `counts_as`: what it is read as.
void warn_of_file(std::string_view file,
                  std::string_view key,
                  std::string_view found,
                  std::string_view counts_as);

}  // namespace sluice
