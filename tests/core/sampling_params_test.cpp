// SPDX-License-Identifier: Apache-2.0
#include "engine/core/sampling_params.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <set>
#include <string>

namespace sluice {
namespace {

std::string set_error(const char* name, double value) {
  SamplingParams params;
  const SamplingField* field = find_sampling_field(name);
  EXPECT_NE(field, nullptr) << name;
  const auto result = set_sampling_field(params, *field, value);
  return result ? "accepted" : result.error().message;
}

TEST(SamplingParams, TableAndStructAgreeOnDefaults) {
  const SamplingParams params;
  std::set<std::string_view> names;
  for (const SamplingField& field : sampling_fields()) {
    EXPECT_TRUE(names.insert(field.name).second) << field.name;
    EXPECT_EQ(field.get(params), field.default_value) << field.name;
    EXPECT_FALSE(field.help.empty()) << field.name;
  }
  EXPECT_EQ(find_sampling_field("temprature"), nullptr);
}

TEST(SamplingParams, BothEndsOfEveryRangeAreAcceptedAndNothingBeyond) {
  for (const SamplingField& field : sampling_fields()) {
    const std::string name(field.name);
    // Seeds end at 2^63, which only doubles reach: the last one below it is the last integer.
    const bool is_64_bit = field.max > 9007199254740992.0;
    const double beyond = is_64_bit ? 4096 : field.kind == ParamKind::kNumber ? 1e-3 : 1;
    const double last = is_64_bit ? std::nextafter(field.max, 0.0) : field.max;
    EXPECT_EQ(set_error(name.c_str(), last), "accepted") << name;
    EXPECT_EQ(set_error(name.c_str(), field.min), "accepted") << name;
    EXPECT_NE(set_error(name.c_str(), field.min - beyond), "accepted") << name;
    EXPECT_NE(set_error(name.c_str(), field.max + beyond), "accepted") << name;
    EXPECT_NE(set_error(name.c_str(), std::nan("")), "accepted") << name;
    EXPECT_NE(set_error(name.c_str(), std::numeric_limits<double>::infinity()), "accepted") << name;
  }
}

TEST(SamplingParams, MessagesNameFieldRuleAndValue) {
  EXPECT_EQ(set_error("temperature", 2.5), "temperature must be in [0, 2], got 2.5.");
  EXPECT_EQ(set_error("top_p", -0.5), "top_p must be in [0, 1], got -0.5.");
  EXPECT_EQ(set_error("top_k", 1.5), "top_k must be an integer, got 1.5.");
}

TEST(SamplingParams, SetValuesAreRead) {
  SamplingParams params;
  for (const SamplingField& field : sampling_fields()) {
    const double value = field.kind == ParamKind::kNumber ? 0.5 : 1;
    ASSERT_TRUE(set_sampling_field(params, field, value)) << field.name;
    EXPECT_EQ(field.get(params), value) << field.name;
  }
}

TEST(SamplingParams, NegativeSeedsKeepTheirBits) {
  SamplingParams params;
  ASSERT_TRUE(set_sampling_field(params, *find_sampling_field("seed"), -1));
  EXPECT_EQ(params.seed, std::numeric_limits<uint64_t>::max());
}

TEST(SamplingParams, MinTokensMayNotExceedMaxTokens) {
  SamplingParams params;
  params.max_tokens = 4;
  params.min_tokens = 4;
  EXPECT_TRUE(validate(params));
  params.min_tokens = 5;
  const auto result = validate(params);
  ASSERT_FALSE(result);
  EXPECT_EQ(result.error().param, "min_tokens");
}

}  // namespace
}  // namespace sluice
