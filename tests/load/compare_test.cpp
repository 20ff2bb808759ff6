// SPDX-License-Identifier: Apache-2.0
// Two results of `bench`, figure by figure.
#include "server/load/compare.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

namespace sluice::load {
namespace {

using Json = nlohmann::ordered_json;

Json result(double throughput, double ttft, int failed = 0) {
  return {{"model_id", "m"},
          {"failed", failed},
          {"request_throughput", throughput},
          {"mean_ttft_ms", ttft},
          {"std_ttft_ms", ttft},
          {"p99_ttft_ms", ttft},
          {"duration", 5}};
}

TEST(Compare, TellsBetterFromWorseByTheFigure) {
  const auto compared = compare_results(result(10, 100), result(11, 120));
  ASSERT_TRUE(compared);
  ASSERT_EQ(compared->figures.size(), 4U);  // neither the spread nor the duration is one
  EXPECT_EQ(compared->figures[1].name, "request_throughput");
  EXPECT_NEAR(compared->figures[1].gain, 0.1, 1e-9);
  EXPECT_NEAR(compared->figures[2].gain, -0.2, 1e-9);
  EXPECT_TRUE(losses(*compared, 25).empty());
  EXPECT_EQ(losses(*compared, 15).size(), 2U);
  EXPECT_NE(losses(*compared, 15)[0].find("mean_ttft_ms was 100.00 and is 120.00"),
            std::string::npos);
  const std::string text = comparison_text(*compared);
  EXPECT_NE(text.find("+10.0 %                      |++++++++++\n"), std::string::npos) << text;
  EXPECT_NE(text.find("-20.0 %  --------------------|\n"), std::string::npos) << text;
}

TEST(Compare, AFailureWhereThereWasNoneIsWorseThanAnyThreshold) {
  const auto compared = compare_results(result(10, 100), result(10, 100, /*failed=*/1));
  ASSERT_TRUE(compared);
  EXPECT_EQ(losses(*compared, 1000).size(), 1U);
  EXPECT_TRUE(losses(*compare_results(result(10, 100, 1), result(10, 100)), 0).empty());
}

TEST(Compare, SaysWhatMakesTheRunsOthers) {
  Json other = result(10, 100);
  other["model_id"] = "n";
  other["seed"] = 3;
  const auto compared = compare_results(result(10, 100), other);
  ASSERT_TRUE(compared);
  EXPECT_EQ(compared->differences.size(), 2U);
  EXPECT_EQ(compared->differences[0], "model_id differs: m and n");
  EXPECT_FALSE(compare_results(Json::object(), other));
}

TEST(Compare, ReadsTheLastOfSeveralResults) {
  EXPECT_EQ((*parse_result("{\"a\":1}\n", "f"))["a"], 1);
  EXPECT_EQ((*parse_result("{\"a\":1}\n{\"a\":2}\n\n", "f"))["a"], 2);
  for (const char* text : {"", "\n", "[1]", "{", "text"}) {
    const auto parsed = parse_result(text, "f.json");
    ASSERT_FALSE(parsed) << text;
    EXPECT_NE(parsed.error().message.find("f.json"), std::string::npos);
  }
}

}  // namespace
}  // namespace sluice::load
