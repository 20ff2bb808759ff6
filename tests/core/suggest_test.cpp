// SPDX-License-Identifier: Apache-2.0
#include "engine/core/suggest.h"

#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <vector>

#include "engine/core/config.h"

namespace sluice {
namespace {

TEST(Suggest, DistanceCountsInsertionsDeletionsSubstitutionsAndSwaps) {
  EXPECT_EQ(edit_distance("", ""), 0U);
  EXPECT_EQ(edit_distance("", "abc"), 3U);
  EXPECT_EQ(edit_distance("abc", "abc"), 0U);
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3U);
  EXPECT_EQ(edit_distance("prot", "port"), 1U);
  EXPECT_EQ(edit_distance("ca", "abc"), 3U);  // optimal string alignment, not full Damerau
}

TEST(Suggest, NearestNameIsFoundAndFarOnesAreNot) {
  const std::vector<std::string> known = {"host", "port", "max-num-seqs"};
  EXPECT_EQ(nearest_name("prot", known), "port");
  EXPECT_EQ(nearest_name("max-seqs", known), "max-num-seqs");
  EXPECT_EQ(nearest_name("xyzzy-frobnicate", known), "");
  EXPECT_EQ(nearest_name("", known), "");
}

TEST(Suggest, NamesOfAnyLengthTakeNoTime) {
  const std::string name(100'000'000, 'x');
  const auto begun = std::chrono::steady_clock::now();
  EXPECT_EQ(nearest_name(name, std::vector<std::string>{"host", "max-num-seqs"}), "");
  EXPECT_LT(std::chrono::steady_clock::now() - begun, std::chrono::seconds(1));
}

TEST(Suggest, KnobsAreSuggestedWithDashes) {
  EXPECT_EQ(nearest_knob("max_num_seq"), "max-num-seqs");
  EXPECT_EQ(nearest_knob("enable-prefix-cache"), "enable-prefix-caching");
}

}  // namespace
}  // namespace sluice
