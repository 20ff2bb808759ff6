// SPDX-License-Identifier: Apache-2.0
// The state machine of a session, without threads, clocks and descriptors: two of them joined by
// streams and links in memory, with aborts, cuts and delays that a seed chooses.
#include "kvcache/transport/transport_session.h"

#include <gtest/gtest.h>
#include <sys/uio.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "kvcache/transport/transport_device.h"
#include "kvcache/transport/transport_stream.h"
#include "tests/support/kv_pair.h"
#include "tests/support/tier.h"

namespace sluice {
namespace {

using Clock = KvSessionState::Clock;
using Kind = KvCompletion::Kind;
using Random = std::mt19937_64;

constexpr size_t kSlotBytes = 1024;
constexpr std::chrono::milliseconds kRedialTime{20};

// Bytes in one direction.
struct Pipe {
  std::vector<std::byte> bytes;
  bool is_cut = false;
};

class MemoryStream final : public KvStream {
 public:
  MemoryStream(std::shared_ptr<Pipe> in, std::shared_ptr<Pipe> out, Random& random)
      : in_(std::move(in)), out_(std::move(out)), random_(random) {}

  ~MemoryStream() override { in_->is_cut = out_->is_cut = true; }

  bool watch(int, uint64_t) override { return true; }

  std::optional<size_t> write(std::span<const iovec> parts) override {
    if (out_->is_cut) return std::nullopt;
    size_t room = out_->bytes.size() < 400 ? random_() % 400 : 0;
    size_t total = 0;
    for (const iovec& part : parts) {
      const auto* const bytes = static_cast<const std::byte*>(part.iov_base);
      const size_t count = std::min(room, part.iov_len);
      out_->bytes.insert(out_->bytes.end(), bytes, bytes + count);
      room -= count;
      total += count;
    }
    return total;
  }

  std::optional<size_t> read(std::span<std::byte> out, kernels::KvChecksum* sum) override {
    if (in_->bytes.empty()) return in_->is_cut ? std::nullopt : std::optional<size_t>(0);
    const size_t count = std::min({out.size(), in_->bytes.size(), size_t{1} + random_() % 500});
    std::copy_n(in_->bytes.begin(), count, out.begin());
    in_->bytes.erase(in_->bytes.begin(), in_->bytes.begin() + static_cast<ptrdiff_t>(count));
    if (sum != nullptr) sum->add(out.first(count));
    return count;
  }

 private:
  const std::shared_ptr<Pipe> in_;
  const std::shared_ptr<Pipe> out_;
  Random& random_;
};

// What two ends of a link share: payloads that were given to each.
struct Channel {
  std::deque<std::span<const std::byte>> sent;
  size_t num_begun = 0;   // of all that were sent
  size_t num_copied = 0;  // likewise
  bool is_broken = false;
};

// A device that is slow, and goes on for a while after it was told to stop. No payload, except the
// first, may be received before its send has begun.
class SlowLink final : public DeviceLink {
 public:
  SlowLink(std::shared_ptr<Channel> channel, Random& random)
      : channel_(std::move(channel)), random_(random) {}

  [[nodiscard]] State state() const override { return state_; }

  void send(uint64_t number, std::span<const std::byte> bytes) override {
    channel_->sent.push_back(bytes);
    open_.push_back({number, {}, ++num_given_});
  }

  [[nodiscard]] bool is_receivable(uint64_t number) const override {
    const auto at = std::ranges::find(open_, number, &Open::number);
    return at == open_.end() || at->number_in_link <= std::max(channel_->num_begun, size_t{1});
  }

  [[nodiscard]] uint64_t place_of(std::span<const std::byte>) const override { return 0; }

  void receive(uint64_t number, uint64_t, std::span<std::byte> bytes) override {
    open_.push_back({number, bytes, ++num_given_});
    EXPECT_LE(num_given_, std::max(channel_->num_begun, size_t{1}));
  }

