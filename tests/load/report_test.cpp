// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "server/load/report_html.h"
#include "server/load/sweep.h"

namespace sluice::load {
namespace {

Result make_result(size_t count, bool ok, double spacing = 0.01, double latency = 0.1) {
  Result result;
  for (size_t i = 0; i < count; ++i) {
    Record record;
    record.intended = record.sent = static_cast<double>(i) * spacing;
    record.end = record.sent + latency;
    if (ok) {
      record.first_chunk = record.first_token = record.sent + latency / 2;
      record.last_token = record.end;
      record.gaps = {static_cast<float>(latency / 2)};
      record.num_text_chunks = record.requested_tokens = 2;
      record.completion_tokens = 2;
    } else {
      record.error = ErrorKind::kHttpStatus;
      record.error_message = "HTTP 500: </script><script>alert(1)</script> \xff";
    }
    result.run.duration_s = record.end;
    result.run.records.push_back(record);
  }
  result.options.request_rate = 1 / spacing;
  result.summary = summarize(result.run.records, result.run.duration_s, result.options);
  return result;
}

nlohmann::json data_of(const std::string& page) {
  const std::string begin = "<script id=\"data\" type=\"application/json\">";
  const size_t at = page.find(begin) + begin.size();
  return nlohmann::json::parse(page.substr(at, page.find("</script>", at) - at), nullptr, false);
}

double sum_of(const nlohmann::json& values) {
  double sum = 0;
  for (const auto& value : values) sum += value.get<double>();
  return sum;
}

TEST(HtmlReport, IsRightForOneRequestForManyAndForNone) {
  for (const size_t count : {1U, 50U, 100'000U}) {
    const std::string page = html_report(make_result(count, true), {});
    EXPECT_LT(page.size(), 200'000U);
    const auto data = data_of(page);
    ASSERT_TRUE(data.is_object()) << count;
    EXPECT_EQ(data["completed"], count);
    EXPECT_EQ(data["curves"].size(), 4U);
    EXPECT_EQ(data["curves"][0]["points"].back()[1], 100);
    EXPECT_NEAR(data["curves"][2]["points"].back()[0].get<double>(), 100, 1e-3);
    const auto& timeline = data["timeline"];
    EXPECT_NEAR(sum_of(timeline["tokens"]) * timeline["step"].get<double>(),
                2.0 * static_cast<double>(count),
                0.001 * static_cast<double>(count));
    EXPECT_LE(data["bars"].size(), 300U);
  }
  EXPECT_TRUE(data_of(html_report(make_result(0, true), {})).is_object());
}

TEST(HtmlReport, HoldsWhatServersSayAsDataOnly) {
  const std::string page = html_report(make_result(40, false), {});
  EXPECT_EQ(page.find("<script>alert"), std::string::npos);
  const auto data = data_of(page);
  ASSERT_TRUE(data.is_object());
  EXPECT_EQ(data["failed"], 40);
  EXPECT_TRUE(data["curves"].empty());
  EXPECT_EQ(data["errors"][0]["count"], 40);
  EXPECT_EQ(data["errors"][0]["kind"], "http_status");
}

TEST(HtmlReport, AsksNobodyForAnything) {
  const std::string page = kReportPage;
  for (const char* link : {"src=", "href=", "url(", "import", "fetch("}) {
    EXPECT_EQ(page.find(link), std::string::npos) << link;
  }
  EXPECT_NE(page.find("default-src 'none'"), std::string::npos);
}

// A server that answers ten requests a second, each in 0.1 s, one after the other.
Expected<Result> one_slot_server(double rate) {
  constexpr size_t kCount = 200;
  constexpr double kService = 0.1;
  Result result;
  double free_at = 0;
  for (size_t i = 0; i < kCount; ++i) {
    Record record;
    record.intended = record.sent = std::isinf(rate) ? 0 : static_cast<double>(i) / rate;
    record.end = std::max(record.sent, free_at) + kService;
    record.first_chunk = record.first_token = record.last_token = free_at = record.end;
    record.num_text_chunks = 1;
    record.completion_tokens = 1;
    result.run.duration_s = record.end;
    result.run.records.push_back(record);
  }
  result.options.request_rate = rate;
  result.summary = summarize(result.run.records, result.run.duration_s, result.options);
  return result;
}

TEST(Sweep, FindsTheRateAboveWhichAServerFallsBehind) {
  const auto swept = sweep_rates(8, one_slot_server);
  ASSERT_TRUE(swept);
  EXPECT_TRUE(std::isinf(swept->points.front().rate));
  EXPECT_GT(swept->best.options.request_rate, 9);
  EXPECT_LT(swept->best.options.request_rate, 10.5);
  for (const SweepPoint& point : swept->points) {
    const bool in_between = point.rate > 10.1 && point.rate < 10.7;
    EXPECT_TRUE(in_between || point.is_sustained == (point.rate < 10.1)) << point.rate;
  }
}

TEST(Sweep, KeepsUpOnlyIfNineTenthsOfWhatIsOfferedAreAnswered) {
  // An answer takes five seconds, idle or not: only the length of the run tells the two apart.
  const auto keeps = [](size_t count) {
    return keeps_up(make_result(count, true, /*spacing=*/0.1, /*latency=*/5), 5);
  };
  EXPECT_FALSE(keeps(50));   // 5 of 10 requests a second are answered
  EXPECT_FALSE(keeps(400));  // 8.9 of 10
  EXPECT_TRUE(keeps(500));   // 9.1 of 10
  Result all_at_once = make_result(50, true, 0.1, 0.1);
  all_at_once.options.request_rate = std::numeric_limits<double>::infinity();
  EXPECT_TRUE(keeps_up(all_at_once, 0.1));  // no rate is offered
}

TEST(Sweep, EndsWithTheErrorsOfAServerThatFails) {
  const auto swept =
      sweep_rates(8, [](double) -> Expected<Result> { return make_result(9, false); });
  ASSERT_TRUE(swept);
  EXPECT_EQ(swept->points.size(), 1U);
  EXPECT_EQ(swept->best.summary.failed, 9U);
}

}  // namespace
}  // namespace sluice::load
