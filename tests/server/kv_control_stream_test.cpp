// SPDX-License-Identifier: Apache-2.0
// Streams of control messages over wires of this test, on threads that ThreadSanitizer sees: gRPC's
// own are not instrumented.
#include "server/grpc/kv_control_stream.h"

#include <gtest/gtest.h>

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "tests/server/kv_messages_sample.h"

namespace sluice {
namespace {

using kv::v1::Envelope;

// Ends of reads and writes are told on a thread of the wire's own.
class FakeWire final : public KvWire {
 public:
  explicit FakeWire(KvControlStream& stream) : stream_(stream), thread_([this] { run(); }) {}

  // Its thread ends, and with it what it writes to the peer: before either wire is destroyed.
  void stop() {
    {
      const std::scoped_lock lock(mutex_);
      is_ending_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }

  void join(FakeWire& peer) { peer_ = &peer; }

  void start_read(Envelope& into) override {
    const std::scoped_lock lock(mutex_);
    CHECK(reads_into_ == nullptr);
    reads_into_ = &into;
    changed_.notify_all();
  }

  void start_write(const Envelope& message) override {
    peer_->arrive(message);
    const std::scoped_lock lock(mutex_);
    CHECK(!has_written_);
    has_written_ = true;
    changed_.notify_all();
  }

  void finish(bool is_refused, const std::string&) override {
    CHECK(!is_finished_.exchange(true));
    is_refused_ = is_refused;
    peer_->arrive(std::nullopt);
    arrive(std::nullopt);
  }

  [[nodiscard]] std::string peer() const override { return "ipv4:10.1.2.3:4711"; }

  void arrive(std::optional<Envelope> message) {
    const std::scoped_lock lock(mutex_);
    arrived_.push_back(std::move(message));
    changed_.notify_all();
  }

  [[nodiscard]] bool is_finished() const { return is_finished_; }

  [[nodiscard]] bool is_refused() const { return is_refused_; }

 private:
  void run() {
    std::unique_lock lock(mutex_);
    while (true) {
      const auto can_read = [this] { return reads_into_ != nullptr && !arrived_.empty(); };
      changed_.wait(lock, [&] { return is_ending_ || has_written_ || can_read(); });
      if (has_written_) {
        has_written_ = false;
        lock.unlock();
        stream_.on_write(true);
        lock.lock();
      } else if (can_read()) {
        Envelope* into = std::exchange(reads_into_, nullptr);
        std::optional<Envelope> message = std::move(arrived_.front());
        if (message) arrived_.pop_front();  // the end stays
        lock.unlock();
        if (message) *into = *message;
        stream_.on_read(message.has_value());
        lock.lock();
      } else if (is_ending_) {
        return;
      }
    }
  }

  KvControlStream& stream_;
  FakeWire* peer_ = nullptr;
  std::atomic<bool> is_finished_ = false;
  std::atomic<bool> is_refused_ = false;
  std::mutex mutex_;
  std::condition_variable changed_;
  Envelope* reads_into_ = nullptr;
  std::deque<std::optional<Envelope>> arrived_;  // nothing: the end
  bool has_written_ = false;
  bool is_ending_ = false;
  std::thread thread_;
};

class Counts : public KvPeerSink {
 public:
  void deliver(KvPeerEvent event) override {
    num_up += std::holds_alternative<KvPeerUp>(event) ? 1 : 0;
    num_down += std::holds_alternative<KvPeerDown>(event) ? 1 : 0;
    if (const auto* message = std::get_if<KvPeerMessage>(&event)) {
      CHECK_EQ(num_up, 1);
      CHECK_EQ(num_down, 0);
      // In order, whoever sent them.
      const uint32_t number = std::get<KvDrain>(message->message).until_ms;
      CHECK_EQ(number, uint32_t{num_messages} + 1);
      ++num_messages;
    }
  }

