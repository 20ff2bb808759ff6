// SPDX-License-Identifier: Apache-2.0
#include "server/router/kv_event_feed.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>
#include <zmq.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <thread>
#include <utility>
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

// A worker may send any number. UndefinedBehaviorSanitizer sees what is added to it.
TEST_F(KvEventFeedTest, NothingFollowsTheLargestNumber) {
  EXPECT_EQ(take_as(INT64_MAX, {stored({10}, nullptr, {1, 2})}), Verdict::kApplied);
  EXPECT_EQ(take_as(INT64_MIN, {stored({11}, 10, {3, 4})}), Verdict::kGap);
  EXPECT_EQ(num_known({1, 2}), 0U);
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

TEST_F(KvEventFeedTest, AMessageOfMillionsOfValuesIsBroken) {
  const std::vector<Json> events = {stored({10}, nullptr, {1, 2})};
  const auto take_with = [&](uint32_t num_values) {
    std::vector<uint8_t> message = Json::to_msgpack(Json::array({1.5, events, nullptr}));
    message.back() = 0xDD;  // an array in place of the last member
    for (int shift = 24; shift >= 0; shift -= 8) {
      message.push_back(static_cast<uint8_t>(num_values >> shift));
    }
    message.insert(message.end(), num_values, 0xC0);
    return feed_.take(next_++, message, index_);
  };
  EXPECT_EQ(take_with(1'000'000), Verdict::kApplied);
  EXPECT_EQ(num_known({1, 2}), 1U);
  EXPECT_EQ(take_with(2'000'000), Verdict::kBroken);
  EXPECT_EQ(num_known({1, 2}), 0U);
}

// A worker that stores and never removes, blocks of its own or one under many hashes.
TEST_F(KvEventFeedTest, NoMoreHashesAreKeptThanTheIndexHasBlocks) {
  for (const bool is_one_block : {false, true}) {
    for (uint64_t first = 0; first < 5000; first += 100) {
      std::vector<Json> events;
      for (uint64_t i = 0; i < 100; ++i) {
        const int token = is_one_block ? 7 : static_cast<int>(first + i);
        events.push_back(stored({first + i}, nullptr, {token, 0}));
      }
      ASSERT_EQ(take(events), Verdict::kApplied);
      ASSERT_LE(feed_.num_hashes(), 1250U);
    }
  }
  // The last ones are still there to be followed, and to be removed.
  ASSERT_EQ(take({stored({500'000, 500'001}, nullptr, {5, 6, 7, 8})}), Verdict::kApplied);
  EXPECT_EQ(num_known({5, 6, 7, 8}), 2U);
  take({stored({500'002}, 500'001, {9, 9})});
  EXPECT_EQ(num_known({5, 6, 7, 8, 9, 9}), 3U);
  take({removed({500'001})});
  EXPECT_EQ(num_known({5, 6, 7, 8}), 1U);
}

// A worker's socket, which sends what no worker does.
class EventSocket {
 public:
  explicit EventSocket(const char* at = "tcp://127.0.0.1:*") {
    zmq_socket_monitor(socket_.get(), "inproc://accepted", ZMQ_EVENT_ACCEPTED);
    zmq_connect(accepted_.get(), "inproc://accepted");
    zmq_bind(socket_.get(), at);
    char name[64] = {};
    size_t size = sizeof name;
    zmq_getsockopt(socket_.get(), ZMQ_LAST_ENDPOINT, name, &size);
    endpoint = name;
  }

  ~EventSocket() { zmq_socket_monitor(socket_.get(), nullptr, 0); }

  EventSocket(const EventSocket&) = delete;
  EventSocket& operator=(const EventSocket&) = delete;

  // Returns the number of connections since the last call.
  int num_accepted() {
    int num_frames = 0;
    char frame[256];
    while (zmq_recv(accepted_.get(), frame, sizeof frame, ZMQ_DONTWAIT) >= 0) ++num_frames;
    return num_frames / 2;
  }

  void send(char number, size_t payload_bytes, size_t num_more_frames = 0) {
    const char bytes[8] = {0, 0, 0, 0, 0, 0, 0, number};
    zmq_send(socket_.get(), "topic", 5, ZMQ_SNDMORE);
    zmq_send(socket_.get(), bytes, sizeof bytes, ZMQ_SNDMORE);
    for (; num_more_frames > 0; --num_more_frames) zmq_send(socket_.get(), "", 0, ZMQ_SNDMORE);
    const std::string payload(payload_bytes, 'x');
    zmq_send(socket_.get(), payload.data(), payload.size(), 0);
  }

  std::string endpoint;

 private:
  struct Close {
    void operator()(void* socket) const { zmq_close(socket); }
  };

  struct End {
    void operator()(void* context) const { zmq_ctx_term(context); }
  };

  std::unique_ptr<void, End> context_{zmq_ctx_new()};
  std::unique_ptr<void, Close> socket_{zmq_socket(context_.get(), ZMQ_PUB)};
  std::unique_ptr<void, Close> accepted_{zmq_socket(context_.get(), ZMQ_PAIR)};
};

// What a subscriber has taken, and the router has not read.
class Unread {
 public:
  void add(KvEventMessage message) {
    const std::scoped_lock lock(mutex_);
    messages_.push_back(std::move(message));
  }

  // Reads all but the message of this number.
  void read_except(int64_t number) {
    const std::scoped_lock lock(mutex_);
    std::erase_if(messages_, [number](const auto& message) { return message.number != number; });
  }

  // Returns each message's number and bytes.
  std::vector<std::pair<int64_t, size_t>> all() {
    const std::scoped_lock lock(mutex_);
    std::vector<std::pair<int64_t, size_t>> all;
    for (const KvEventMessage& message : messages_) {
      all.emplace_back(message.number, message.payload.size());
    }
    return all;
  }

  // Waits for a message of this number; false: ten seconds are over.
  bool wait_for(int64_t number, const std::function<void()>& meanwhile = [] {}) {
    for (int i = 0; i < 1000; ++i) {
      for (const auto& [taken, bytes] : all()) {
        if (taken == number) return true;
      }
      meanwhile();
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return false;
  }

 private:
  std::mutex mutex_;
  std::vector<KvEventMessage> messages_;
};

TEST(KvEventSubscriber, AFrameBeyondTheLimitIsNotTaken) {
  EventSocket socket;
  Unread unread;
  const KvEventSubscriber subscriber(
      socket.endpoint, [&](KvEventMessage message) { unread.add(std::move(message)); });
  // What is sent before a subscription has come is dropped.
  ASSERT_TRUE(unread.wait_for(1, [&] { socket.send(1, 10); }));
  socket.send(2, kMostKvEventBytes);
  socket.send(3, 10, 1000);  // not of three frames
  socket.send(4, kMostKvEventBytes + 1);
  ASSERT_TRUE(unread.wait_for(5, [&] { socket.send(5, 10); }));
  size_t num_large = 0;
  for (const auto& [number, bytes] : unread.all()) {
    EXPECT_TRUE(number == 1 || number == 2 || number == 5) << number;
    num_large += bytes == kMostKvEventBytes ? 1 : 0;
  }
  EXPECT_EQ(num_large, 1U);
}

// ZeroMQ connects again while what came before is still being read.
TEST(KvEventSubscriber, AConnectionThatIsMadeAgainIsKept) {
  auto socket = std::make_unique<EventSocket>();
  Unread unread;
  const KvEventSubscriber subscriber(socket->endpoint, [&](KvEventMessage message) {
    const bool is_slow = message.number == 2;
    unread.add(std::move(message));
    if (is_slow) std::this_thread::sleep_for(std::chrono::milliseconds(500));
  });
  ASSERT_TRUE(unread.wait_for(1, [&] { socket->send(1, 10); }));
  socket->send(2, 10);
  ASSERT_TRUE(unread.wait_for(2));
  const std::string endpoint = socket->endpoint;
  const auto cut_at = std::chrono::steady_clock::now();
  socket.reset();
  EventSocket again(endpoint.c_str());
  ASSERT_EQ(again.endpoint, endpoint);
  ASSERT_TRUE(unread.wait_for(3, [&] { again.send(3, 10); }));
  const auto away = std::chrono::steady_clock::now() - cut_at;
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  ASSERT_TRUE(unread.wait_for(4, [&] { again.send(4, 10); }));
  EXPECT_TRUE(again.num_accepted() == 1 || away > std::chrono::milliseconds(900));
}

TEST(KvEventSubscriber, NoMoreIsTakenThanMayBeUnread) {
  EventSocket socket;
  Unread unread;
  const auto take = [&](KvEventMessage message) { unread.add(std::move(message)); };
  std::optional<KvEventSubscriber> subscriber(std::in_place, socket.endpoint, take);
  ASSERT_TRUE(unread.wait_for(1, [&] { socket.send(1, 10); }));
  constexpr size_t kBytes = size_t{1} << 20;
  constexpr size_t kMost = kMostPendingKvEventBytes / kBytes;
  for (char number = 2; number < 2 + 3 * static_cast<char>(kMost); ++number) {
    socket.send(number, kBytes);
  }
  ASSERT_TRUE(unread.wait_for(1 + static_cast<int64_t>(kMost)));
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  EXPECT_EQ(unread.all().back().first, 1 + static_cast<int64_t>(kMost));
  // The rest has waited, and comes when that is read.
  constexpr int64_t kLast = 1 + 3 * static_cast<int64_t>(kMost);
  ASSERT_TRUE(unread.wait_for(kLast, [&] { unread.read_except(kLast); }));
  for (char i = 0; i < 40; ++i) socket.send(i, kBytes);
  subscriber.reset();  // does not wait for the reader
}

#ifndef SLUICE_SANITIZED  // whose own memory is beyond such limits
// Lets the process have so many more bytes of address space.
void limit_address_space(size_t more_bytes) {
  size_t num_pages = 0;
  std::ifstream("/proc/self/statm") >> num_pages;
  rlimit limit{};
  getrlimit(RLIMIT_AS, &limit);
  limit.rlim_cur = num_pages * static_cast<size_t>(sysconf(_SC_PAGESIZE)) + more_bytes;
  setrlimit(RLIMIT_AS, &limit);
}

// Large messages leave the memory alone that requests are taken apart with. A process of its own,
// which has no reserves yet.
TEST(KvEventSubscriberDeathTest, WithoutReservesALargeMessageIsLost) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto is_lost = [] {
    EventSocket socket;
    Unread unread;
    const KvEventSubscriber subscriber(
        socket.endpoint, [&](KvEventMessage message) { unread.add(std::move(message)); });
    if (!unread.wait_for(1, [&] { socket.send(1, 10); })) return false;
    limit_address_space(size_t{64} << 20);
    socket.send(2, size_t{1} << 20);
    if (!unread.wait_for(3, [&] { socket.send(3, 10); })) return false;
    const auto all = unread.all();
    return std::ranges::none_of(all, [](const auto& message) { return message.first == 2; });
  };
  EXPECT_EXIT(std::_Exit(is_lost() ? 0 : 1), ::testing::ExitedWithCode(0), "");
}
#endif

TEST(KvEventSubscriber, AnEndpointOfAnyHostIsTheWorkersOwn) {
  EXPECT_EQ(reachable_endpoint("tcp://*:5557", "10.0.0.1"), "tcp://10.0.0.1:5557");
  EXPECT_EQ(reachable_endpoint("tcp://0.0.0.0:1", "::1"), "tcp://[::1]:1");
  EXPECT_EQ(reachable_endpoint("tcp://b:2", "a"), "tcp://b:2");
  EXPECT_EQ(reachable_endpoint("ipc:///tmp/x", "a"), "");
  EXPECT_EQ(reachable_endpoint("tcp://*:*", "a"), "");
}

}  // namespace
}  // namespace sluice
