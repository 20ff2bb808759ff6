// SPDX-License-Identifier: Apache-2.0
#include "engine/tiers/kv_event_publisher.h"

#include <gtest/gtest.h>
#include <unistd.h>
#include <zmq.h>

#include <algorithm>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "engine/tiers/tier_events.h"
#include "tests/support/temporary_folder.h"

namespace sluice {
namespace {

using Json = nlohmann::json;

constexpr int kTimeoutMs = 20000;

struct Message {
  std::string topic;
  int64_t number = 0;
  Json payload;  // null: the end of a replay
};

// A subscriber and a replay client of one publisher.
class Router {
 public:
  Router() : context_(zmq_ctx_new()) {
    options.is_enabled = true;
    options.endpoint = "ipc://" + folder_.at("events");
    options.replay_endpoint = "ipc://" + folder_.at("replay");
    options.topic = "kv@pod@model";
  }

  ~Router() {
    publisher.reset();
    for (void* socket : {subscriber_, client_}) {
      if (socket != nullptr) zmq_close(socket);
    }
    zmq_ctx_term(context_);
  }

  Router(const Router&) = delete;
  Router& operator=(const Router&) = delete;

  void start() {
    auto made = KvEventPublisher::create(
        options, 2, {{.kind = KvGroupKind::kFull}, {.kind = KvGroupKind::kWindow, .window = 8}});
    ASSERT_TRUE(made.has_value()) << made.error().message;
    publisher = std::move(*made);
    subscriber_ = open(ZMQ_SUB, options.endpoint);
    zmq_setsockopt(subscriber_, ZMQ_SUBSCRIBE, "", 0);
    client_ = open(ZMQ_DEALER, options.replay_endpoint);
  }

  Message next() { return receive(subscriber_, /*has_topic=*/true); }

  // Requests all messages from `first` on.
  std::vector<Message> replay(int64_t first) {
    std::string number(8, '\0');
    for (size_t i = 0; i < 8; ++i) number[i] = static_cast<char>(first >> (56 - 8 * i));
    zmq_send(client_, "", 0, ZMQ_SNDMORE);
    zmq_send(client_, number.data(), number.size(), 0);
    std::vector<Message> messages;
    while (true) {
      Message message = receive(client_, /*has_topic=*/false);
      if (message.payload.is_null()) {
        EXPECT_EQ(message.number, -1);
        return messages;
      }
      messages.push_back(std::move(message));
    }
  }

  // Waits until the replay has `count` messages: the publisher's thread may be behind.
  std::vector<Message> replay_of(size_t count) {
    std::vector<Message> messages;
    do {
      messages = replay(0);
    } while (messages.size() < count);
    return messages;
  }

  // Sends a request of so many bytes; returns whether the publisher ends the connection for it.
  bool is_cut_off_for(size_t request_bytes) {
    EXPECT_EQ(zmq_socket_monitor(client_, "inproc://client", ZMQ_EVENT_DISCONNECTED), 0);
    void* const events = zmq_socket(context_, ZMQ_PAIR);
    EXPECT_EQ(zmq_connect(events, "inproc://client"), 0);
    const std::string request(request_bytes, 'x');
    zmq_send(client_, "", 0, ZMQ_SNDMORE);
    zmq_send(client_, request.data(), request.size(), 0);
    zmq_pollitem_t item = {events, -1, ZMQ_POLLIN, 0};
    const bool is_cut_off = zmq_poll(&item, 1, kTimeoutMs) > 0;
    zmq_socket_monitor(client_, nullptr, 0);
    zmq_close(events);
    return is_cut_off;
  }

  KvEventsOptions options;
  std::unique_ptr<KvEventPublisher> publisher;

 private:
  void* open(int type, const std::string& endpoint) {
    void* socket = zmq_socket(context_, type);
    zmq_setsockopt(socket, ZMQ_RCVTIMEO, &kTimeoutMs, sizeof kTimeoutMs);
    EXPECT_EQ(zmq_connect(socket, endpoint.c_str()), 0);
    return socket;
  }

  static std::string frame(void* socket) {
    std::string text(1 << 16, '\0');
    const int size = zmq_recv(socket, text.data(), text.size(), 0);
    EXPECT_GE(size, 0) << zmq_strerror(zmq_errno());
    text.resize(static_cast<size_t>(std::max(size, 0)));
    return text;
  }