  std::atomic<int> num_up = 0;
  std::atomic<int> num_down = 0;
  std::atomic<uint32_t> num_messages = 0;
};

TEST(KvControlStream, ATransportThatListensEverywhereIsFoundWhereTheStreamGoes) {
  for (const char* any : {"0.0.0.0:17", "[::]:17", "*:17"}) {
    EXPECT_EQ(reached_by(any, "ipv4:10.1.2.3:4711"), "10.1.2.3:17") << any;
    EXPECT_EQ(reached_by(any, "ipv6:[fd00::1]:4711"), "[fd00::1]:17") << any;
    EXPECT_EQ(reached_by(any, "ipv6:%5Bfd00::1%5D:4711"), "[fd00::1]:17") << any;
    EXPECT_EQ(reached_by(any, "unix:/a/socket"), any);
    EXPECT_EQ(reached_by(any, ""), any);
  }
  for (const char* other : {"10.9.9.9:17", "[fd00::2]:17", "shm:1a2b:sluice-kv-3c", ""}) {
    EXPECT_EQ(reached_by(other, "ipv4:10.1.2.3:4711"), other);
  }
}

KvStreamSettings settings(const std::string& secret = "one secret for all") {
  KvStreamSettings made;
  made.own = test::sample_hello();
  made.secret = secret;
  made.ping = std::chrono::milliseconds(5);
  made.dead = std::chrono::minutes(1);  // however slow the machine is
  return made;
}

struct Pair {
  explicit Pair(const std::string& listeners_secret = "one secret for all")
      : listener_settings(settings(listeners_secret)),
        caller(KvPeerId(1), KvSide::kCaller, caller_settings, at_caller),
        listener(KvPeerId(2), KvSide::kListener, listener_settings, at_listener) {
    caller_wire.join(listener_wire);
    listener_wire.join(caller_wire);
    listener.start(listener_wire);
    caller.start(caller_wire);
  }

  ~Pair() {
    caller_wire.stop();
    listener_wire.stop();
  }

