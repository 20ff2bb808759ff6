// SPDX-License-Identifier: Apache-2.0
#include "engine/core/log.h"

#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

#include <cstdio>
#include <memory>

namespace sluice {
namespace {

spdlog::level::level_enum to_spdlog(LogLevel level) {
  switch (level) {
    case LogLevel::kTrace: return spdlog::level::trace;
    case LogLevel::kDebug: return spdlog::level::debug;
    case LogLevel::kInfo: return spdlog::level::info;
    case LogLevel::kWarning: return spdlog::level::warn;
    case LogLevel::kError: return spdlog::level::err;
  }
  return spdlog::level::info;
}

spdlog::logger& logger() {
  static const std::shared_ptr<spdlog::logger> instance = [] {  // spdlog's registry owns it too
    auto made = spdlog::stderr_color_mt("sluice");
    made->set_pattern("%Y-%m-%dT%H:%M:%S.%e %^%L%$ %v");
    return made;
  }();
  return *instance;
}

}  // namespace

void init_log(LogLevel level) { logger().set_level(to_spdlog(level)); }

bool log_enabled(LogLevel level) { return logger().should_log(to_spdlog(level)); }

LogLine& LogLine::add(std::string_view key, std::string_view value) {
  text_.append(" ").append(key).append("=");
  const bool quote = value.empty() || value.find_first_of(" \"=\n\t") != std::string_view::npos;
  if (!quote) {
    text_.append(value);
    return *this;
  }
  text_.push_back('"');
  for (const char c : value) {
    if (c == '"' || c == '\\') {
      text_.push_back('\\');
      text_.push_back(c);
    } else if (static_cast<unsigned char>(c) < 0x20) {
      text_.push_back(' ');  // one event stays one line
    } else {
      text_.push_back(c);
    }
  }
  text_.push_back('"');
  return *this;
}

LogLine& LogLine::add(std::string_view key, double value) {
  char buffer[32];
  const int length = std::snprintf(buffer, sizeof buffer, "%.6g", value);
  return add(key, std::string_view(buffer, static_cast<size_t>(length)));
}

void LogLine::emit() const {
  logger().log(to_spdlog(level_), spdlog::string_view_t(text_.data(), text_.size()));
}

}  // namespace sluice
