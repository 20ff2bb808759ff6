// SPDX-License-Identifier: Apache-2.0
// Behaviour of every transport, run over each kind.
#include "kvcache/transport/kv_transport.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <deque>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "kvcache/transport/transport_shm.h"
#include "tests/support/kv_pair.h"

namespace sluice {
namespace {

using test::TransportEnd;
using Kind = KvCompletion::Kind;

class KvTransportTest : public ::testing::TestWithParam<std::string> {
 protected:
  KvTransportTest() : layout_(test::test_layout()), sender_(GetParam()), receiver_(GetParam()) {}

  void open() {
    ASSERT_TRUE(sender_->open(test::sender_options(layout_)).has_value());
    ASSERT_TRUE(receiver_->open(test::receiver_options(layout_, sender_->address())).has_value());
  }

  KvLanding landing(uint32_t slot, uint32_t generation, const KvTransferRef& ref) {
    auto& memory = memory_[slot];
    memory.resize(layout_.slot_bytes);
    return {ref, slot, generation, memory};
  }

  // Payloads live until their transports have ended.
  const std::vector<std::byte>& keep(size_t count, uint64_t seed) {
    return kept_.emplace_back(test::test_bytes(count, seed));
  }

  const KvFrameLayout layout_;
  std::deque<std::vector<std::byte>> kept_;
  std::map<uint32_t, std::vector<std::byte>> memory_;
  std::map<uint32_t, std::vector<std::byte>> sent_;
  TransportEnd sender_;
  TransportEnd receiver_;
};

TEST_P(KvTransportTest, PayloadsArriveInTheirSlots) {
  open();
  constexpr uint32_t kFrames = 60;
  const KvTransferRef ref = test::test_transfer(1);
  for (uint32_t i = 0; i < kFrames; ++i) {
    ASSERT_TRUE(receiver_->post(test::kTestSession, landing(i, 100 + i, ref)));
  }
  for (uint32_t i = 0; i < kFrames; ++i) {
    const KvFrame frame = test::test_frame(layout_, ref, i, 100 + i, 10 * i, 1 + i);
    sent_[i] = test::test_bytes(frame.payload_bytes, i);
    ASSERT_TRUE(sender_->send(test::kTestSession, frame, test::in_spans(sent_[i], 9000)));
  }
  ASSERT_TRUE(receiver_.wait_for(Kind::kArrived, kFrames));
  ASSERT_TRUE(sender_.wait_for(Kind::kSent, kFrames));
  uint64_t bytes = 0;
  std::vector<uint64_t> sequences;
  for (const KvCompletion& arrived : receiver_.all()) {
    EXPECT_EQ(arrived.session, test::kTestSession);
    EXPECT_EQ(arrived.frame.ref, ref);
    EXPECT_EQ(arrived.frame.epoch, test::kSenderEpoch);
    EXPECT_EQ(arrived.frame.first_block, 10 * arrived.frame.slot);
    const auto& sent = sent_.at(arrived.frame.slot);
    EXPECT_TRUE(
        std::ranges::equal(sent, std::span(memory_.at(arrived.frame.slot)).first(sent.size())));
    bytes += sent.size();
    sequences.push_back(arrived.frame.sequence);
  }
  std::ranges::sort(sequences);
  EXPECT_EQ(std::ranges::adjacent_find(sequences), sequences.end());
  EXPECT_EQ(receiver_->counts().bytes_arrived, bytes);
  EXPECT_EQ(sender_->counts().bytes_sent, bytes);
  EXPECT_EQ(receiver_->counts().frames_stale, 0u);
  EXPECT_EQ(receiver_.all().size(), kFrames);
}

TEST_P(KvTransportTest, WhatNoSlotIsPostedForIsReadAwayAndCounted) {
  open();
  const KvTransferRef ref = test::test_transfer(1);
  memory_[3].assign(layout_.slot_bytes, std::byte{0x5a});
  ASSERT_TRUE(receiver_->post(test::kTestSession, landing(3, 8, ref)));
  const auto& bytes = keep(layout_.slot_bytes, 1);
  const auto send = [&](const KvTransferRef& whose, uint32_t slot, uint32_t generation) {
    const KvFrame frame = test::test_frame(layout_, whose, slot, generation, 0, 5);
    const KvPayload payload = {std::span(bytes).first(frame.payload_bytes)};
    ASSERT_TRUE(sender_->send(test::kTestSession, frame, payload));
  };
  send(ref, 3, 7);                        // an earlier generation
  send(ref, 3, 9);                        // one that is not yet
  send(ref, 4, 8);                        // another slot
  send(test::test_transfer(1, 2), 3, 8);  // another attempt
  send(test::test_transfer(2), 3, 8);     // another transfer
  ASSERT_TRUE(sender_.wait_for(Kind::kSent, 5));
  send(ref, 3, 8);
  ASSERT_TRUE(receiver_.wait_for(Kind::kArrived));
  send(ref, 3, 8);  // once more: the slot is not posted any more
  const auto before = memory_[3];
  ASSERT_TRUE(sender_.wait_for(Kind::kSent, 7));
  // A frame behind it on each connection: then it has been read.
  ASSERT_TRUE(receiver_->post(test::kTestSession, landing(5, 1, ref)));
  ASSERT_TRUE(receiver_->post(test::kTestSession, landing(6, 1, ref)));
  send(ref, 5, 1);
  send(ref, 6, 1);
  ASSERT_TRUE(receiver_.wait_for(Kind::kArrived, 3));
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (receiver_->counts().frames_stale < 6 && std::chrono::steady_clock::now() < end) {
    std::this_thread::yield();
  }
  EXPECT_EQ(receiver_->counts().frames_stale, 6u);
  EXPECT_EQ(receiver_->counts().frames_arrived, 3u);
  EXPECT_EQ(memory_[3], before);
  EXPECT_EQ(receiver_->counts().connections_refused, 0u);
}

// Also of one that fills a ring of shared memory, or more.
TEST_P(KvTransportTest, FramesOfAnySizeArrive) {
  const KvFrameLayout layout = test::test_layout(1 << 20, uint64_t{32} << 20);
  TransportEnd sender(GetParam());
  std::vector<std::byte> memory(layout.slot_bytes);
  TransportEnd receiver(GetParam());
  ASSERT_TRUE(sender->open(test::sender_options(layout)).has_value());
  ASSERT_TRUE(receiver->open(test::receiver_options(layout, sender->address())).has_value());
  for (uint32_t round = 1; round <= 4; ++round) {  // 8 to 32 MiB
    const KvFrame frame = test::test_frame(layout, test::test_transfer(1), 0, round, 0, round);
    const auto& bytes = keep(frame.payload_bytes, round);
    ASSERT_TRUE(receiver->post(test::kTestSession, {frame.ref, 0, round, memory}));
    ASSERT_TRUE(sender->send(test::kTestSession, frame, test::in_spans(bytes, 50'000)));
    ASSERT_TRUE(receiver.wait_for(Kind::kArrived, round));
    EXPECT_TRUE(std::ranges::equal(bytes, std::span(memory).first(bytes.size())));
  }
  EXPECT_EQ(receiver->counts().frames_stale, 0u);
}

// The sender acts on what the receiver has posted, however close behind.
TEST_P(KvTransportTest, ASlotIsThereForAFrameThatWasSentAfterItWasPosted) {
  open();
  const KvTransferRef ref = test::test_transfer(1);
  const auto& bytes = keep(layout_.slot_bytes, 1);
  constexpr uint32_t kSlots = 3;
  constexpr uint32_t kFrames = 3000;
  uint32_t num_given = 0;
  const auto give = [&](uint32_t slot) {
    ASSERT_TRUE(receiver_->post(test::kTestSession, landing(slot, num_given, ref)));
    const KvFrame frame = test::test_frame(layout_, ref, slot, num_given, 0, 1 + num_given % 9);
    ++num_given;
    const KvPayload payload = {std::span(bytes).first(frame.payload_bytes)};
    ASSERT_TRUE(sender_->send(test::kTestSession, frame, payload));
  };
  for (uint32_t slot = 0; slot < kSlots; ++slot) give(slot);
  std::vector<KvCompletion> fresh;
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  uint32_t num_arrived = 0;
  while (num_arrived < kFrames && std::chrono::steady_clock::now() < end) {
    receiver_->poll(fresh);
    if (fresh.empty()) std::this_thread::yield();
    for (const KvCompletion& one : fresh) {
      ASSERT_EQ(one.kind, Kind::kArrived);
      ++num_arrived;
      if (num_given < kFrames) give(one.frame.slot);
    }
  }
  EXPECT_EQ(num_arrived, kFrames);
  EXPECT_EQ(receiver_->counts().frames_stale, 0u);
}

TEST_P(KvTransportTest, AbortOfTheReceiverEndsWithWriterGone) {
  open();
  const KvTransferRef ref = test::test_transfer(1);
  const KvTransferRef other = test::test_transfer(2);
  constexpr uint32_t kFrames = 32;
  for (uint32_t i = 0; i < kFrames; ++i) {
    ASSERT_TRUE(receiver_->post(test::kTestSession, landing(i, 1, i % 2 == 0 ? ref : other)));
    const KvFrame frame = test::test_frame(layout_, i % 2 == 0 ? ref : other, i, 1, 0, 100);
    sent_[i] = test::test_bytes(frame.payload_bytes, i);
    ASSERT_TRUE(sender_->send(test::kTestSession, frame, {sent_[i]}));
  }
  receiver_->abort(test::kTestSession, ref);
  ASSERT_TRUE(receiver_.wait_for(Kind::kWriterGone));
  // The memory is the caller's: what is written now stays.
  for (uint32_t i = 0; i < kFrames; i += 2) {
    memory_[i].assign(layout_.slot_bytes, std::byte{0x77});
  }
  ASSERT_TRUE(receiver_.wait_until([&](const std::vector<KvCompletion>& all) {
    return std::ranges::count_if(all, [&](const KvCompletion& one) {
             return one.kind == Kind::kArrived && one.frame.ref == other;
           }) == kFrames / 2;
  }));
  ASSERT_TRUE(sender_.wait_for(Kind::kSent, kFrames));
  bool is_gone = false;
  for (const KvCompletion& one : receiver_.all()) {
    if (one.kind == Kind::kWriterGone) is_gone = true;
    EXPECT_FALSE(is_gone && one.kind == Kind::kArrived && one.frame.ref == ref);
  }
  for (uint32_t i = 0; i < kFrames; i += 2) {
    EXPECT_TRUE(std::ranges::all_of(memory_[i], [](std::byte b) { return b == std::byte{0x77}; }));
  }
}

TEST_P(KvTransportTest, AbortOfTheSenderTellsTheReceiver) {
  open();
  const KvTransferRef ref = test::test_transfer(1);
  ASSERT_TRUE(receiver_->post(test::kTestSession, landing(0, 1, ref)));
  ASSERT_TRUE(receiver_->post(test::kTestSession, landing(1, 1, ref)));
  const KvFrame frame = test::test_frame(layout_, ref, 1, 1, 0, 1);
  ASSERT_TRUE(sender_->send(test::kTestSession, frame, {keep(frame.payload_bytes, 1)}));
  ASSERT_TRUE(receiver_.wait_for(Kind::kArrived));
  sender_->abort(test::kTestSession, ref);
  ASSERT_TRUE(sender_.wait_for(Kind::kWriterGone));
  ASSERT_TRUE(receiver_.wait_for(Kind::kEnded));
  EXPECT_EQ(receiver_.all().back().frame.ref, ref);
  // The slot is still posted: the receiver's own abort takes it back.
  receiver_->abort(test::kTestSession, ref);
  ASSERT_TRUE(receiver_.wait_for(Kind::kWriterGone));
  EXPECT_EQ(receiver_.num(Kind::kArrived), 1u);
}

TEST_P(KvTransportTest, NakReachesTheSenderAndThePieceComesAgain) {
  open();
  const KvTransferRef ref = test::test_transfer(1);
  KvFrame nak = test::test_frame(layout_, ref, 2, 5, 40, 3);
  nak.kind = KvFrameKind::kNak;
  nak.payload_bytes = 0;
  ASSERT_TRUE(receiver_->post(test::kTestSession, landing(2, 5, ref)));
  ASSERT_TRUE(receiver_->send(test::kTestSession, nak, {}));
  ASSERT_TRUE(sender_.wait_for(Kind::kNak));
  const KvFrame asked = sender_.all().back().frame;
  EXPECT_EQ(asked.ref, ref);
  EXPECT_EQ(asked.slot, 2u);
  EXPECT_EQ(asked.slot_generation, 5u);
  EXPECT_EQ(asked.first_block, 40u);
  EXPECT_EQ(asked.num_blocks, 3u);
  const KvFrame frame =
      test::test_frame(layout_, ref, asked.slot, asked.slot_generation, 40, asked.num_blocks);
  const auto& bytes = keep(frame.payload_bytes, 3);
  ASSERT_TRUE(sender_->send(test::kTestSession, frame, {bytes}));
  ASSERT_TRUE(receiver_.wait_for(Kind::kArrived));
}

TEST_P(KvTransportTest, ClosingGivesEverythingBackAndTheTokenEndsWithIt) {
  open();
  const KvTransferRef ref = test::test_transfer(1);
  for (uint32_t slot = 0; slot < 50; ++slot) {
    ASSERT_TRUE(receiver_->post(test::kTestSession, landing(slot, 1, ref)));
  }
  receiver_->close(test::kTestSession);
  ASSERT_TRUE(receiver_.wait_for(Kind::kClosed));
  EXPECT_FALSE(receiver_->post(test::kTestSession, landing(0, 2, ref)));
  const KvFrame frame = test::test_frame(layout_, ref, 0, 1, 0, 100);
  const auto& bytes = keep(frame.payload_bytes, 3);
  for (int i = 0; i < 20; ++i) {
    ASSERT_TRUE(sender_->send(test::kTestSession, frame, {bytes}));
  }
  sender_->close(test::kTestSession);
  ASSERT_TRUE(sender_.wait_for(Kind::kClosed));
  EXPECT_FALSE(sender_->send(test::kTestSession, frame, {bytes}));
  EXPECT_EQ(sender_.all().back().kind, Kind::kClosed);
  // A session may use the closed one's number and token.
  open();
  ASSERT_TRUE(receiver_->post(test::kTestSession, landing(0, 1, ref)));
  ASSERT_TRUE(sender_->send(test::kTestSession, frame, {bytes}));
  ASSERT_TRUE(receiver_.wait_for(Kind::kArrived));
}

TEST_P(KvTransportTest, WhatIsPostedAndSentIsBoundedAndComesBackWithAborts) {
  ASSERT_TRUE(receiver_->open(test::receiver_options(layout_, sender_->address())).has_value());
  std::vector<std::byte> memory(layout_.slot_bytes);
  const auto post_all = [&](const KvTransferRef& ref) {
    uint32_t count = 0;
    while (receiver_->post(test::kTestSession, {ref, count, 1, memory})) ++count;
    return count;
  };
  const uint32_t first = post_all(test::test_transfer(1));
  EXPECT_GE(first, 4096u);
  receiver_->abort(test::kTestSession, test::test_transfer(1));
  ASSERT_TRUE(receiver_.wait_for(Kind::kWriterGone));
  EXPECT_EQ(post_all(test::test_transfer(2)), first);
  // A slot that is posted again counts once.
  receiver_->abort(test::kTestSession, test::test_transfer(2));
  ASSERT_TRUE(receiver_.wait_for(Kind::kWriterGone, 2));
  for (uint32_t i = 0; i < 10; ++i) {
    ASSERT_TRUE(receiver_->post(test::kTestSession, {test::test_transfer(3), 0, i, memory}));
  }
  receiver_->abort(test::kTestSession, test::test_transfer(3));
  ASSERT_TRUE(receiver_.wait_for(Kind::kWriterGone, 3));
  EXPECT_EQ(post_all(test::test_transfer(4)), first);
}

TEST_P(KvTransportTest, PeersOfAnotherTokenOrEpochGetNothing) {
  for (const bool is_epoch : {false, true}) {
    const KvTransferRef ref = test::test_transfer(1);
    const KvFrame frame = test::test_frame(layout_, ref, 0, 1, 0, 1);
    const auto& bytes = keep(frame.payload_bytes, 3);
    TransportEnd sender(GetParam());
    TransportEnd receiver(GetParam());
    ASSERT_TRUE(sender->open(test::sender_options(layout_)).has_value());
    auto options = test::receiver_options(layout_, sender->address(), is_epoch ? 0xa0 : 0xa1);
    if (is_epoch) options.own_epoch ^= 1;
    ASSERT_TRUE(receiver->open(options).has_value());
    ASSERT_TRUE(receiver->post(test::kTestSession, landing(0, 1, ref)));
    ASSERT_TRUE(sender->send(test::kTestSession, frame, {bytes}));
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (sender->counts().connections_refused < 3 && std::chrono::steady_clock::now() < end) {
      std::this_thread::yield();
    }
    EXPECT_GE(sender->counts().connections_refused, 3u);
    EXPECT_EQ(sender->counts().frames_sent, 0u);
    EXPECT_EQ(receiver->counts().frames_arrived, 0u);
  }
}

// A receiver hears of a session when the sender's Hello arrives, which may be before its owner has
// opened it.
TEST_P(KvTransportTest, AReceiverMayDialBeforeTheSenderOpens) {
  ASSERT_TRUE(receiver_->open(test::receiver_options(layout_, sender_->address())).has_value());
  const KvTransferRef ref = test::test_transfer(1);
  ASSERT_TRUE(receiver_->post(test::kTestSession, landing(0, 1, ref)));
  std::this_thread::sleep_for(std::chrono::milliseconds(60));
  ASSERT_TRUE(sender_->open(test::sender_options(layout_)).has_value());
  const KvFrame frame = test::test_frame(layout_, ref, 0, 1, 0, 1);
  ASSERT_TRUE(sender_->send(test::kTestSession, frame, {keep(frame.payload_bytes, 1)}));
  ASSERT_TRUE(receiver_.wait_for(Kind::kArrived));
  EXPECT_EQ(receiver_->counts().connections_lost, 0u);
  EXPECT_EQ(sender_->counts().connections_refused, 0u);
}

TEST_P(KvTransportTest, ASenderOfAnotherEpochIsNotBelieved) {
  ASSERT_TRUE(sender_->open(test::sender_options(layout_)).has_value());
  auto options = test::receiver_options(layout_, sender_->address());
  options.peer_epoch ^= 1;
  ASSERT_TRUE(receiver_->open(options).has_value());
  const KvTransferRef ref = test::test_transfer(1);
  ASSERT_TRUE(receiver_->post(test::kTestSession, landing(0, 1, ref)));
  const KvFrame frame = test::test_frame(layout_, ref, 0, 1, 0, 1);
  const auto& bytes = keep(frame.payload_bytes, 3);
  ASSERT_TRUE(sender_->send(test::kTestSession, frame, {bytes}));
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (receiver_->counts().connections_refused == 0 && std::chrono::steady_clock::now() < end) {
    std::this_thread::yield();
  }
  EXPECT_GE(receiver_->counts().connections_refused, 1u);
  EXPECT_EQ(receiver_->counts().frames_arrived, 0u);
}

TEST_P(KvTransportTest, OptionsThatMeanNothingAreRefused) {
  auto options = test::receiver_options(layout_, "nobody");
  EXPECT_FALSE(receiver_->open(options).has_value());
  options.address = sender_->address();
  options.layout.groups.clear();
  EXPECT_FALSE(receiver_->open(options).has_value());
  options.layout = layout_;
  EXPECT_TRUE(receiver_->open(options).has_value());
  auto again = options;
  again.token[0] ^= 1;
  EXPECT_FALSE(receiver_->open(again).has_value());  // open already
  ++options.session;
  EXPECT_FALSE(receiver_->open(options).has_value());  // the token is in use
  EXPECT_FALSE(make_kv_transport("pigeon", {}).has_value());
}

TEST_P(KvTransportTest, EndingATransportWithWorkUnderWayTouchesNothingAfterwards) {
  for (int round = 0; round < 10; ++round) {
    const KvTransferRef ref = test::test_transfer(1);
    std::vector<std::byte> memory(layout_.slot_bytes);
    const KvFrame frame = test::test_frame(layout_, ref, 0, 1, 0, 100);
    const auto& bytes = keep(frame.payload_bytes, 3);
    TransportEnd sender(GetParam());
    TransportEnd receiver(GetParam());
    ASSERT_TRUE(sender->open(test::sender_options(layout_)).has_value());
    ASSERT_TRUE(receiver->open(test::receiver_options(layout_, sender->address())).has_value());
    ASSERT_TRUE(receiver->post(test::kTestSession, {ref, 0, 1, memory}));
    for (int i = 0; i < 5; ++i) {
      ASSERT_TRUE(sender->send(test::kTestSession, frame, {bytes}));
    }
    if (round % 2 == 0) {
      ASSERT_TRUE(sender.wait_for(Kind::kSent, 1));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(AllKinds,
                         KvTransportTest,
                         ::testing::Values("tcp", "shm"),
                         [](const auto& kind) { return kind.param; });

TEST(KvTransports, EachKindIsOneThatTheTestsRun) {
  EXPECT_EQ(kv_transport_kinds(), (std::vector<std::string_view>{"shm", "tcp"}));
}

// Each part of an address but the name says where it is one.
TEST(KvShmAddresses, ThoseOfOtherPlacesAreNone) {
  TransportEnd sender("shm");
  TransportEnd receiver("shm");
  const KvFrameLayout layout = test::test_layout();
  const std::string own = sender->address();
  const size_t name = own.find(":sluice-kv-");
  int num_parts = 0;
  for (size_t end = own.find(':'); end <= name; end = own.find(':', end + 1), ++num_parts) {
    std::string other = own;
    other[end - 1] = other[end - 1] == '0' ? '1' : '0';
    const auto opened = receiver->open(test::receiver_options(layout, other));
    ASSERT_FALSE(opened.has_value()) << other;
    EXPECT_EQ(opened.error().code, ErrorCode::kInvalidArgument);
  }
  EXPECT_EQ(num_parts, 5);  // kind, boot, network, users, user
  EXPECT_TRUE(receiver->open(test::receiver_options(layout, own)).has_value());
}

TEST(KvShmAddresses, AProcessOfAnotherNetworkNamespaceIsAtAnotherPlace) {
  const auto here = place_of_process({"net"});
  ASSERT_TRUE(here.has_value());
  const pid_t child = fork();
  if (child == 0) {
    if (unshare(CLONE_NEWNET) != 0 && unshare(CLONE_NEWUSER | CLONE_NEWNET) != 0) _exit(2);
    const auto there = place_of_process({"net"});
    _exit(there.has_value() && *there != *here ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  if (WEXITSTATUS(status) == 2) GTEST_SKIP() << "no namespace may be made here";
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

}  // namespace
}  // namespace sluice
