// SPDX-License-Identifier: Apache-2.0
#include "engine/core/log.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <ctime>
#include <regex>
#include <string>

namespace sluice {
namespace {

std::string logged(const LogLine& line) {
  init_log(LogLevel::kTrace);
  testing::internal::CaptureStderr();
  line.emit();
  std::string text = testing::internal::GetCapturedStderr();
  init_log(LogLevel::kInfo);
  return text;
}

TEST(Log, EventAndPairsMakeOneLine) {
  LogLine line(LogLevel::kInfo, "request_done");
  line.add("id", 17).add("ratio", 0.5).add("cached", true).add("reason", "stop");
  const std::string text = logged(line);
  EXPECT_NE(text.find("request_done id=17 ratio=0.5 cached=true reason=stop\n"), std::string::npos)
      << text;
}

TEST(Log, ValuesThatWouldBreakTheLineAreQuoted) {
  LogLine line(LogLevel::kError, "load");
  line.add("path", "a b\"c\\d\ne").add("empty", "").add("pair", "k=v");
  const std::string text = logged(line);
  EXPECT_NE(text.find("load path=\"a b\\\"c\\\\d e\" empty=\"\" pair=\"k=v\"\n"), std::string::npos)
      << text;
}

TEST(Log, NoControlCharacterReachesATerminal) {
  LogLine line(LogLevel::kInfo, "prompt");
  line.add("text", "a\r\x1b[2Jb\x7f");
  const std::string text = logged(line);
  EXPECT_NE(text.find("prompt text=\"a  [2Jb \"\n"), std::string::npos) << text;
}

// Characters that turn what follows around, or begin a line for some viewers.
TEST(Log, NoCharacterChangesTheOrderOfALine) {
  LogLine line(LogLevel::kInfo, "peer");
  line.add("id", "a\u202Eb\u2066c\u200Fd\u2028e\u061Cf").add("name", "\u4F60\u2030");
  const std::string text = logged(line);
  EXPECT_NE(text.find("peer id=\"a b c d e f\" name=\u4F60\u2030\n"), std::string::npos) << text;
}

TEST(Log, ALineIsValidUtf8) {
  LogLine line(LogLevel::kInfo, "peer");
  line.add("id", "caf\xC3\xA9\xFF(").add("name", "a\xC2\x9B" "2Jb");
  const std::string text = logged(line);
  EXPECT_NE(text.find("peer id=caf\xC3\xA9\uFFFD( name=\"a 2Jb\"\n"), std::string::npos) << text;
}

TEST(Log, JsonLinesAreObjects) {
  init_log(LogLevel::kTrace, LogFormat::kJson);
  LogLine line(LogLevel::kWarning, "request");
  line.add("id", "a\"b\\c\nd")
      .add("n", 17)
      .add("ok", true)
      .add("ms", 0.5)
      .add("bad", "\xC3(\xC3\xA9");
  testing::internal::CaptureStderr();
  line.emit();
  const std::string text = testing::internal::GetCapturedStderr();
  init_log(LogLevel::kInfo);
  EXPECT_EQ(text.find("{\"time\":\"20"), 0U) << text;
  EXPECT_NE(
      text.find(R"(,"level":"warning","event":"request","id":"a\"b\\c\u000ad","n":17,"ok":true,)"
                R"("ms":0.5,"bad":"\ufffd()"
                "\xC3\xA9\"}\n"),
      std::string::npos)
      << text;
}

// 2026-01-02T03:04:05.678Z
bool is_rfc3339(const std::string& text) {
  const std::regex pattern(R"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z)");
  return std::regex_match(text, pattern);
}

// Returns the seconds since the epoch of a time of the log.
int64_t seconds_of(const std::string& text) {
  std::tm parts = {};
  strptime(text.c_str(), "%Y-%m-%dT%H:%M:%S", &parts);
  return timegm(&parts);
}

TEST(Log, TimesAreRfc3339InUtcWhateverTheZone) {
  const char* const old = std::getenv("TZ");
  const std::string kept = old == nullptr ? "" : old;
  setenv("TZ", "XYZ-05:30", 1);
  tzset();
  const std::string text = logged(LogLine(LogLevel::kInfo, "event"));
  const std::string time = text.substr(0, text.find(' '));
  EXPECT_TRUE(is_rfc3339(time)) << text;
  EXPECT_NEAR(static_cast<double>(seconds_of(time)), static_cast<double>(std::time(nullptr)), 60);
  init_log(LogLevel::kInfo, LogFormat::kJson);
  EXPECT_TRUE(log_is_json());
  testing::internal::CaptureStderr();
  LogLine(LogLevel::kInfo, "event").emit();
  const std::string json = testing::internal::GetCapturedStderr();
  init_log(LogLevel::kInfo);
  EXPECT_FALSE(log_is_json());
  constexpr size_t kBegin = 9;  // behind {"time":"
  const std::string json_time = json.substr(kBegin, json.find('"', kBegin) - kBegin);
  EXPECT_TRUE(is_rfc3339(json_time)) << json;
  EXPECT_NEAR(
      static_cast<double>(seconds_of(json_time)), static_cast<double>(std::time(nullptr)), 60);
  if (old == nullptr) {
    unsetenv("TZ");
  } else {
    setenv("TZ", kept.c_str(), 1);
  }
  tzset();
}

TEST(Log, LevelsBelowTheThresholdAreOff) {
  init_log(LogLevel::kWarning);
  EXPECT_FALSE(log_enabled(LogLevel::kInfo));
  EXPECT_TRUE(log_enabled(LogLevel::kWarning));
  EXPECT_TRUE(log_enabled(LogLevel::kError));
  init_log(LogLevel::kInfo);
  EXPECT_TRUE(log_enabled(LogLevel::kInfo));
}

}  // namespace
}  // namespace sluice