  void advance(std::vector<uint64_t>& done) override {
    if (state_ == State::kMaking && random_() % 4 == 0) state_ = State::kReady;
    if (state_ != State::kReady) return;
    if (channel_->num_begun < channel_->num_copied + channel_->sent.size() && random_() % 3 == 0) {
      ++channel_->num_begun;
    }
    copy_one();
    while (!open_.empty() && open_.front().number_in_link <= channel_->num_copied) {
      done.push_back(open_.front().number);
      open_.pop_front();
    }
  }

  [[nodiscard]] size_t num_open() const override { return open_.size(); }

  [[nodiscard]] bool is_working() const override { return !open_.empty(); }

  bool take(const KvFrame&) override { return false; }

  void take_frames(std::vector<KvFrame>&) override {}

  void abort() override { state_ = State::kBroken; }

  [[nodiscard]] bool is_gone() override {
    if (num_asked_++ < 6) copy_one();
    channel_->is_broken = channel_->is_broken || num_asked_ > 6;
    return num_asked_ > 6;
  }

 private:
  struct Open {
    uint64_t number = 0;
    std::span<std::byte> to;
    size_t number_in_link = 0;
  };

  // A receiver's.
  void copy_one() {
    if (open_.empty() || open_.front().to.empty() || random_() % 3 != 0) return;
    if (channel_->is_broken || channel_->sent.empty() ||
        open_.front().number_in_link != channel_->num_copied + 1)
      return;
    const std::span<const std::byte> from = channel_->sent.front();
    std::copy(from.begin(), from.end(), open_.front().to.begin());
    channel_->sent.pop_front();
    ++channel_->num_copied;
  }

  const std::shared_ptr<Channel> channel_;
  Random& random_;
  State state_ = State::kMaking;
  std::deque<Open> open_;
  size_t num_given_ = 0;
  size_t num_asked_ = 0;
};

// An offer is the number of a channel.
class SlowLinks final : public DeviceLinks {
 public:
  explicit SlowLinks(Random& random) : random_(random) {}

  [[nodiscard]] std::string_view kind() const override { return "slow"; }

  [[nodiscard]] size_t offer_bytes() const override { return sizeof(size_t); }

  Expected<std::unique_ptr<DeviceLink>> offer(std::span<const std::byte>,
                                              std::span<std::byte> offer) override {
    const size_t number = channels_.size();
    channels_.push_back(std::make_shared<Channel>());
    std::memcpy(offer.data(), &number, sizeof(number));
    return std::make_unique<SlowLink>(channels_[number], random_);
  }

  Expected<std::unique_ptr<DeviceLink>> accept(std::span<const std::byte> offer) override {
    size_t number = 0;
    std::memcpy(&number, offer.data(), sizeof(number));
    return std::make_unique<SlowLink>(channels_.at(number), random_);
  }

 private:
  Random& random_;
  std::vector<std::shared_ptr<Channel>> channels_;
};

// The transport in a session's place: commands wait here, and what was taken is counted.
class Owner final : public KvSessionOwner {
 public:
  void run_commands() override {
    for (const auto& command : std::exchange(commands, {})) command();
  }

  void complete(const KvCompletion& completion) override { completions.push_back(completion); }

  bool report_once(const KvCompletion& completion) override {
    complete(completion);
    return true;
  }

  void release_one() override { --num_outstanding; }

  KvAtomicCounts& atomic_counts() override { return counts; }

  void warn(const std::string&) override {}

  std::vector<std::function<void()>> commands;
  std::vector<KvCompletion> completions;
  KvAtomicCounts counts;
  int64_t num_outstanding = 0;
};

class World {
 public:
  World(bool on_devices, uint64_t seed)
      : random_(seed),
        on_devices_(on_devices),
        links_(random_),
        sender_(test::sender_options(layout_), 0, sender_owner_, now_),
        receiver_(test::receiver_options(layout_, "a"), on_devices ? 1 : 2, receiver_owner_, now_) {
  }