  static Message receive(void* socket, bool has_topic) {
    Message message;
    message.topic = frame(socket);
    if (!has_topic) {
      EXPECT_EQ(message.topic, "");
    }
    for (const char byte : frame(socket)) {
      message.number = message.number << 8 | static_cast<unsigned char>(byte);
    }
    const std::string payload = frame(socket);
    if (!payload.empty()) message.payload = Json::from_msgpack(payload);
    return message;
  }

  const testing::TemporaryFolder folder_;
  void* context_;
  void* subscriber_ = nullptr;
  void* client_ = nullptr;
};

void store(KvEventPublisher& publisher,
           uint64_t hash,
           std::optional<uint64_t> parent,
           TokenId first,
           int32_t group = 0,
           const PrefixExtras& extras = {}) {
  const std::vector<TokenId> tokens = {first, first + 1};
  publisher.stored(
      {.hash = hash, .parent_hash = parent, .token_ids = tokens, .extras = extras, .group = group});
}

TEST(KvEventPublisher, AStepIsOneMessageInVllmsShape) {
  Router router;
  ASSERT_NO_FATAL_FAILURE(router.start());
  KvEventPublisher& publisher = *router.publisher;
  store(publisher, 0xFFFFFFFFFFFFFFF1U, std::nullopt, 10);
  store(publisher, 2, 0xFFFFFFFFFFFFFFF1U, 12);  // continues the prefix: the same event
  store(publisher, 3, 2, 12, 1);                 // another group: another event
  publisher.removed(7, 0, KvMedium::kDevice);
  publisher.removed(8, 0, KvMedium::kDevice);
  publisher.end_step();
  publisher.end_step();  // no change: no message
  publisher.cleared();
  publisher.end_step();

  const std::vector<Message> messages = router.replay_of(3);
  ASSERT_EQ(messages.size(), 3U);
  for (int64_t i = 0; i < 3; ++i) EXPECT_EQ(messages[static_cast<size_t>(i)].number, i);
  EXPECT_EQ(messages[0].payload[1], Json::parse(R"([{"type": "AllBlocksCleared"}])"));
  const Json& step = messages[1].payload;
  EXPECT_GT(step[0].get<double>(), 1.6e9);
  EXPECT_TRUE(step[2].is_null());
  EXPECT_EQ(step[1][0], Json::parse(R"({
      "type": "BlockStored", "block_hashes": [18446744073709551601, 2], "parent_block_hash": null,
      "token_ids": [10, 11, 12, 13], "block_size": 2, "lora_id": null, "medium": "GPU",
      "lora_name": null, "extra_keys": null, "group_idx": 0,
      "kv_cache_spec_kind": "full_attention", "kv_cache_spec_sliding_window": null})"));
  EXPECT_EQ(step[1][1]["parent_block_hash"], 2);
  EXPECT_EQ(step[1][1]["kv_cache_spec_kind"], "sliding_window");
  EXPECT_EQ(step[1][1]["kv_cache_spec_sliding_window"], 8);
  EXPECT_EQ(step[1][2], Json::parse(R"({
      "type": "BlockRemoved", "block_hashes": [7, 8], "medium": "GPU", "group_idx": 0})"));
  EXPECT_EQ(router.replay(2).size(), 1U);
  EXPECT_EQ(router.replay(3).size(), 0U);
}

TEST(KvEventPublisher, ASubscriberGetsTopicAndNumberWithEachMessage) {
  Router router;
  ASSERT_NO_FATAL_FAILURE(router.start());
  // A subscription takes time; messages sent before it are in the replay.
  uint64_t hash = 0;
  Message message;
  do {
    store(*router.publisher, ++hash, std::nullopt, 10);
    router.publisher->end_step();
    ::usleep(1000);
  } while (router.replay(0).size() < 20);
  do {
    message = router.next();
  } while (message.number == 0);  // the subscription was early
  EXPECT_EQ(message.topic, "kv@pod@model");
  EXPECT_EQ(message.payload[1][0]["type"], "BlockStored");
  // Message 0 says that the cache is empty, message n stores the n-th hash.
  EXPECT_EQ(message.payload[1][0]["block_hashes"][0], message.number);
}

TEST(KvEventPublisher, TheOlderFormatIsPositional) {
  Router router;
  router.options.format = KvEventFormat::kArray;
  ASSERT_NO_FATAL_FAILURE(router.start());
  store(*router.publisher, 5, 4, 10, 0, {.tenant_salt = 9, .adapter_id = 3});
  router.publisher->removed(5, 0, KvMedium::kDevice);
  router.publisher->end_step();
  const std::vector<Message> messages = router.replay_of(2);
  EXPECT_EQ(messages[0].payload[1], Json::parse(R"([["AllBlocksCleared"]])"));
  EXPECT_EQ(messages[1].payload[1], Json::parse(R"([
      ["BlockStored", [5], 4, [10, 11], 2, 3, "GPU", null, [[9, 3, 0]]],
      ["BlockRemoved", [5], "GPU"]])"));
}

TEST(KvEventPublisher, BlocksOfTiersAreToldApart) {
  Router router;
  ASSERT_NO_FATAL_FAILURE(router.start());
  const std::vector<TokenId> tokens = {10, 11};
  for (const KvMedium medium : {KvMedium::kDevice, KvMedium::kHost, KvMedium::kDisk}) {
    router.publisher->stored({.hash = 5,
                              .parent_hash = std::nullopt,
                              .token_ids = tokens,
                              .extras = {},
                              .group = 0,
                              .medium = medium});
  }
  for (const KvMedium medium : {KvMedium::kHost, KvMedium::kDisk, KvMedium::kDisk}) {
    router.publisher->removed(5, 0, medium);
  }
  router.publisher->end_step();
  const Json events = router.replay_of(2)[1].payload[1];
  ASSERT_EQ(events.size(), 5U);
  const std::vector<std::string> media = {"GPU", "CPU", "STORAGE", "CPU", "STORAGE"};
  for (size_t i = 0; i < media.size(); ++i) {
    EXPECT_EQ(events[i]["type"], i < 3 ? "BlockStored" : "BlockRemoved");
    EXPECT_EQ(events[i]["medium"], media[i]);
  }
  EXPECT_EQ(events[4]["block_hashes"], Json::parse("[5, 5]"));
}

TEST(TierEvents, EachBlockIsToldOnceWhileItIsThere) {
  class Sink final : public KvEventSink {
   public:
    void stored(const StoredBlock& block) override {
      const TokenId first = block.token_ids.front();
      told.push_back("+" + std::to_string(block.hash) + ":" + std::to_string(first) + "/" +
                     std::to_string(block.group));
    }

    void removed(uint64_t hash, int32_t group, KvMedium medium) override {
      EXPECT_EQ(medium, KvMedium::kDisk);
      told.push_back("-" + std::to_string(hash) + "/" + std::to_string(group));
    }

    void cleared() override {}

    std::vector<std::string> take() { return std::exchange(told, {}); }

    std::vector<std::string> told;
  };

  using Told = std::vector<std::string>;
  Sink sink;
  TierEvents events(&sink, {KvMedium::kHost, KvMedium::kDisk}, {0, 1});
  std::vector<TokenId> tokens = {7, 8};
  const TierEvents::Block block = {
      .key = {1}, .hash = 9, .parent_hash = std::nullopt, .token_ids = tokens, .extras = {}};
  events.expect(1, block);
  events.report_existing(1, block);  // nothing before it is written
  EXPECT_EQ(sink.take(), Told{});
  tokens[0] = 0;  // the request's tokens are no longer needed
  events.note(1, block.key, true);
  EXPECT_EQ(sink.take(), (Told{"+9:7/0", "+9:7/1"}));
  events.note(1, block.key, true);
  events.report_existing(1, block);
  EXPECT_EQ(sink.take(), Told{});
  events.note(1, block.key, false);
  events.note(1, block.key, false);
  EXPECT_EQ(sink.take(), (Told{"-9/0", "-9/1"}));
  events.expect(1, block);  // evicted before it was written: never reported
  events.note(1, block.key, false);
  events.note(1, block.key, true);
  EXPECT_EQ(sink.take(), Told{});
  events.report_existing(1, block);  // found in the tier
  EXPECT_EQ(sink.take().size(), 2U);
}

TEST(KvEventPublisher, KeepsAsManyMessagesForReplayAsItWasTold) {
  Router router;
  router.options.buffer_steps = 3;
  ASSERT_NO_FATAL_FAILURE(router.start());
  for (uint64_t hash = 1; hash <= 10; ++hash) {
    store(*router.publisher, hash, std::nullopt, 1);
    router.publisher->end_step();
  }
  std::vector<Message> messages;
  do {
    messages = router.replay(0);
  } while (messages.empty() || messages.back().number < 10);
  ASSERT_EQ(messages.size(), 3U);
  EXPECT_EQ(messages.front().number, 8);
}

TEST(KvEventPublisher, ARequestOfManyBytesIsNotTaken) {
  Router router;
  ASSERT_NO_FATAL_FAILURE(router.start());
  EXPECT_TRUE(router.is_cut_off_for(5000));
  EXPECT_EQ(router.replay_of(1).front().number, 0);
}

class Watcher final : public KvEventWatcher {
 public:
  void publish(std::shared_ptr<const KvEventBatch> batch) override {
    const std::scoped_lock lock(mutex_);
    numbers_.push_back(batch->number);
  }

