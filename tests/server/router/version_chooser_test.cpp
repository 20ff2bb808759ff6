// SPDX-License-Identifier: Apache-2.0
#include "server/router/version_chooser.h"

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "engine/core/config.h"

namespace sluice {
namespace {

using Shares = std::vector<double>;

RouteRule rule_of(const std::string& min_ready, const std::vector<std::string>& shares = {}) {
  Config config;
  config.route_min_ready = min_ready;
  config.route_shares = shares;
  auto rule = RouteRule::read(config);
  EXPECT_TRUE(rule) << rule.error().message;
  return rule.value_or(RouteRule{});
}

VersionReadiness version(const std::string& fingerprint, int64_t created, int64_t num_ready) {
  return {fingerprint, created, num_ready};
}

TEST(VersionChooser, ANewVersionGetsEverythingOnceEnoughOfItIsReady) {
  const RouteRule half = rule_of("50%");
  const auto shares = [&](int64_t num_old, int64_t num_new) {
    return shares_of_requests(
        std::vector{version("old", 100, num_old), version("new", 200, num_new)}, half);
  };
  EXPECT_EQ(shares(3, 0), (Shares{1, 0}));
  EXPECT_EQ(shares(3, 1), (Shares{1, 0}));
  EXPECT_EQ(shares(2, 1), (Shares{1, 0}));
  EXPECT_EQ(shares(2, 2), (Shares{0, 1}));
  EXPECT_EQ(shares(0, 1), (Shares{0, 1}));
  EXPECT_EQ(shares(0, 0), (Shares{0, 0}));
}

TEST(VersionChooser, TheOrderInWhichVersionsBecameKnownDoesNotMatter) {
  const std::vector<VersionReadiness> versions = {version("new", 200, 2), version("old", 100, 2)};
  EXPECT_EQ(shares_of_requests(versions, rule_of("50%")), (Shares{1, 0}));
}

TEST(VersionChooser, ANumberOfWorkersMayBeAskedFor) {
  const RouteRule three = rule_of("3");
  const auto shares = [&](int64_t num_old, int64_t num_new) {
    return shares_of_requests(
        std::vector{version("old", 100, num_old), version("new", 200, num_new)}, three);
  };
  EXPECT_EQ(shares(9, 2), (Shares{1, 0}));
  EXPECT_EQ(shares(9, 3), (Shares{0, 1}));
  EXPECT_EQ(shares(2, 1), (Shares{1, 0})) << "no version is large enough: the largest one";
  EXPECT_EQ(shares(1, 1), (Shares{0, 1})) << "of equal ones the newest";
}

TEST(VersionChooser, AVersionBetweenTwoIsSkippedWhenItIsSmall) {
  const std::vector<VersionReadiness> versions = {
      version("a", 1, 4), version("b", 2, 1), version("c", 3, 1)};
  EXPECT_EQ(shares_of_requests(versions, rule_of("50%")), (Shares{1, 0, 0}));
  EXPECT_EQ(shares_of_requests(versions, rule_of("90%")), (Shares{1, 0, 0}));
  EXPECT_EQ(shares_of_requests(versions, rule_of("10%")), (Shares{0, 0, 1}));
}

TEST(VersionChooser, ACanaryGetsItsShareAndOnlyThatWhateverIsReadyOfIt) {
  const RouteRule rule = rule_of("50%", {"new=0.1"});
  const std::vector<VersionReadiness> many = {version("old", 100, 2), version("new", 200, 5)};
  EXPECT_EQ(shares_of_requests(many, rule), (Shares{0.9, 0.1}));
  const std::vector<VersionReadiness> none = {version("old", 100, 2), version("new", 200, 0)};
  EXPECT_EQ(shares_of_requests(none, rule), (Shares{1, 0}));
  const std::vector<VersionReadiness> alone = {version("old", 100, 0), version("new", 200, 1)};
  EXPECT_EQ(shares_of_requests(alone, rule), (Shares{0, 1})) << "no request is refused for a share";
}

TEST(VersionChooser, AShareOfZeroTakesNoRequestsAtAll) {
  const RouteRule rule = rule_of("50%", {"bad=0"});
  const std::vector<VersionReadiness> both = {version("good", 100, 1), version("bad", 200, 3)};
  EXPECT_EQ(shares_of_requests(both, rule), (Shares{1, 0}));
  const std::vector<VersionReadiness> alone = {version("good", 100, 0), version("bad", 200, 3)};
  EXPECT_EQ(shares_of_requests(alone, rule), (Shares{0, 0}));
}

TEST(VersionChooser, SharesAreAllOrNothingInSumForAnyCounts) {
  std::mt19937_64 random(3);
  for (int i = 0; i < 20'000; ++i) {
    std::vector<VersionReadiness> versions;
    int64_t total = 0;
    for (uint64_t k = 0; k < 1 + random() % 4; ++k) {
      versions.push_back(version(std::string(1, static_cast<char>('a' + k)),
                                 static_cast<int64_t>(random() % 3),
                                 static_cast<int64_t>(random() % 4)));
      total += versions.back().num_ready;
    }
    const RouteRule rule = rule_of(
        random() % 2 == 0 ? "2" : "50%",
        random() % 2 == 0 ? std::vector<std::string>{"b=0.25"} : std::vector<std::string>{});
    const Shares shares = shares_of_requests(versions, rule);
    double sum = 0;
    for (size_t k = 0; k < shares.size(); ++k) {
      sum += shares[k];
      EXPECT_TRUE(shares[k] == 0 || versions[k].num_ready > 0);
    }
    EXPECT_NEAR(sum, total > 0 ? 1 : 0, 1e-12);
  }
}

TEST(VersionChooser, APointFallsIntoTheShareThatCoversIt) {
  const Shares shares = {0, 0.25, 0, 0.75};
  EXPECT_EQ(version_at(shares, 0), 1U);
  EXPECT_EQ(version_at(shares, 0.2499), 1U);
  EXPECT_EQ(version_at(shares, 0.25), 3U);
  EXPECT_EQ(version_at(shares, 0.9999), 3U);
  EXPECT_EQ(version_at(Shares{0.3, 0.3, 0.3999999999}, 0.99999999999), 2U);
  EXPECT_EQ(version_at(Shares{0, 0}, 0.5), 2U) << "none";
}

TEST(VersionChooser, AnyHundredRequestsInARowAreSharedAsAsked) {
  const Shares shares = {0.9, 0.1};
  for (const uint64_t begin : {uint64_t{0}, uint64_t{12'345}, uint64_t{4'000'000'000}}) {
    int num_canary = 0;
    for (uint64_t n = begin; n < begin + 100; ++n) {
      num_canary += version_at(shares, point_of_request(n)) == 1 ? 1 : 0;
    }
    EXPECT_GE(num_canary, 9);
    EXPECT_LE(num_canary, 11);
  }
}

TEST(VersionChooser, AWrongRuleIsRefusedWithItsKnob) {
  const auto error_of = [](const std::string& min_ready, std::vector<std::string> shares) {
    Config config;
    config.route_min_ready = min_ready;
    config.route_shares = std::move(shares);
    const auto rule = RouteRule::read(config);
    EXPECT_FALSE(rule) << min_ready;
    return rule ? std::string() : rule.error().param;
  };
  for (const char* text : {"", "0", "0%", "101%", "-1", "half", "50 %", "1.5", "%"}) {
    EXPECT_EQ(error_of(text, {}), "route-min-ready") << text;
  }
  for (const char* text : {"fp", "=0.1", "fp=", "fp=x", "fp=1.1", "fp=-0.1", "fp=nan", "fp=0.1x"}) {
    EXPECT_EQ(error_of("50%", {text}), "route-share") << text;
  }
  EXPECT_EQ(error_of("50%", {"a=0.6", "b=0.6"}), "route-share");
  EXPECT_EQ(error_of("50%", {"a=0.1", "a=0.2"}), "route-share");
}

}  // namespace
}  // namespace sluice