  // Faults and transfers at random, then a transfer without a fault, and the end.
  void run() {
    for (int i = 0; i < 600; ++i) {
      act();
      turn();
    }
    abort();
    for (uint32_t slot = 0; slot < kSlots; ++slot) transfer(slot);
    for (int i = 0; i < 20'000 && num_arrived_ < kSlots; ++i) turn();
    EXPECT_EQ(num_arrived_, kSlots);
    abort();
    for (int i = 0; i < 20'000 && num_gone_ < 2 * num_aborts_; ++i) turn();
    EXPECT_EQ(num_gone_, 2 * num_aborts_);
    receiver_owner_.commands.push_back([this] { receiver_.close(); });
    sender_owner_.commands.push_back([this] { sender_.close(); });
    for (int i = 0; i < 20'000 && !(sender_.is_over() && receiver_.is_over()); ++i) turn();
    EXPECT_TRUE(sender_.is_over() && receiver_.is_over());
    EXPECT_EQ(sender_owner_.num_outstanding, 0);
    EXPECT_EQ(receiver_owner_.num_outstanding, 0);
    EXPECT_EQ(receiver_owner_.counts.connections_refused, 0U);
    EXPECT_EQ(receiver_owner_.counts.frames_spoiled, 0U);
    for (const Part& part : parts_) {
      if (!part.is_gone) continue;
      EXPECT_TRUE(std::ranges::all_of(part.memory, [](std::byte b) { return b == kOthers; }));
    }
  }

 private:
  static constexpr uint32_t kSlots = 5;
  static constexpr std::byte kOthers{0x77};  // written where no payload may land any more

  struct Part {
    KvFrame frame;
    std::vector<std::byte> bytes;
    std::vector<std::byte> payload;  // the same, until it was sent
    std::vector<std::byte> memory;
    bool is_gone = false;  // its memory belongs to others
  };

  struct PendingConnection {
    std::unique_ptr<KvConnection> connection;
    std::optional<KvFrame> hello;
  };

  void act() {
    const uint64_t choice = random_() % 40;
    if (choice < 12) transfer(static_cast<uint32_t>(random_() % kSlots));
    if (choice == 12) abort();
    if (choice == 13 && !pipes_.empty()) pipes_[random_() % pipes_.size()]->is_cut = true;
    if (choice == 14) now_ += std::chrono::milliseconds(300);
  }

  void transfer(uint32_t slot) {
    const uint32_t generation = ++generation_;
    Part& part = parts_.emplace_back();
    part.frame = test::test_frame(layout_, ref_, slot, generation, 0, 1 + generation % 4);
    part.bytes = part.payload = test::test_bytes(part.frame.payload_bytes, generation);
    part.memory.resize(kSlotBytes);
    ++receiver_owner_.num_outstanding;
    receiver_owner_.commands.push_back([this, &part] {
      receiver_.post({part.frame.ref, part.frame.slot, part.frame.slot_generation, part.memory});
    });
    ++sender_owner_.num_outstanding;
    sender_owner_.commands.push_back([this, &part] { sender_.send({part.frame, {part.payload}}); });
  }

  void abort() {
    for (Owner* const owner : {&sender_owner_, &receiver_owner_}) {
      KvSessionState& session = owner == &sender_owner_ ? sender_ : receiver_;
      owner->commands.push_back([this, &session, ref = ref_] { session.abort(ref, now_); });
    }
    ++ref_.attempt;
    num_arrived_ = 0;
    ++num_aborts_;
  }

  std::unique_ptr<KvConnection> connect(const std::shared_ptr<Pipe>& in,
                                        const std::shared_ptr<Pipe>& out,
                                        bool is_receiver) {
    auto stream = std::make_unique<MemoryStream>(in, out, random_);
    if (on_devices_) {
      return std::make_unique<DeviceConnection>(0, std::move(stream), is_receiver, links_, unread_);
    }
    return std::make_unique<StreamConnection>(0, std::move(stream), is_receiver, unread_);
  }

  void turn() {
    now_ += std::chrono::milliseconds(random_() % 3);
    while (receiver_.should_dial(now_)) {
      pipes_ = {std::make_shared<Pipe>(), std::make_shared<Pipe>()};
      receiver_.add_dialled(connect(pipes_[0], pipes_[1], true));
      pending_.push_back({connect(pipes_[1], pipes_[0], false), std::nullopt});
    }
    std::erase_if(pending_, [this](PendingConnection& pending) {
      std::vector<KvDone> none;
      pending.connection->may_read = true;
      pending.connection->read(kKvFrameBytes, none);
      if (!pending.hello) pending.hello = pending.connection->take_frame();
      return pending.hello && sender_.accept(*pending.hello, pending.connection);
    });
    advance(sender_, sender_owner_);
    advance(receiver_, receiver_owner_);
  }

  void advance(KvSessionState& session, Owner& owner) {
    if (random_() % 3 == 0) owner.run_commands();
    for (const auto& connection : session.connections()) {
      connection->may_read = connection->may_write = true;
    }
    session.advance(now_, kRedialTime);
    for (const KvCompletion& one : std::exchange(owner.completions, {})) {
      take(one, &session == &receiver_);
    }
  }

  void take(const KvCompletion& one, bool is_receiver) {
    if (one.kind == Kind::kWriterGone) {
      ++num_gone_;
      gone_[is_receiver].insert(one.frame.ref.attempt);
    }
    EXPECT_FALSE(one.kind == Kind::kEnded && gone_[true].contains(one.frame.ref.attempt));
    for (Part& part : parts_) {
      if (part.frame.ref != one.frame.ref) continue;
      if (one.kind == Kind::kWriterGone && is_receiver) {
        part.memory.assign(kSlotBytes, kOthers);
        part.is_gone = true;
      }
      const bool is_it = part.frame.slot_generation == one.frame.slot_generation;
      const bool is_read = one.kind == Kind::kSent && is_it;
      EXPECT_FALSE(is_read && gone_[false].contains(one.frame.ref.attempt));
      if (is_read || (one.kind == Kind::kWriterGone && !is_receiver)) {
        std::ranges::fill(part.payload, std::byte{0xee});
      }
      if (one.kind != Kind::kArrived || !is_it) continue;
      if (one.frame.ref == ref_) ++num_arrived_;
      EXPECT_FALSE(gone_[true].contains(one.frame.ref.attempt));
      EXPECT_TRUE(std::ranges::equal(part.bytes, std::span(part.memory).first(part.bytes.size())));
    }
  }

  Random random_;
  const bool on_devices_;
  const KvFrameLayout layout_ = test::test_layout(25, kSlotBytes);
  Clock::time_point now_{};
  std::vector<std::byte> unread_ = std::vector<std::byte>(kSlotBytes);
  SlowLinks links_;
  std::deque<Part> parts_;
  KvTransferRef ref_ = test::test_transfer(1);
  uint32_t generation_ = 0;
  std::vector<std::shared_ptr<Pipe>> pipes_;  // of the last connection
  std::map<bool, std::set<uint32_t>> gone_;   // attempts, of the sender and the receiver
  size_t num_aborts_ = 0;
  size_t num_gone_ = 0;
  size_t num_arrived_ = 0;  // of this attempt
  Owner sender_owner_;
  Owner receiver_owner_;
  KvSessionState sender_;
  KvSessionState receiver_;
  std::vector<PendingConnection> pending_;
};

class KvSessionTest : public ::testing::TestWithParam<bool> {};

TEST_P(KvSessionTest, WhateverHappensEverythingComesBackAndNothingIsTouchedAfterwards) {
  for (uint64_t seed = 1; seed <= testing::sample_of<uint64_t>(30, 20'000); ++seed) {
    SCOPED_TRACE(seed);
    World(GetParam(), seed).run();
    ASSERT_FALSE(HasFailure());
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, KvSessionTest, ::testing::Bool(), [](const auto& kind) {
  return std::string(kind.param ? "devices" : "streams");
});

}  // namespace
}  // namespace sluice
