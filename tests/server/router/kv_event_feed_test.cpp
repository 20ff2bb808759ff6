// SPDX-License-Identifier: Apache-2.0
#include "server/router/kv_event_feed.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <vector>

#include "server/router/kv_event_subscriber.h"

namespace sluice {
namespace {

using Json = nlohmann::json;
using Verdict = KvEventFeed::Verdict;

Json stored(std::vector<uint64_t> hashes,
            Json parent,
            std::vector<int> tokens,
            Json extra = nullptr) {
  return {{"type", "BlockStored"},
          {"block_hashes", hashes},
          {"parent_block_hash", std::move(parent)},
          {"token_ids", tokens},
          {"block_size", 2},
          {"lora_id", nullptr},
          {"medium", "GPU"},
          {"extra_keys", std::move(extra)},
          {"group_idx", 0}};
}

Json removed(std::vector<uint64_t> hashes) {
  return {{"type", "BlockRemoved"}, {"block_hashes", hashes}, {"medium", "GPU"}, {"group_idx", 0}};
}

ValidRequest request_of(std::vector<TokenId> prompt, uint64_t salt = 0) {
  ValidRequest request;
  request.prompt = std::move(prompt);
  request.tenant_salt = salt;
  return request;
}

class KvEventFeedTest : public ::testing::Test {
 protected:
  KvEventFeedTest() { index_.set_capacity(1000); }

  Verdict take(const std::vector<Json>& events) { return take_as(next_++, events); }

  Verdict take_as(int64_t number, const std::vector<Json>& events) {
    const std::vector<uint8_t> bytes = Json::to_msgpack(Json::array({1.5, events, nullptr}));
    return feed_.take(number, bytes, index_);
  }

  size_t num_known(std::vector<TokenId> prompt, uint64_t salt = 0) {
    return index_.num_known(block_chain(request_of(std::move(prompt), salt), 2));
  }

  KnownPrefixes index_;
  KvEventFeed feed_;
  int64_t next_ = 0;
};

TEST_F(KvEventFeedTest, StoredBlocksAreKnownByTheirTokens) {
  EXPECT_EQ(take({stored({10, 11}, nullptr, {1, 2, 3, 4})}), Verdict::kApplied);
  EXPECT_EQ(take({stored({12}, 11, {5, 6})}), Verdict::kApplied);
  EXPECT_EQ(num_known({1, 2, 3, 4, 5, 6, 7, 8}), 3U);
  EXPECT_EQ(num_known({1, 2, 9, 4, 5, 6}), 1U);
  EXPECT_EQ(num_known({1, 2}, 77), 0U) << "of another tenant";
}

TEST_F(KvEventFeedTest, TenantsHaveChainsOfTheirOwn) {
  const Json extra = Json::array({Json::array({77, 0, 0}), Json::array({77, 0, 0})});
  take({stored({10, 11}, nullptr, {1, 2, 3, 4}, extra)});
  EXPECT_EQ(num_known({1, 2, 3, 4}, 77), 2U);
  EXPECT_EQ(num_known({1, 2, 3, 4}), 0U);
}

TEST_F(KvEventFeedTest, WhatIsRemovedOrClearedIsNotKnownAnyMore) {
  take({stored({10, 11}, nullptr, {1, 2, 3, 4})});
  take({removed({11})});
  EXPECT_EQ(num_known({1, 2, 3, 4}), 1U);
  take({removed({99})});
  take({Json{{"type", "AllBlocksCleared"}}});
  EXPECT_EQ(num_known({1, 2}), 0U);
}

TEST_F(KvEventFeedTest, TheOlderFormIsReadToo) {
  take({Json::array({"BlockStored", {10}, nullptr, {1, 2}, 2, nullptr, "GPU", nullptr, nullptr})});
  EXPECT_EQ(num_known({1, 2}), 1U);
  take({Json::array({"BlockRemoved", {10}, "GPU"})});
  EXPECT_EQ(num_known({1, 2}), 0U);
  take({Json::array({"AllBlocksCleared"}), Json::array({"SomethingNew", 5})});
}

TEST_F(KvEventFeedTest, OtherTiersAndOtherGroupsDoNotCount) {
  Json tier = stored({10}, nullptr, {1, 2});
  tier["medium"] = "CPU";
  Json group = stored({11}, nullptr, {1, 2});
  group["group_idx"] = 1;
  take({tier, group});
  EXPECT_EQ(num_known({1, 2}), 0U);
}

TEST_F(KvEventFeedTest, AGapForgetsAllThatWasKnown) {
  take({stored({10}, nullptr, {1, 2})});
  EXPECT_EQ(take_as(5, {stored({20}, nullptr, {7, 8})}), Verdict::kGap);
  EXPECT_EQ(num_known({1, 2}), 0U);
  EXPECT_EQ(num_known({7, 8}), 1U);
  EXPECT_EQ(take_as(6, {stored({11}, 10, {3, 4})}), Verdict::kApplied);
  EXPECT_EQ(num_known({1, 2, 3, 4}), 0U) << "it hangs on what is not known";
}

TEST_F(KvEventFeedTest, WhatIsBrokenForgetsAllThatWasKnown) {
  const std::vector<Json> broken = {
      Json(3),
      Json{{"type", 3}},
      Json{{"type", "BlockStored"}},
      Json{{"type", "BlockRemoved"}},
      stored({10}, nullptr, {1}),
      stored({10}, "x", {1, 2}),
  };
  for (const Json& event : broken) {
    ASSERT_EQ(take({stored({10}, nullptr, {1, 2})}), Verdict::kApplied);
    EXPECT_EQ(take({event}), Verdict::kBroken) << event;
    EXPECT_EQ(num_known({1, 2}), 0U) << event;
  }
  const std::vector<uint8_t> none = {0xC1, 0x00};
  EXPECT_EQ(feed_.take(0, none, index_), Verdict::kBroken);
  EXPECT_EQ(feed_.take(0, {}, index_), Verdict::kBroken);
  const std::vector<uint8_t> nested(10'000'000, 0x91);
  EXPECT_EQ(feed_.take(0, nested, index_), Verdict::kBroken);
}

TEST(KvEventSubscriber, AnEndpointOfAnyHostIsTheWorkersOwn) {
  EXPECT_EQ(reachable_endpoint("tcp://*:5557", "10.0.0.1"), "tcp://10.0.0.1:5557");
  EXPECT_EQ(reachable_endpoint("tcp://0.0.0.0:1", "::1"), "tcp://[::1]:1");
  EXPECT_EQ(reachable_endpoint("tcp://b:2", "a"), "tcp://b:2");
  EXPECT_EQ(reachable_endpoint("ipc:///tmp/x", "a"), "");
  EXPECT_EQ(reachable_endpoint("tcp://*:*", "a"), "");
}

}  // namespace
}  // namespace sluice
