// SPDX-License-Identifier: Apache-2.0
// The TCP transport against broken networks and hostile peers.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <deque>
#include <map>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "kernels/kv_checksum.h"
#include "kvcache/transport/kv_transport.h"
#include "tests/support/fault_proxy.h"
#include "tests/support/kv_pair.h"
#include "tests/support/tier.h"

namespace sluice {
namespace {

using test::Fault;
using test::FaultProxy;
using test::TransportEnd;
using Kind = KvCompletion::Kind;

KvTransportOptions connections(int32_t count) {
  KvTransportOptions options;
  options.num_connections = count;
  return options;
}

template <typename Condition>
bool wait_until(const Condition& condition) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

// Whether a payload has begun to land, which nothing tells: a look at memory that is not ours now.
__attribute__((noinline, no_sanitize("thread"))) std::byte peek(const volatile std::byte* at) {
  return *at;
}

// A socket that speaks for itself, blocking.
class RawSocket {
 public:
  explicit RawSocket(int fd) : fd_(fd) {}

  static RawSocket dial(const std::string& address) {
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in at{};
    at.sin_family = AF_INET;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    at.sin_port = htons(static_cast<uint16_t>(std::stoi(address.substr(address.rfind(':') + 1))));
    CHECK_EQ(connect(fd, reinterpret_cast<sockaddr*>(&at), sizeof(at)), 0);
    return RawSocket(fd);
  }

  RawSocket(RawSocket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}

  RawSocket& operator=(RawSocket&&) = delete;

  ~RawSocket() {
    if (fd_ >= 0) close(fd_);
  }

  bool send(std::span<const std::byte> bytes) const {
    while (!bytes.empty()) {
      const ssize_t count = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (count <= 0) return false;
      bytes = bytes.subspan(static_cast<size_t>(count));
    }
    return true;
  }

  bool send(const KvFrame& frame) const {
    std::array<std::byte, kKvFrameBytes> bytes{};
    encode_kv_frame(frame, bytes);
    return send(bytes);
  }

  // Reads to the end of the connection and returns how many bytes came before.
  [[nodiscard]] size_t bytes_until_end() const {
    std::array<std::byte, 4096> bytes;
    size_t total = 0;
    while (true) {
      const ssize_t count = recv(fd_, bytes.data(), bytes.size(), 0);
      if (count <= 0) return total;
      total += static_cast<size_t>(count);
    }
  }

  bool receive(std::span<std::byte> out) const {
    return recv(fd_, out.data(), out.size(), MSG_WAITALL) == static_cast<ssize_t>(out.size());
  }

