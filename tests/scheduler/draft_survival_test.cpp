// SPDX-License-Identifier: Apache-2.0
#include "scheduler/draft_survival.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <random>
#include <vector>

namespace sluice {
namespace {

constexpr RequestAcceptance kAnybody;

TEST(DraftSurvival, UnknownTokensAreAcceptedHalfOfTheTime) {
  const DraftSurvival survival;
  EXPECT_EQ(survival.acceptance(DraftSource::kNgram, 0, 0, kAnybody), 0.5);
  EXPECT_EQ(survival.expected(DraftSource::kNgram, std::vector<uint8_t>{0, 1}, kAnybody), 0.75);
  EXPECT_EQ(survival.expected(DraftSource::kNgram, {}, kAnybody), 0);
}

TEST(DraftSurvival, LearnsEachSourceBinAndDepthForItself) {
  std::mt19937_64 random(1);
  DraftSurvival survival;
  const auto truth = [](DraftSource source, uint8_t bin, size_t depth) {
    return 0.9 - 0.2 * static_cast<double>(source) - 0.1 * bin - 0.05 * static_cast<double>(depth);
  };
  for (int i = 0; i < 12'000; ++i) {
    const auto source = static_cast<DraftSource>(random() % 2);
    const std::vector<uint8_t> bins(4, static_cast<uint8_t>(random() % 3));
    int32_t accepted = 0;
    while (accepted < 4 && static_cast<double>(random() >> 11) * 0x1p-53 <
                               truth(source, bins[0], static_cast<size_t>(accepted))) {
      ++accepted;
    }
    RequestAcceptance request;
    survival.observe(source, bins, accepted, request);
  }
  for (const DraftSource source : {DraftSource::kForced, DraftSource::kPrediction}) {
    for (uint8_t bin = 0; bin < 3; ++bin) {
      for (int32_t depth = 0; depth < 3; ++depth) {
        EXPECT_NEAR(survival.acceptance(source, bin, depth, kAnybody),
                    truth(source, bin, static_cast<size_t>(depth)),
                    0.1);
      }
    }
  }
  EXPECT_EQ(survival.acceptance(DraftSource::kNgram, 0, 0, kAnybody), 0.5);
}

TEST(DraftSurvival, TokensBehindTheFirstWrongOneAreNoEvidence) {
  DraftSurvival survival;
  RequestAcceptance request;
  const std::vector<uint8_t> bins = {1, 2, 3};
  for (int i = 0; i < 40; ++i) survival.observe(DraftSource::kSuffix, bins, 1, request);
  EXPECT_GT(survival.acceptance(DraftSource::kSuffix, 1, 0, kAnybody), 0.9);
  EXPECT_LT(survival.acceptance(DraftSource::kSuffix, 2, 1, kAnybody), 0.1);
  EXPECT_EQ(survival.acceptance(DraftSource::kSuffix, 3, 2, kAnybody), 0.5);
}

TEST(DraftSurvival, EvidenceIsHalvedEvery1000Drafts) {
  DraftSurvival survival;
  RequestAcceptance request;
  const std::vector<uint8_t> bins = {4};
  for (int i = 0; i < 100; ++i) survival.observe(DraftSource::kNgram, bins, 0, request);
  const std::vector<uint8_t> others = {5};
  for (int i = 0; i < 1000; ++i) survival.observe(DraftSource::kNgram, others, 1, request);
  EXPECT_NEAR(survival.acceptance(DraftSource::kNgram, 4, 0, kAnybody), 2.0 / 54, 0.002);
}

TEST(DraftSurvival, RequestThatDiffersIsKnownByItsFactorWhichFades) {
  DraftSurvival survival;
  RequestAcceptance good;
  RequestAcceptance bad;
  const std::vector<uint8_t> bins = {0};
  for (int i = 0; i < 200; ++i) {
    survival.observe(DraftSource::kNgram, bins, 1, good);
    survival.observe(DraftSource::kNgram, bins, 0, bad);
  }
  EXPECT_GT(survival.acceptance(DraftSource::kNgram, 0, 0, good), 0.85);
  EXPECT_LT(survival.acceptance(DraftSource::kNgram, 0, 0, bad), 0.2);
  const double before = bad.factor;
  for (int i = 0; i < 2000; ++i) bad.forget();
  EXPECT_GT(bad.factor, before);
  EXPECT_NEAR(bad.factor, 1, 0.02);
}

// A client's prediction is worth a try before anything was measured.
TEST(DraftSurvival, WhatNothingIsKnownOfDependsOnItsSource) {
  const DraftSurvival survival;
  EXPECT_EQ(survival.acceptance(DraftSource::kNgram, 0, 0, kAnybody), 0.5);
  EXPECT_EQ(survival.acceptance(DraftSource::kPrediction, 0, 0, kAnybody), 0.75);
  EXPECT_EQ(survival.acceptance(DraftSource::kForced, 5, 3, kAnybody), 0.5);
}

TEST(DraftSurvival, FarDepthsShareACounter) {
  DraftSurvival survival;
  RequestAcceptance request;
  const std::vector<uint8_t> bins(kMaxDraftTokens, 0);
  for (int i = 0; i < 100; ++i) survival.observe(DraftSource::kReplay, bins, 63, request);
  EXPECT_GT(survival.acceptance(DraftSource::kReplay, 0, 40, kAnybody), 0.9);
  EXPECT_EQ(survival.acceptance(DraftSource::kReplay, 0, 40, kAnybody),
            survival.acceptance(DraftSource::kReplay, 0, kMaxDraftTokens - 1, kAnybody));
}

}  // namespace
}  // namespace sluice
