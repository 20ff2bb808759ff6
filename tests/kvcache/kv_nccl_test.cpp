// SPDX-License-Identifier: Apache-2.0
// The transport over NCCL, against tests/support/fake_nccl.cpp: what arrives and what does not,
// whatever ends in between. The library ends the process where it is called as NCCL may not be.
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <deque>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "kernels/kv_checksum.h"
#include "kvcache/transport/kv_transport.h"
#include "tests/support/fake_nccl.h"
#include "tests/support/kv_pair.h"

namespace sluice {
namespace {

using test::TransportEnd;
using testing::FakeNcclBehavior;
using Clock = std::chrono::steady_clock;
using Kind = KvCompletion::Kind;

void behave(FakeNcclBehavior behavior) {
  behavior.owner = std::hash<std::thread::id>()(std::this_thread::get_id());
  testing::set_fake_nccl(SLUICE_FAKE_NCCL, behavior);
}

template <typename Done>
bool wait_until(const Done& done) {
  const auto end = Clock::now() + std::chrono::seconds(60);
  while (!done()) {
    if (Clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

class KvNccl : public ::testing::Test {
 protected:
  KvNccl() : layout_(test::test_layout()) {
    behave({});
    sender_ = make();
    receiver_ = make();
  }

  ~KvNccl() override {
    testing::set_fake_nccl(SLUICE_FAKE_NCCL, {});  // this thread ends the transports
  }

  std::unique_ptr<TransportEnd> make() {
    KvTransportOptions options;
    options.device = &device_;
    options.slot_bytes = layout_.slot_bytes;
    options.nccl_library = SLUICE_FAKE_NCCL;
    return std::make_unique<TransportEnd>("nccl", std::move(options));
  }

  void open() {
    ASSERT_TRUE((*sender_)->open(test::sender_options(layout_)).has_value());
    ASSERT_TRUE(
        (*receiver_)->open(test::receiver_options(layout_, (*sender_)->address())).has_value());
  }

  void post(uint32_t slot, uint32_t generation, const KvTransferRef& ref) {
    auto& memory = memory_[slot];
    memory.resize(layout_.slot_bytes);
    ASSERT_TRUE((*receiver_)->post(test::kTestSession, {ref, slot, generation, memory}));
  }

  // Blocks from 10 * slot on.
  void send(uint32_t slot, uint32_t generation, const KvTransferRef& ref, uint32_t blocks = 3) {
    const KvFrame frame = test::test_frame(layout_, ref, slot, generation, 10 * slot, blocks);
    sent_[slot] = &kept_.emplace_back(test::test_bytes(frame.payload_bytes, kept_.size()));
    ASSERT_TRUE((*sender_)->send(test::kTestSession, frame, {*sent_[slot]}));
  }

  [[nodiscard]] bool has_arrived(uint32_t slot) const {
    const auto& sent = *sent_.at(slot);
    return std::ranges::equal(sent, std::span(memory_.at(slot)).first(sent.size()));
  }

  const KvFrameLayout layout_;
  testing::FakeNcclDevice device_;
  std::deque<std::vector<std::byte>> kept_;
  std::map<uint32_t, const std::vector<std::byte>*> sent_;
  std::map<uint32_t, std::vector<std::byte>> memory_;
  std::unique_ptr<TransportEnd> sender_;
  std::unique_ptr<TransportEnd> receiver_;
};

TEST_F(KvNccl, PayloadsArriveInTheirSlotsHoweverLateTheCommunicatorIs) {
  behave({.init_asks = 20});
  open();
  constexpr uint32_t kFrames = 60;
  const KvTransferRef ref = test::test_transfer(1);
  for (uint32_t i = 0; i < kFrames; ++i) post(i, 100 + i, ref);
  for (uint32_t i = 0; i < kFrames; ++i) send(i, 100 + i, ref, 1 + i);
  ASSERT_TRUE(receiver_->wait_for(Kind::kArrived, kFrames));
  ASSERT_TRUE(sender_->wait_for(Kind::kSent, kFrames));
  uint64_t bytes = 0;
  for (const KvCompletion& arrived : receiver_->all()) {
    EXPECT_EQ(arrived.session, test::kTestSession);
    EXPECT_EQ(arrived.frame.ref, ref);
    EXPECT_EQ(arrived.frame.epoch, test::kSenderEpoch);
    EXPECT_EQ(arrived.frame.first_block, 10 * arrived.frame.slot);
    EXPECT_TRUE(has_arrived(arrived.frame.slot)) << arrived.frame.slot;
    bytes += arrived.frame.payload_bytes;
  }
  EXPECT_EQ((*receiver_)->counts().bytes_arrived, bytes);
  EXPECT_EQ((*sender_)->counts().bytes_sent, bytes);
  EXPECT_EQ((*receiver_)->counts().frames_stale, 0U);
  EXPECT_EQ((*receiver_)->counts().connections_lost, 0U);
  EXPECT_TRUE((*sender_)->moves_device_memory());
}

TEST_F(KvNccl, WhatNoSlotIsPostedForLandsNowhere) {
  open();
  const KvTransferRef ref = test::test_transfer(1);
  post(3, 8, ref);
  post(4, 8, ref);
  send(3, 7, ref);                        // an earlier generation
  send(3, 9, ref);                        // one that is not yet
  send(5, 8, ref);                        // another slot
  send(3, 8, test::test_transfer(1, 2));  // another attempt
  send(3, 8, test::test_transfer(2));     // another transfer
  send(4, 8, ref);
  ASSERT_TRUE(receiver_->wait_for(Kind::kArrived));
  EXPECT_EQ(receiver_->all().front().frame.slot, 4U);
  EXPECT_TRUE(has_arrived(4));
  EXPECT_EQ(memory_[3], std::vector<std::byte>(layout_.slot_bytes));
  send(4, 8, ref);  // once more: the slot is not posted any more
  const auto before = memory_[4];
  ASSERT_TRUE(sender_->wait_for(Kind::kSent, 7));
  ASSERT_TRUE(wait_until([&] { return (*receiver_)->counts().frames_stale == 6; }));
  EXPECT_EQ(memory_[4], before);
  EXPECT_EQ((*receiver_)->counts().frames_arrived, 1U);
  EXPECT_EQ((*receiver_)->counts().connections_refused, 0U);
}

// The peers live, so that what is on its way is soon there.
TEST_F(KvNccl, AbortsOfEitherSideLeaveTheConnectionAsItIs) {
  open();
  const KvTransferRef ref = test::test_transfer(1);
  for (uint32_t attempt = 1; attempt < 20; ++attempt) {
    const KvTransferRef aborted = test::test_transfer(1, attempt);
    post(0, attempt, aborted);
    send(0, attempt, aborted);
    TransportEnd& end = attempt % 2 == 0 ? *sender_ : *receiver_;
    end->abort(test::kTestSession, aborted);
    ASSERT_TRUE(end.wait_for(Kind::kWriterGone, (attempt + 1) / 2)) << attempt;
  }
  post(1, 1, ref);
  send(1, 1, ref);
  ASSERT_TRUE(receiver_->wait_until([](const auto& all) {
    return std::ranges::any_of(all, [](const KvCompletion& one) {
      return one.kind == Kind::kArrived && one.frame.slot == 1;
    });
  }));
  EXPECT_TRUE(has_arrived(1));
  EXPECT_EQ((*receiver_)->counts().connections_lost, 0U);
  EXPECT_EQ((*sender_)->counts().connections_lost, 0U);
}

// Its GPU waits for ever: the pair ends, and no byte comes after the owner was told.
TEST_F(KvNccl, AnAbortOfWhatDoesNotArriveEndsThePairAndThenNothingLands) {
  behave({.holds = true, .abort_ms = 30});
  open();
  const KvTransferRef held = test::test_transfer(1);
  const KvTransferRef other = test::test_transfer(2);
  post(0, 1, held);
  post(1, 1, other);
  send(0, 1, held);
  send(1, 1, other);
  std::this_thread::sleep_for(std::chrono::milliseconds(100));  // less would test less
  (*receiver_)->abort(test::kTestSession, held);
  EXPECT_FALSE(receiver_->wait_until([&](const auto&) { return receiver_->num(Kind::kWriterGone); },
                                     std::chrono::milliseconds(100)));
  ASSERT_TRUE(receiver_->wait_for(Kind::kWriterGone));
  memory_[0].assign(layout_.slot_bytes, std::byte{0x5a});
  const auto before = memory_[0];
  behave({});
  // What the sender had begun goes again; that of the other transfer has its slot still.
  ASSERT_TRUE(receiver_->wait_for(Kind::kArrived));
  ASSERT_TRUE(sender_->wait_for(Kind::kSent, 2));
  EXPECT_TRUE(has_arrived(1));
  EXPECT_EQ(receiver_->num(Kind::kArrived), 1U);
  EXPECT_EQ(memory_[0], before);
}

TEST_F(KvNccl, ASendersAbortEndsWhenItsPayloadIsNotReadAnyMore) {
  behave({.holds = true});
  open();
  const KvTransferRef ref = test::test_transfer(1);
  post(0, 1, ref);
  send(0, 1, ref);
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  (*sender_)->abort(test::kTestSession, ref);
  ASSERT_TRUE(sender_->wait_for(Kind::kWriterGone));
  std::ranges::fill(kept_.front(), std::byte{0});
  behave({});
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  EXPECT_EQ(receiver_->num(Kind::kArrived), 0U);
  EXPECT_EQ(sender_->num(Kind::kSent), 0U);
}

TEST_F(KvNccl, APeerThatIsGoneHoldsNobodyUp) {
  behave({.holds = true, .abort_ms = 20});
  open();
  const KvTransferRef ref = test::test_transfer(1);
  post(0, 1, ref);
  send(0, 1, ref);
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  sender_.reset();
  ASSERT_TRUE(wait_until([&] { return (*receiver_)->counts().connections_lost > 0; }));
  const auto begun = Clock::now();
  (*receiver_)->abort(test::kTestSession, ref);
  (*receiver_)->close(test::kTestSession);
  EXPECT_LT(Clock::now() - begun, std::chrono::seconds(10));
  ASSERT_TRUE(receiver_->wait_for(Kind::kClosed));
  EXPECT_EQ(receiver_->num(Kind::kArrived), 0U);
  EXPECT_EQ(receiver_->num(Kind::kWriterGone), 1U);
}

TEST_F(KvNccl, ClosingEndsWhatTheGpuHoldsUp) {
  behave({.holds = true});
  open();
  const KvTransferRef ref = test::test_transfer(1);
  post(0, 1, ref);
  send(0, 1, ref);
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  (*sender_)->close(test::kTestSession);
  ASSERT_TRUE(sender_->wait_for(Kind::kClosed));
  EXPECT_FALSE((*sender_)->send(
      test::kTestSession, test::test_frame(layout_, ref, 0, 1, 0, 3), {kept_.front()}));
  (*receiver_)->close(test::kTestSession);
  ASSERT_TRUE(receiver_->wait_for(Kind::kClosed));
}

// Found by neither side's call: both make another pair, and what was not done goes again.
TEST_F(KvNccl, AnErrorOfTheLibraryCostsNoPayload) {
  behave({.breaks_after = 5});
  open();
  constexpr uint32_t kFrames = 12;
  const KvTransferRef ref = test::test_transfer(1);
  for (uint32_t i = 0; i < kFrames; ++i) post(i, 1, ref);
  for (uint32_t i = 0; i < kFrames; ++i) send(i, 1, ref);
  const auto lost = [&] {
    return (*sender_)->counts().connections_lost + (*receiver_)->counts().connections_lost;
  };
  ASSERT_TRUE(wait_until([&] { return lost() > 0; }));
  behave({});
  ASSERT_TRUE(receiver_->wait_for(Kind::kArrived, kFrames));
  ASSERT_TRUE(sender_->wait_for(Kind::kSent, kFrames));
  for (uint32_t i = 0; i < kFrames; ++i) EXPECT_TRUE(has_arrived(i)) << i;
}

TEST_F(KvNccl, ACommunicatorThatCannotBeMadeIsTriedAgain) {
  behave({.refuses_to_make = true});
  open();
  const KvTransferRef ref = test::test_transfer(1);
  post(0, 1, ref);
  send(0, 1, ref);
  ASSERT_TRUE(wait_until([&] { return (*sender_)->counts().connections_lost > 1; }));
  behave({});
  ASSERT_TRUE(receiver_->wait_for(Kind::kArrived));
  EXPECT_TRUE(has_arrived(0));
}

TEST_F(KvNccl, AReceiverAsksOnceMoreAndHearsThatAnAttemptWasGivenUp) {
  open();
  const KvTransferRef ref = test::test_transfer(1);
  post(0, 1, ref);
  send(0, 1, ref);
  ASSERT_TRUE(receiver_->wait_for(Kind::kArrived));
  post(0, 2, ref);
  KvFrame nak = receiver_->all().front().frame;
  nak.kind = KvFrameKind::kNak;
  nak.slot_generation = 2;
  nak.payload_bytes = 0;
  ASSERT_TRUE((*receiver_)->send(test::kTestSession, nak, {}));
  ASSERT_TRUE(sender_->wait_for(Kind::kNak));
  const auto asked = std::ranges::find(sender_->all(), Kind::kNak, &KvCompletion::kind);
  EXPECT_EQ(asked->frame.slot_generation, 2U);
  (*sender_)->abort(test::kTestSession, ref);
  ASSERT_TRUE(receiver_->wait_for(Kind::kEnded));
  EXPECT_EQ(receiver_->all().back().frame.ref, ref);  // it has nothing else to say
}

// A connection to the sender, to say what no worker says.
int connect_to(const std::string& address) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_port = htons(static_cast<uint16_t>(std::stoi(address.substr(address.rfind(':') + 1))));
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  CHECK_EQ(connect(fd, reinterpret_cast<const sockaddr*>(&at), sizeof(at)), 0);
  return fd;
}

TEST_F(KvNccl, StrangersGetNothing) {
  ASSERT_TRUE((*sender_)->open(test::sender_options(layout_)).has_value());
  KvFrame hello;
  hello.kind = KvFrameKind::kHello;
  hello.epoch = test::kReceiverEpoch;
  hello.ref.transfer = test::test_token(0x10);  // of nobody
  KvFrame data = hello;
  data.kind = KvFrameKind::kData;
  KvFrame old = hello;
  old.ref.transfer = test::test_token();
  old.epoch = 1;
  for (const KvFrame& frame : {hello, data, old}) {
    const int fd = connect_to((*sender_)->address());
    std::array<std::byte, kKvFrameBytes> bytes;
    encode_kv_frame(frame, bytes);
    ASSERT_EQ(::send(fd, bytes.data(), bytes.size(), 0), static_cast<ssize_t>(bytes.size()));
    EXPECT_EQ(recv(fd, bytes.data(), bytes.size(), 0), 0);  // the end, and no byte of an id
    close(fd);
  }
  EXPECT_EQ((*sender_)->counts().connections_refused, 3U);
}

// A sender of bytes that are none of its frames, or of payloads that no slot has room for.
TEST_F(KvNccl, FramesThatNoPeerSendsEndTheConnection) {
  const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(at);
  auto* const address = reinterpret_cast<sockaddr*>(&at);
  ASSERT_EQ(bind(listener, address, size), 0);
  ASSERT_EQ(listen(listener, 8), 0);
  ASSERT_EQ(getsockname(listener, address, &size), 0);
  const std::string here = "127.0.0.1:" + std::to_string(ntohs(at.sin_port));
  ASSERT_TRUE((*receiver_)->open(test::receiver_options(layout_, here)).has_value());
  const KvTransferRef ref = test::test_transfer(1);
  post(0, 1, ref);
  for (int round = 0; round < 3; ++round) {
    const int fd = accept(listener, nullptr, nullptr);
    std::vector<std::byte> said(round == 0 ? 4096 : 136);
    if (round > 0) {
      said[0] = static_cast<std::byte>(200 + round);  // ids of its own
      const uint64_t sum = kernels::kv_checksum(std::span(said).first(128));
      std::memcpy(said.data() + 128, &sum, sizeof(sum));
      KvFrame frame = test::test_frame(layout_, ref, 0, 1, 0, 3);
      frame.epoch = test::kSenderEpoch;
      if (round == 1) frame.payload_bytes += 1;
      if (round == 2) frame.kind = KvFrameKind::kReady;  // which a receiver says
      if (round == 2) frame.payload_bytes = 0;
      said.resize(said.size() + kKvFrameBytes);
      encode_kv_frame(frame, std::span(said).last<kKvFrameBytes>());
    }
    ASSERT_EQ(::send(fd, said.data(), said.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(said.size()));
    ASSERT_TRUE(wait_until([&] {
      return (*receiver_)->counts().connections_refused == static_cast<uint64_t>(round) + 1;
    })) << round;
    close(fd);
  }
  close(listener);
  EXPECT_EQ((*receiver_)->counts().frames_arrived, 0U);
}

TEST_F(KvNccl, EndingATransportWithWorkUnderWayTouchesNothingAfterwards) {
  for (int round = 0; round < 6; ++round) {
    behave({.init_asks = round, .holds = round % 2 == 0});
    open();
    const KvTransferRef ref = test::test_transfer(1);
    post(0, 1, ref);
    for (int i = 0; i < 5; ++i) send(0, 1, ref, 100);
    if (round % 2 == 1) {
      ASSERT_TRUE(sender_->wait_for(Kind::kSent));
    }
    testing::set_fake_nccl(SLUICE_FAKE_NCCL, {.holds = round % 2 == 0});
    sender_.reset();
    receiver_.reset();
    memory_.clear();
    behave({});
    sender_ = make();
    receiver_ = make();
  }
}

TEST(KvNcclTransport, WithoutAGpuOrALibraryThereIsNone) {
  testing::FakeNcclDevice device;
  KvTransportOptions options;
  options.listen = "127.0.0.1:0";
  EXPECT_EQ(make_kv_transport("nccl", options).error().code, ErrorCode::kUnavailable);
  options.device = &kernels::host_memory();
  EXPECT_EQ(make_kv_transport("nccl", options).error().code, ErrorCode::kUnavailable);
  options.device = &device;
  options.nccl_library = "libno-such-nccl.so.9";
  const auto made = make_kv_transport("nccl", options);
  ASSERT_FALSE(made.has_value());
  EXPECT_NE(made.error().message.find("libno-such-nccl.so.9"), std::string::npos);
  EXPECT_TRUE(is_kv_device_transport("nccl"));
  EXPECT_FALSE(is_kv_device_transport("tcp"));
}

}  // namespace
}  // namespace sluice