 private:
  int fd_;
};

KvFrame hello(uint8_t token = 0xa0) {
  KvFrame frame;
  frame.kind = KvFrameKind::kHello;
  frame.ref.transfer = test::test_token(token);
  frame.epoch = test::kReceiverEpoch;
  return frame;
}

KvFrame nak_of(KvFrame frame) {
  frame.kind = KvFrameKind::kNak;
  frame.payload_bytes = 0;
  return frame;
}

class KvTcpFaults : public ::testing::Test {
 protected:
  void open(const std::string& address, TransportEnd& receiver) {
    ASSERT_TRUE(sender_->open(test::sender_options(layout_)).has_value());
    ASSERT_TRUE(receiver->open(test::receiver_options(layout_, address)).has_value());
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

  const KvFrameLayout layout_ = test::test_layout();
  std::deque<std::vector<std::byte>> kept_;
  const KvTransferRef ref_ = test::test_transfer(1);
  std::map<uint32_t, std::vector<std::byte>> memory_;
  TransportEnd sender_{"tcp"};
};

TEST_F(KvTcpFaults, AFlippedBitOfAPayloadIsSeenAndThePieceComesAgain) {
  const KvFrame frame = test::test_frame(layout_, ref_, 0, 1, 0, 20);
  const auto& bytes = keep(frame.payload_bytes, 1);
  for (const uint64_t at : {uint64_t{0}, uint64_t{77}, frame.payload_bytes - 1}) {
    TransportEnd sender("tcp");
    FaultProxy proxy(sender->address(), [&](size_t connection) {
      return connection > 0 ? Fault{} : Fault{Fault::Kind::kFlip, true, kKvFrameBytes + at, 0};
    });
    TransportEnd receiver("tcp", connections(1));
    ASSERT_TRUE(sender->open(test::sender_options(layout_)).has_value());
    ASSERT_TRUE(receiver->open(test::receiver_options(layout_, proxy.address())).has_value());
    ASSERT_TRUE(receiver->post(test::kTestSession, landing(0, 1, ref_)));
    ASSERT_TRUE(sender->send(test::kTestSession, frame, {bytes}));
    ASSERT_TRUE(receiver.wait_for(Kind::kSpoiled));
    EXPECT_EQ(receiver.num(Kind::kArrived), 0u);
    ASSERT_TRUE(receiver->post(test::kTestSession, landing(0, 2, ref_)));
    KvFrame nak = nak_of(frame);
    nak.slot_generation = 2;
    ASSERT_TRUE(receiver->send(test::kTestSession, nak, {}));
    ASSERT_TRUE(sender.wait_for(Kind::kNak));
    KvFrame again = frame;
    again.slot_generation = sender.all().back().frame.slot_generation;
    ASSERT_TRUE(sender->send(test::kTestSession, again, {bytes}));
    ASSERT_TRUE(receiver.wait_for(Kind::kArrived));
    EXPECT_TRUE(std::ranges::equal(bytes, std::span(memory_[0]).first(bytes.size())));
    EXPECT_EQ(receiver->counts().frames_spoiled, 1u);
    EXPECT_EQ(receiver->counts().connections_refused, 0u);
  }
}

TEST_F(KvTcpFaults, AFlippedBitOfAHeaderEndsTheConnectionAndTheNextOneServes) {
  const KvFrame frame = test::test_frame(layout_, ref_, 0, 1, 0, 20);
  const auto& bytes = keep(frame.payload_bytes, 1);
  FaultProxy proxy(sender_->address(), [](size_t connection) {
    return connection > 0 ? Fault{} : Fault{Fault::Kind::kFlip, true, 57, 0};  // payload bytes
  });
  TransportEnd receiver("tcp", connections(1));
  open(proxy.address(), receiver);
  ASSERT_TRUE(receiver->post(test::kTestSession, landing(0, 1, ref_)));
  ASSERT_TRUE(sender_->send(test::kTestSession, frame, {bytes}));
  ASSERT_TRUE(wait_until([&] { return receiver->counts().connections_refused == 1; }));
  EXPECT_EQ(receiver->counts().frames_arrived, 0u);
  ASSERT_TRUE(receiver->send(test::kTestSession, nak_of(frame), {}));
  ASSERT_TRUE(sender_.wait_for(Kind::kNak));
  ASSERT_TRUE(sender_->send(test::kTestSession, frame, {bytes}));
  ASSERT_TRUE(receiver.wait_for(Kind::kArrived));
}

// More than sockets buffer: the sender has it still, and sends it again by itself.
TEST_F(KvTcpFaults, AFrameThatIsCutIsSentAgainOnAnotherConnection) {
  const KvFrameLayout layout = test::test_layout(1 << 20, uint64_t{32} << 20);
  const KvFrame frame = test::test_frame(layout, ref_, 0, 1, 0, 4);
  const auto& bytes = keep(frame.payload_bytes, 1);
  std::vector<std::byte> memory(layout.slot_bytes);
  FaultProxy proxy(sender_->address(), [](size_t connection) {
    return connection > 1 ? Fault{} : Fault{Fault::Kind::kCut, true, 2'000'000, 0};
  });
  TransportEnd receiver("tcp", connections(1));
  ASSERT_TRUE(sender_->open(test::sender_options(layout)).has_value());
  ASSERT_TRUE(receiver->open(test::receiver_options(layout, proxy.address())).has_value());
  ASSERT_TRUE(receiver->post(test::kTestSession, {ref_, 0, 1, memory}));
  ASSERT_TRUE(sender_->send(test::kTestSession, frame, {bytes}));
  ASSERT_TRUE(receiver.wait_for(Kind::kArrived));
  EXPECT_TRUE(std::ranges::equal(bytes, memory));
  EXPECT_EQ(sender_.num(Kind::kSent), 0u);  // nothing was polled
  ASSERT_TRUE(sender_.wait_for(Kind::kSent));
  EXPECT_GE(receiver->counts().connections_lost, 2u);
}

TEST_F(KvTcpFaults, AHalfClosedConnectionIsReplaced) {
  const KvFrame frame = test::test_frame(layout_, ref_, 0, 1, 0, 20);
  const auto& bytes = keep(frame.payload_bytes, 1);
  for (const bool is_answer : {false, true}) {
    TransportEnd sender("tcp");
    FaultProxy proxy(sender->address(), [&](size_t connection) {
      return connection > 0 ? Fault{} : Fault{Fault::Kind::kHalfClose, is_answer, 96, 0};
    });
    TransportEnd receiver("tcp", connections(1));
    ASSERT_TRUE(sender->open(test::sender_options(layout_)).has_value());
    ASSERT_TRUE(receiver->open(test::receiver_options(layout_, proxy.address())).has_value());
    ASSERT_TRUE(receiver->post(test::kTestSession, landing(0, 1, ref_)));
    // Behind the 96 bytes of HELLO, or of the frame's header.
    if (!is_answer) {
      ASSERT_TRUE(receiver->send(test::kTestSession, nak_of(frame), {}));
    } else {
      ASSERT_TRUE(sender->send(test::kTestSession, frame, {bytes}));
    }
    ASSERT_TRUE(wait_until([&] { return proxy.num_connections() >= 2; }));
    ASSERT_TRUE(receiver->send(test::kTestSession, nak_of(frame), {}));
    ASSERT_TRUE(sender.wait_for(Kind::kNak));
    ASSERT_TRUE(sender->send(test::kTestSession, frame, {bytes}));
    ASSERT_TRUE(receiver.wait_for(Kind::kArrived));
  }
}

TEST_F(KvTcpFaults, AStalledConnectionStopsNeitherTheOthersNorAnAbort) {
  FaultProxy proxy(sender_->address(), [](size_t connection) {
    return connection > 0 ? Fault{} : Fault{Fault::Kind::kStall, true, 5000, 0};
  });
  TransportEnd receiver("tcp", connections(2));
  open(proxy.address(), receiver);
  constexpr uint32_t kFrames = 60;
  const auto& bytes = keep(layout_.slot_bytes, 1);
  for (uint32_t i = 0; i < kFrames; ++i) {
    const KvFrame frame = test::test_frame(layout_, ref_, i, 1, 0, 100);
    ASSERT_TRUE(receiver->post(test::kTestSession, landing(i, 1, ref_)));
    ASSERT_TRUE(
        sender_->send(test::kTestSession, frame, {std::span(bytes).first(frame.payload_bytes)}));
  }
  ASSERT_TRUE(receiver.wait_for(Kind::kArrived, kFrames / 2));
  receiver->abort(test::kTestSession, ref_);
  sender_->abort(test::kTestSession, ref_);
  EXPECT_TRUE(receiver.wait_for(Kind::kWriterGone));
  EXPECT_TRUE(sender_.wait_for(Kind::kWriterGone));
}

TEST_F(KvTcpFaults, AReaderThatDoesNotReadKeepsNoPayload) {
  const KvFrameLayout layout = test::test_layout(1 << 20, uint64_t{32} << 20);
  ASSERT_TRUE(sender_->open(test::sender_options(layout)).has_value());
  const RawSocket peer = RawSocket::dial(sender_->address());
  ASSERT_TRUE(peer.send(hello()));
  auto bytes = test::test_bytes(layout.slot_bytes, 1);
  const KvFrame frame = test::test_frame(layout, ref_, 0, 1, 0, 4);
  ASSERT_TRUE(sender_->send(test::kTestSession, frame, {bytes}));
  ASSERT_TRUE(sender_->send(test::kTestSession, frame, {bytes}));
  std::array<std::byte, kKvFrameBytes> header{};
  ASSERT_TRUE(peer.receive(header));  // it is being sent
  sender_->abort(test::kTestSession, ref_);
  ASSERT_TRUE(sender_.wait_for(Kind::kWriterGone));
  bytes.clear();
  bytes.shrink_to_fit();  // AddressSanitizer sees a sender that goes on
  EXPECT_LT(peer.bytes_until_end(), layout.slot_bytes);
  EXPECT_EQ(sender_.num(Kind::kSent), 0u);
}

TEST_F(KvTcpFaults, StrangersGetNothing) {
  ASSERT_TRUE(sender_->open(test::sender_options(layout_)).has_value());
  const KvFrame frame = test::test_frame(layout_, ref_, 0, 1, 0, 1);
  const auto& bytes = keep(frame.payload_bytes, 1);
  ASSERT_TRUE(sender_->send(test::kTestSession, frame, {bytes}));
  KvFrame late = hello();
  late.epoch ^= 1;
  KvFrame flagged = hello();
  flagged.flags = 1;
  for (const KvFrame& first : {hello(0xa1), late, flagged, nak_of(frame), frame}) {
    const RawSocket peer = RawSocket::dial(sender_->address());
    ASSERT_TRUE(peer.send(first));
    EXPECT_EQ(peer.bytes_until_end(), 0u);
  }
  const RawSocket scanner = RawSocket::dial(sender_->address());
  ASSERT_TRUE(scanner.send(test::test_bytes(kKvFrameBytes, 5)));
  EXPECT_EQ(scanner.bytes_until_end(), 0u);
  // So many that say nothing leave no room for more of them, but a scan takes nothing from the peer
  // that is there already.
  TransportEnd receiver("tcp", connections(2));
  ASSERT_TRUE(receiver->open(test::receiver_options(layout_, sender_->address())).has_value());
  ASSERT_TRUE(receiver->post(test::kTestSession, landing(0, 1, ref_)));
  ASSERT_TRUE(sender_.wait_for(Kind::kSent));
  std::vector<RawSocket> silent;
  for (int i = 0; i < 70; ++i) silent.push_back(RawSocket::dial(sender_->address()));
  ASSERT_TRUE(wait_until([&] { return sender_->counts().connections_refused >= 6 + 6; }));
  ASSERT_TRUE(receiver->post(test::kTestSession, landing(1, 1, ref_)));
  KvFrame second = frame;
  second.slot = 1;
  ASSERT_TRUE(sender_->send(test::kTestSession, second, {bytes}));
  EXPECT_TRUE(receiver.wait_for(Kind::kArrived, 1));
}

TEST_F(KvTcpFaults, APeerThatAsksWithoutEndIsRefused) {
  ASSERT_TRUE(sender_->open(test::sender_options(layout_)).has_value());
  const RawSocket peer = RawSocket::dial(sender_->address());
  ASSERT_TRUE(peer.send(hello()));
  const KvFrame nak = nak_of(test::test_frame(layout_, ref_, 0, 1, 0, 1));
  bool is_open = true;
  for (int i = 0; i < 100'000 && is_open; ++i) is_open = peer.send(nak);
  EXPECT_FALSE(is_open);
  std::vector<KvCompletion> told;
  sender_->poll(told);
  EXPECT_LE(told.size(), 5000u);
}

// A listener in the sender's place, and what it says to a receiver that has posted slots 0 to 3.
class HostileSender : public KvTcpFaults {
 protected:
  void SetUp() override {
    listener_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in at{};
    at.sin_family = AF_INET;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(at);
    CHECK_EQ(bind(listener_, reinterpret_cast<sockaddr*>(&at), size), 0);
    CHECK_EQ(listen(listener_, 16), 0);
    CHECK_EQ(getsockname(listener_, reinterpret_cast<sockaddr*>(&at), &size), 0);
    const std::string address = "127.0.0.1:" + std::to_string(ntohs(at.sin_port));
    ASSERT_TRUE(receiver_->open(test::receiver_options(layout_, address)).has_value());
    for (uint32_t slot = 0; slot < 4; ++slot) {
      ASSERT_TRUE(receiver_->post(test::kTestSession, landing(slot, 1, ref_)));
    }
  }

  void TearDown() override { close(listener_); }

  [[nodiscard]] RawSocket accept_dialler() const {
    RawSocket peer(accept(listener_, nullptr, nullptr));
    std::array<std::byte, kKvFrameBytes> first{};
    EXPECT_TRUE(peer.receive(first));
    const auto frame = decode_kv_frame(first);
    EXPECT_TRUE(frame.has_value() && frame->kind == KvFrameKind::kHello);
    EXPECT_EQ(frame->ref.transfer, test::test_token());
    return peer;
  }

  [[nodiscard]] KvFrame good_frame(uint32_t slot, std::span<const std::byte> bytes) const {
    KvFrame frame = test::test_frame(layout_, ref_, slot, 1, 0, 2);
    frame.epoch = test::kSenderEpoch;
    frame.payload_sum = kernels::kv_checksum(bytes.first(frame.payload_bytes));
    return frame;
  }

  int listener_ = -1;
  TransportEnd receiver_{"tcp", connections(1)};
};

TEST_F(HostileSender, FramesThatNoPeerSendsEndTheConnectionBeforeAByteIsRead) {
  const auto& bytes = keep(layout_.slot_bytes, 1);
  std::vector<KvFrame> frames(8, good_frame(0, bytes));
  frames[0].num_blocks = 1000;  // more than a slot
  frames[0].payload_bytes = *kv_frame_piece_bytes(frames[0], layout_);
  frames[1].payload_bytes = UINT64_MAX;
  frames[2].payload_bytes -= 1;
  frames[3].group = 1;
  frames[4].epoch ^= 1;
  frames[5] = hello();
  frames[5].epoch = test::kSenderEpoch;
  frames[6] = nak_of(frames[6]);
  frames[7].num_layers = 5;
  for (size_t i = 0; i < frames.size(); ++i) {
    const RawSocket peer = accept_dialler();
    ASSERT_TRUE(peer.send(frames[i]));
    EXPECT_EQ(peer.bytes_until_end(), 0u) << i;
    ASSERT_TRUE(wait_until([&] { return receiver_->counts().connections_refused == i + 1; })) << i;
  }
  EXPECT_EQ(receiver_->counts().frames_arrived, 0u);
  // The slots are as they were.
  const RawSocket peer = accept_dialler();
  const KvFrame frame = good_frame(0, bytes);
  ASSERT_TRUE(peer.send(frame));
  ASSERT_TRUE(peer.send(std::span(bytes).first(frame.payload_bytes)));
  EXPECT_TRUE(receiver_.wait_for(Kind::kArrived));
}

TEST_F(HostileSender, AFrameTwiceAndAFrameForMoreThanTheSlotArriveOnceAndNever) {
  const auto& bytes = keep(layout_.slot_bytes, 1);
  const RawSocket peer = accept_dialler();
  // Smaller than the layout allows.
  std::vector<std::byte> small(100, std::byte{0x33});
  ASSERT_TRUE(receiver_->post(test::kTestSession, {ref_, 9, 1, small}));
  for (const uint32_t slot : {0u, 0u, 9u, 1u}) {
    const KvFrame frame = good_frame(slot, bytes);
    ASSERT_TRUE(peer.send(frame));
    ASSERT_TRUE(peer.send(std::span(bytes).first(frame.payload_bytes)));
  }
  ASSERT_TRUE(receiver_.wait_for(Kind::kArrived, 2));
  EXPECT_EQ(receiver_->counts().frames_stale, 2u);
  EXPECT_EQ(receiver_.all().size(), 2u);
  EXPECT_TRUE(std::ranges::all_of(small, [](std::byte b) { return b == std::byte{0x33}; }));
}

TEST_F(HostileSender, ASlotThatIsPostedAnewInsideItsPayloadTakesNoMoreOfIt) {
  const auto& bytes = keep(layout_.slot_bytes, 1);
  const RawSocket peer = accept_dialler();
  const KvFrame frame = good_frame(2, bytes);
  ASSERT_TRUE(peer.send(frame));
  ASSERT_TRUE(peer.send(std::span(bytes).first(1000)));
  ASSERT_TRUE(wait_until([&] { return peek(memory_[2].data() + 999) == bytes[999]; }));
  std::vector<std::byte> other(layout_.slot_bytes, std::byte{0x44});
  ASSERT_TRUE(receiver_->post(test::kTestSession, {ref_, 2, 2, other}));
  receiver_->abort(test::kTestSession, test::test_transfer(99));
  ASSERT_TRUE(receiver_.wait_for(Kind::kWriterGone));  // so the post is done
  ASSERT_TRUE(
      peer.send(std::span(bytes).subspan(1000, static_cast<size_t>(frame.payload_bytes) - 1000)));
  // Then the new generation arrives in the new memory.
  KvFrame next = good_frame(2, bytes);
  next.slot_generation = 2;
  ASSERT_TRUE(peer.send(next));
  ASSERT_TRUE(peer.send(std::span(bytes).first(next.payload_bytes)));
  ASSERT_TRUE(receiver_.wait_for(Kind::kArrived));
  EXPECT_EQ(receiver_.all().back().frame.slot_generation, 2u);
  EXPECT_TRUE(std::ranges::equal(std::span(other).first(next.payload_bytes),
                                 std::span(bytes).first(next.payload_bytes)));
  EXPECT_EQ(memory_[2][5000], std::byte{});
}

// --- Any faults ------------------------------------------------------------------------------

// The smallest owner of a pair: it asks for what is spoiled or does not come, and after a while
// without progress begins another attempt. What arrives must be what was sent.
class Transfer {
 public:
  Transfer(uint64_t seed, TransportEnd& sender, TransportEnd& receiver)
      : sender_(sender), receiver_(receiver), layout_(test::test_layout()) {
    for (uint32_t i = 0; i < kFrames; ++i) {
      bytes_.push_back(test::test_bytes(frame_of(i, 0).payload_bytes, seed * 1000 + i));
      memory_.emplace_back(layout_.slot_bytes);
    }
    landed_.resize(kFrames);
  }

  // Whether all landed in time.
  bool run() {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    while (std::chrono::steady_clock::now() < end) {
      ++ref_.attempt;
      for (uint32_t i = 0; i < kFrames; ++i) {
        if (!landed_[i] && (!post(i) || !send(frame_of(i, generation_)))) return false;
      }
      auto progress = std::chrono::steady_clock::now();
      while (std::chrono::steady_clock::now() - progress < std::chrono::milliseconds(150)) {
        if (take_completions()) progress = std::chrono::steady_clock::now();
        if (std::ranges::count(landed_, true) == kFrames) return abort_both();
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
      if (!abort_both()) return false;
    }
    return false;
  }

 private:
  static constexpr uint32_t kFrames = 24;

  [[nodiscard]] KvFrame frame_of(uint32_t i, uint32_t generation) const {
    return test::test_frame(layout_, ref_, i, generation, i, 1 + i);
  }

  bool post(uint32_t i) {
    return receiver_->post(test::kTestSession, {ref_, i, ++generation_, memory_[i]});
  }

  bool send(const KvFrame& frame) {
    return sender_->send(test::kTestSession, frame, test::in_spans(bytes_[frame.slot], 30'000));
  }

  bool take_completions() {
    std::vector<KvCompletion> fresh;
    bool is_progress = false;
    sender_->poll(fresh);
    for (const KvCompletion& one : fresh) {
      if (one.kind != Kind::kNak || one.frame.ref != ref_) continue;
      EXPECT_TRUE(send(frame_of(one.frame.slot, one.frame.slot_generation)));
    }
    receiver_->poll(fresh);
    for (const KvCompletion& one : fresh) {
      if (one.frame.ref != ref_) continue;
      const uint32_t slot = one.frame.slot;
      if (one.kind == Kind::kArrived) {
        is_progress = true;
        EXPECT_FALSE(landed_[slot]);
        landed_[slot] = true;
        EXPECT_TRUE(
            std::ranges::equal(bytes_[slot], std::span(memory_[slot]).first(bytes_[slot].size())));
      } else if (one.kind == Kind::kSpoiled) {
        EXPECT_TRUE(post(slot));
        EXPECT_TRUE(receiver_->send(test::kTestSession, nak_of(frame_of(slot, generation_)), {}));
      }
    }
    return is_progress;
  }

  bool abort_both() {
    const size_t sender_gone = sender_.num(Kind::kWriterGone);
    const size_t receiver_gone = receiver_.num(Kind::kWriterGone);
    sender_->abort(test::kTestSession, ref_);
    receiver_->abort(test::kTestSession, ref_);
    return sender_.wait_for(Kind::kWriterGone, sender_gone + 1) &&
           receiver_.wait_for(Kind::kWriterGone, receiver_gone + 1);
  }

  TransportEnd& sender_;
  TransportEnd& receiver_;
  const KvFrameLayout layout_;
  KvTransferRef ref_ = test::test_transfer(1, 0);
  uint32_t generation_ = 0;
  std::vector<std::vector<std::byte>> bytes_;
  std::vector<std::vector<std::byte>> memory_;
  std::vector<bool> landed_;
};

TEST(KvTcpFaultMatrix, WhateverHappensWhatArrivesIsWhatWasSent) {
  uint64_t num_faults = 0;
  for (uint64_t seed = 1; seed <= testing::sample_of<uint64_t>(25, 2000); ++seed) {
    TransportEnd sender("tcp");
    std::mt19937_64 random(seed);
    FaultProxy proxy(sender->address(), [&](size_t connection) {
      if (connection > 8) return Fault{};
      const auto kind = static_cast<Fault::Kind>(random() % 5);
      const uint64_t most = random() % 3 == 0 ? 300 : 2'000'000;
      // A connection that hangs for ever is found by no transport: one of them goes on.
      const int ms = connection == 0 && random() % 4 == 0 ? 0 : static_cast<int>(1 + random() % 60);
      num_faults += kind == Fault::Kind::kNone ? 0 : 1;
      return Fault{kind, random() % 4 != 0, random() % most, ms};
    });
    TransportEnd receiver("tcp", connections(static_cast<int32_t>(2 + seed % 2)));
    const KvFrameLayout layout = test::test_layout();
    ASSERT_TRUE(sender->open(test::sender_options(layout)).has_value());
    ASSERT_TRUE(receiver->open(test::receiver_options(layout, proxy.address())).has_value());
    ASSERT_TRUE(Transfer(seed, sender, receiver).run()) << "seed " << seed;
  }
  EXPECT_GT(num_faults, 25u);
}

}  // namespace
}  // namespace sluice