  // Waits for `count` numbers and returns them.
  std::vector<int64_t> numbers(size_t count) {
    for (;;) {
      const std::scoped_lock lock(mutex_);
      if (numbers_.size() >= count) return numbers_;
    }
  }

 private:
  std::mutex mutex_;
  std::vector<int64_t> numbers_;
};

TEST(KvEventPublisher, AWatcherGetsWhatIsKeptFromItsNumberOnAndThenWhatComes) {
  using Numbers = std::vector<int64_t>;
  Router router;
  router.options.buffer_steps = 3;
  router.start();
  const auto from_the_start = std::make_shared<Watcher>();
  router.publisher->watch(from_the_start, 0);
  EXPECT_EQ(from_the_start->numbers(1), Numbers{0});
  for (uint64_t hash = 1; hash <= 4; ++hash) {
    store(*router.publisher, hash, {}, 1);
    router.publisher->end_step();
  }
  EXPECT_EQ(from_the_start->numbers(5), (Numbers{0, 1, 2, 3, 4}));
  const auto resumes = std::make_shared<Watcher>();
  const auto starts_late = std::make_shared<Watcher>();  // the start is no longer kept
  auto leaves = std::make_shared<Watcher>();
  router.publisher->watch(resumes, 3);
  router.publisher->watch(starts_late, 0);
  router.publisher->watch(leaves, 1);
  EXPECT_EQ(leaves->numbers(3), (Numbers{2, 3, 4}));
  leaves.reset();
  store(*router.publisher, 5, {}, 1);
  router.publisher->end_step();
  EXPECT_EQ(resumes->numbers(3), (Numbers{3, 4, 5}));
  EXPECT_EQ(starts_late->numbers(1), Numbers{5});
}

TEST(KvEventPublisher, AnEndpointThatCannotBeHadIsNamed) {
  KvEventsOptions options;
  options.endpoint = "ipc:///dev/null/events";
  const auto refused = KvEventPublisher::create(options, 4, {{}});
  ASSERT_FALSE(refused.has_value());
  EXPECT_NE(refused.error().message.find("ipc:///dev/null/events"), std::string::npos);
}

TEST(KvEventsConfig, TakesVllmsMembersAndRefusesOthersByName) {
  const auto options = parse_kv_events_config(R"({
      "enable_kv_cache_events": true, "publisher": "zmq", "endpoint": "tcp://*:1",
      "replay_endpoint": "tcp://*:2", "buffer_steps": 5, "hwm": 6, "max_queue_size": 7,
      "topic": "t", "format": "array"})");
  ASSERT_TRUE(options.has_value()) << options.error().message;
  EXPECT_TRUE(options->is_enabled);
  EXPECT_EQ(options->endpoint, "tcp://*:1");
  EXPECT_EQ(options->replay_endpoint, "tcp://*:2");
  EXPECT_EQ(options->buffer_steps, 5);
  EXPECT_EQ(options->hwm, 6);
  EXPECT_EQ(options->max_queue_size, 7);
  EXPECT_EQ(options->topic, "t");
  EXPECT_EQ(options->format, KvEventFormat::kArray);
  EXPECT_FALSE(parse_kv_events_config("")->is_enabled);
  EXPECT_FALSE(parse_kv_events_config(R"({"enable_kv_cache_events": true, "publisher": "null"})")
                   ->is_enabled);
  for (const char* wrong : {R"({"hwm": 0})",
                            R"({"topic": 3})",
                            R"({"publisher": "kafka"})",
                            R"({"enable_kv_cache_events": 1})",
                            R"({"endpint": "x"})",
                            "[]",
                            "{"}) {
    const auto refused = parse_kv_events_config(wrong);
    ASSERT_FALSE(refused.has_value()) << wrong;
    EXPECT_EQ(refused.error().message.substr(0, 18), "kv-events-config: ");
  }
}

}  // namespace
}  // namespace sluice