  const KvStreamSettings caller_settings = settings();
  const KvStreamSettings listener_settings;
  Counts at_caller;
  Counts at_listener;
  KvControlStream caller;
  KvControlStream listener;
  FakeWire caller_wire{caller};
  FakeWire listener_wire{listener};
};

template <typename Condition>
bool wait_until(const Condition& condition) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::yield();
  }
  return true;
}

TEST(KvControlStream, MessagesOfSeveralThreadsComeInTheirOrderBesidePings) {
  Pair pair;
  std::atomic<bool> stop = false;
  std::thread timer([&] {
    while (!stop) {
      const auto now = KvControlStream::Clock::now();
      pair.caller.tick(now, 1, {});
      pair.listener.tick(now, 2, {});
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  });
  constexpr uint32_t kMessages = 2000;
  const auto send_all = [](KvControlStream& stream) {
    for (uint32_t number = 1; number <= kMessages && !stream.is_over();) {
      if (stream.send(KvDrain{number})) {
        ++number;
      } else {
        std::this_thread::yield();
      }
    }
  };
  std::thread other([&] { send_all(pair.listener); });
  send_all(pair.caller);
  other.join();
  EXPECT_TRUE(wait_until([&] {
    return pair.at_caller.num_messages == kMessages && pair.at_listener.num_messages == kMessages;
  }));
  stop = true;
  timer.join();
  EXPECT_EQ(pair.at_caller.num_down, 0);
}

// A wire whose reads and writes end when the test says so.
class SlowWire final : public KvWire {
 public:
  void start_read(Envelope& into) override { reads_into = &into; }

  void start_write(const Envelope& message) override { written.push_back(message); }

  void finish(bool, const std::string& reason) override { ending = reason; }

  [[nodiscard]] std::string peer() const override { return "ipv4:10.1.2.3:4711"; }

  Envelope* reads_into = nullptr;
  std::vector<Envelope> written;
  std::string ending;
};

TEST(KvControlStream, APeerThatReadsSlowlyIsKeptAndOneThatDoesNotIsLeft) {
  const KvStreamSettings made = settings();
  Counts at_caller;
  Counts at_listener;
  KvControlStream caller(KvPeerId(1), KvSide::kCaller, made, at_caller);
  KvControlStream listener(KvPeerId(2), KvSide::kListener, made, at_listener);
  SlowWire to_listener;
  SlowWire to_caller;
  listener.start(to_caller);
  caller.start(to_listener);
  const auto pass_on =
      [](SlowWire& from, KvControlStream& sender, SlowWire& to, KvControlStream& reader) {
        *to.reads_into = from.written.back();
        sender.on_write(true);
        reader.on_read(true);
      };
  pass_on(to_caller, listener, to_listener, caller);  // challenge
  pass_on(to_listener, caller, to_caller, listener);  // Hello
  pass_on(to_caller, listener, to_listener, caller);  // its answer
  ASSERT_EQ(at_caller.num_up + at_listener.num_up, 2);

  uint32_t number = 0;
  while (caller.send(KvDrain{number + 1})) ++number;
  ASSERT_GT(number, 1000u);
  auto now = KvControlStream::Clock::now();
  for (int i = 0; i < 10; ++i) caller.tick(now += made.ping * 2, 1, {});
  EXPECT_FALSE(caller.is_over());  // no ping had room
  for (uint32_t i = 0; i < number; ++i) pass_on(to_listener, caller, to_caller, listener);
  EXPECT_EQ(at_listener.num_messages, number);

  // The next one is never read, though the peer goes on speaking.
  ASSERT_TRUE(caller.send(KvDrain{number + 1}));
  const auto sent = KvControlStream::Clock::now();
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  listener.tick(KvControlStream::Clock::now(), 2, {});
  pass_on(to_caller, listener, to_listener, caller);
  caller.tick(sent + made.dead - made.ping, 1, {});
  EXPECT_FALSE(caller.is_over());
  caller.tick(sent + made.dead + std::chrono::milliseconds(10), 1, {});
  EXPECT_TRUE(caller.is_over());
  EXPECT_EQ(to_listener.ending, "the peer does not read");
  EXPECT_EQ(at_caller.num_down, 1);
}

TEST(KvControlStream, EndsOnceWhoeverEndsItAndWhenever) {
  for (int round = 0; round < 200; ++round) {
    Pair pair;
    std::atomic<bool> stop = false;
    std::thread sender([&] {
      for (uint32_t number = 1; !stop;) number += pair.caller.send(KvDrain{number}) ? 1 : 0;
    });
    std::thread closer([&] {
      if (round % 2 == 0) {
        wait_until([&] { return pair.at_listener.num_messages > 3u || pair.caller.is_over(); });
      }
      pair.listener.close("enough");
    });
    if (round % 3 == 0) pair.caller.close("enough");
    closer.join();
    EXPECT_TRUE(wait_until([&] { return pair.caller.is_over() && pair.listener.is_over(); }));
    stop = true;
    sender.join();
    EXPECT_FALSE(pair.caller.send(KvDrain{}));
    EXPECT_EQ(pair.at_caller.num_down, 1);
    EXPECT_EQ(pair.at_listener.num_down, pair.at_listener.num_up);
    EXPECT_TRUE(pair.caller_wire.is_finished() && pair.listener_wire.is_finished());
  }
}

TEST(KvControlStream, WithoutTheSecretTheListenerNeverHearsOfIt) {
  Pair pair("another secret of this");
  EXPECT_TRUE(wait_until([&] { return pair.caller.is_over() && pair.listener.is_over(); }));
  EXPECT_TRUE(pair.listener_wire.is_refused());
  EXPECT_EQ(pair.at_listener.num_up + pair.at_listener.num_down, 0);
  EXPECT_EQ(pair.at_caller.num_up, 0);
  EXPECT_EQ(pair.at_caller.num_down, 1);
}

}  // namespace
}  // namespace sluice
