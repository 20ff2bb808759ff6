// SPDX-License-Identifier: Apache-2.0
// KV between devices by CUDA IPC, on devices of the shim in one process. The shim closes device
// memory to the host, and a device that still has borrowed memory at its end, or a queue's copy
// into memory that is gone, ends the process.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "kernels/device_memory.h"
#include "kvcache/transport/kv_transport.h"
#include "kvcache/transport/transport_ipc_link.h"
#include "tests/support/captured_log.h"
#include "tests/support/ipc_end.h"
#include "tests/support/simt/memory.h"

namespace sluice {
namespace {

using kernels::DeviceBuffer;
using kernels::DeviceMemory;
using kernels::MemoryLoan;
using Kind = KvCompletion::Kind;

// A device that lends something else than it is asked to.
class LyingMemory : public DeviceMemory {
 public:
  using Lie = std::function<void(MemoryLoan&)>;

  LyingMemory(std::unique_ptr<DeviceMemory> real, Lie lie)
      : real_(std::move(real)), lie_(std::move(lie)) {}

  void enter() const override { real_->enter(); }

  Expected<std::byte*> allocate(int64_t bytes,
                                const char* purpose,
                                AlignedBuffer::Pages pages) override {
    return real_->allocate(bytes, purpose, pages);
  }

  void release(std::byte* data) override { real_->release(data); }

  Expected<std::byte*> allocate_pinned(int64_t bytes, const char* purpose) override {
    return real_->allocate_pinned(bytes, purpose);
  }

  void release_pinned(std::byte* data) override { real_->release_pinned(data); }

  void upload(std::byte* to, const std::byte* from, int64_t bytes) override {
    real_->upload(to, from, bytes);
  }

  void upload_rows(std::byte* to,
                   const std::byte* from,
                   int64_t bytes,
                   int64_t stride,
                   int64_t num_rows) override {
    real_->upload_rows(to, from, bytes, stride, num_rows);
  }

  void download(std::byte* to, const std::byte* from, int64_t bytes) override {
    real_->download(to, from, bytes);
  }

  void copy(std::byte* to, const std::byte* from, int64_t bytes) override {
    real_->copy(to, from, bytes);
  }

  void wait() override { real_->wait(); }

  std::unique_ptr<kernels::DeviceEvent> make_event() override { return real_->make_event(); }

  std::unique_ptr<kernels::DeviceQueue> make_queue() override { return real_->make_queue(); }

  void begin_recording() override { real_->begin_recording(); }

  Expected<std::unique_ptr<kernels::RecordedWork>> end_recording() override {
    return real_->end_recording();
  }

  [[nodiscard]] kernels::DeviceId id() const override { return real_->id(); }

  [[nodiscard]] bool reaches(const kernels::DeviceId& device) const override {
    return real_->reaches(device);
  }

  Expected<MemoryLoan> lend(const std::byte* data) override {
    Expected<MemoryLoan> loan = real_->lend(data);
    if (loan) lie_(*loan);
    return loan;
  }

  Expected<const std::byte*> borrow(const MemoryLoan& loan) override { return real_->borrow(loan); }

  void give_back(const std::byte* data) override { real_->give_back(data); }

  [[nodiscard]] int64_t free_bytes() const override { return real_->free_bytes(); }

 private:
  const std::unique_ptr<DeviceMemory> real_;
  const Lie lie_;
};

// A device that takes its time to give memory back.
class SlowMemory final : public LyingMemory {
 public:
  explicit SlowMemory(std::unique_ptr<DeviceMemory> real, std::atomic<bool>& has_given_back)
      : LyingMemory(std::move(real), nullptr), has_given_back_(has_given_back) {}

  void give_back(const std::byte* data) override {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    LyingMemory::give_back(data);
    has_given_back_ = true;
  }

 private:
  std::atomic<bool>& has_given_back_;
};

class KvIpc : public ::testing::Test {
 protected:
  KvIpc() : layout_(test::test_layout(1021, test::kIpcSlotBytes)) {
    sender_ = std::make_unique<test::IpcEnd>(test::open_memory());
    receiver_ = std::make_unique<test::IpcEnd>(test::open_memory());
  }

  void open() {
    ASSERT_TRUE((*sender_)->open(test::ipc_sender_options(layout_, *sender_)).has_value());
    ASSERT_TRUE(
        (*receiver_)->open(test::receiver_options(layout_, (*sender_)->address())).has_value());
  }

  void post(uint32_t slot, uint32_t generation, const KvTransferRef& ref) {
    ASSERT_TRUE(
        (*receiver_)->post(test::kTestSession, {ref, slot, generation, receiver_->slot(slot)}));
  }

  // From the sender's slot of the same number.
  void send(uint32_t slot, uint32_t generation, const KvTransferRef& ref, uint32_t blocks = 3) {
    const KvFrame frame = test::test_frame(layout_, ref, slot, generation, 10 * slot, blocks);
    sent_[slot] = test::test_bytes(frame.payload_bytes, ++num_sent_);
    sender_->write(slot, sent_[slot]);
    ASSERT_TRUE(
        (*sender_)->send(test::kTestSession, frame, {sender_->slot(slot, frame.payload_bytes)}));
  }

  [[nodiscard]] bool has_arrived(uint32_t slot) {
    return receiver_->read(slot, sent_.at(slot).size()) == sent_.at(slot);
  }

  const KvFrameLayout layout_;
  std::map<uint32_t, std::vector<std::byte>> sent_;
  uint64_t num_sent_ = 0;
  std::unique_ptr<test::IpcEnd> sender_;
  std::unique_ptr<test::IpcEnd> receiver_;
};

TEST_F(KvIpc, PayloadsArriveInTheirSlots) {
  const int64_t before = simt::num_device_bytes();
  open();
  const KvTransferRef ref = test::test_transfer(1);
  uint64_t bytes = 0;
  for (uint32_t round = 1; round < 4; ++round) {
    for (uint32_t i = 0; i < test::kNumIpcSlots; ++i) post(i, round, ref);
    for (uint32_t i = 0; i < test::kNumIpcSlots; ++i) send(i, round, ref, 1 + i % 8);
    ASSERT_TRUE(receiver_->transport->wait_for(Kind::kArrived, round * test::kNumIpcSlots));
    ASSERT_TRUE(sender_->transport->wait_for(Kind::kSent, round * test::kNumIpcSlots));
    for (uint32_t i = 0; i < test::kNumIpcSlots; ++i) EXPECT_TRUE(has_arrived(i)) << i;
    for (const auto& [slot, sent] : sent_) bytes += sent.size();
  }
  EXPECT_EQ((*receiver_)->counts().bytes_arrived, bytes);
  EXPECT_EQ((*sender_)->counts().bytes_sent, bytes);
  EXPECT_EQ((*receiver_)->counts().frames_stale, 0U);
  EXPECT_EQ((*receiver_)->counts().connections_lost, 0U);
  EXPECT_TRUE((*sender_)->moves_device_memory());
  EXPECT_EQ((*sender_)->kind(), "cuda_ipc");
  EXPECT_EQ(simt::num_device_bytes(), before);  // nothing is borrowed twice
}

// To free memory that another process still maps is undefined (CUDA's manual,
// cudaIpcCloseMemHandle).
TEST_F(KvIpc, ASenderEndsOnceItsReceiverHasLetGo) {
  std::atomic<bool> has_given_back = false;
  receiver_ = std::make_unique<test::IpcEnd>(
      std::make_unique<SlowMemory>(test::open_memory(), has_given_back));
  open();
  post(0, 1, test::test_transfer(1));
  send(0, 1, test::test_transfer(1));
  ASSERT_TRUE(receiver_->transport->wait_for(Kind::kArrived));
  sender_->transport.reset();
  EXPECT_TRUE(has_given_back);
  EXPECT_TRUE(has_arrived(0));
}

TEST_F(KvIpc, WhatNoSlotIsPostedForLandsNowhere) {
  open();
  const KvTransferRef ref = test::test_transfer(1);
  const auto before = test::test_bytes(test::kIpcSlotBytes, 99);
  receiver_->write(3, before);
  post(3, 8, ref);
  post(4, 8, ref);
  send(3, 7, ref);                        // an earlier generation
  send(5, 8, ref);                        // another slot
  send(3, 8, test::test_transfer(1, 2));  // another attempt
  send(4, 8, ref);
  ASSERT_TRUE(receiver_->transport->wait_for(Kind::kArrived));
  EXPECT_EQ(receiver_->transport->all().front().frame.slot, 4U);
  EXPECT_TRUE(has_arrived(4));
  EXPECT_EQ(receiver_->read(3, test::kIpcSlotBytes), before);
  ASSERT_TRUE(sender_->transport->wait_for(Kind::kSent, 4));
  EXPECT_EQ((*receiver_)->counts().frames_stale, 3U);
  EXPECT_EQ((*receiver_)->counts().connections_refused, 0U);
}

// Whatever was being read when the sender gave an attempt up and wrote something else there.
TEST_F(KvIpc, WhatChangedWhileItWasReadNeverArrives) {
  open();
  constexpr uint32_t kAttempts = 60;
  const auto has = [](const std::vector<KvCompletion>& all, Kind kind, const KvTransferRef& ref) {
    return std::ranges::any_of(
        all, [&](const KvCompletion& one) { return one.kind == kind && one.frame.ref == ref; });
  };
  for (uint32_t attempt = 1; attempt <= kAttempts; ++attempt) {
    SCOPED_TRACE(attempt);
    const KvTransferRef ref = test::test_transfer(1, attempt);
    const auto receiver_said = [&](Kind kind) {
      return receiver_->transport->wait_until([&](const auto& all) { return has(all, kind, ref); });
    };
    const auto sender_said = [&](Kind kind) {
      return sender_->transport->wait_until([&](const auto& all) { return has(all, kind, ref); });
    };
    post(0, attempt, ref);
    send(0, attempt, ref, 8);
    if (attempt % 3 == 0) {
      ASSERT_TRUE(receiver_said(Kind::kArrived));
      ASSERT_TRUE(sender_said(Kind::kSent));
      EXPECT_TRUE(has_arrived(0));
      continue;
    }
    (*sender_)->abort(test::kTestSession, ref);
    ASSERT_TRUE(sender_said(Kind::kWriterGone));
    sender_->write(0, test::test_bytes(test::kIpcSlotBytes, 7000 + attempt));
    (*receiver_)->abort(test::kTestSession, ref);
    ASSERT_TRUE(receiver_said(Kind::kWriterGone));
    if (has(receiver_->transport->all(), Kind::kArrived, ref)) {
      EXPECT_TRUE(has_arrived(0));
    }
  }
  EXPECT_EQ((*receiver_)->counts().connections_refused, 0U);
}

TEST_F(KvIpc, ClosingAndOpeningAgainTakesOtherLinks) {
  const KvTransferRef ref = test::test_transfer(1);
  for (uint32_t round = 0; round < 5; ++round) {
    open();
    // The payload of a round that does not wait for it may have arrived as well.
    const size_t num_arrived = receiver_->transport->num(Kind::kArrived);
    post(0, 1, ref);
    send(0, 1, ref);
    if (round % 2 == 0) {
      ASSERT_TRUE(receiver_->transport->wait_for(Kind::kArrived, num_arrived + 1));
      EXPECT_TRUE(has_arrived(0));
    }
    (*sender_)->close(test::kTestSession);
    (*receiver_)->close(test::kTestSession);
    ASSERT_TRUE(sender_->transport->wait_for(Kind::kClosed, round + 1));
    ASSERT_TRUE(receiver_->transport->wait_for(Kind::kClosed, round + 1));
  }
}

TEST_F(KvIpc, ASenderThatEndsHoldsNobodyUp) {
  open();
  const KvTransferRef ref = test::test_transfer(1);
  post(0, 1, ref);
  post(1, 1, ref);
  send(0, 1, ref);
  ASSERT_TRUE(receiver_->transport->wait_for(Kind::kArrived));
  sender_.reset();
  ASSERT_TRUE(test::wait_until([&] { return (*receiver_)->counts().connections_lost > 0; }));
  (*receiver_)->abort(test::kTestSession, ref);
  ASSERT_TRUE(receiver_->transport->wait_for(Kind::kWriterGone));
  (*receiver_)->close(test::kTestSession);
  ASSERT_TRUE(receiver_->transport->wait_for(Kind::kClosed));
}

// --- Who is refused --------------------------------------------------------------------------

TEST_F(KvIpc, LoansThatDoNotAgreeAreRefusedByName) {
  struct Case {
    LyingMemory::Lie lie;
    const char* reason;
  };

  const std::array<Case, 3> cases = {{
      // One byte of the shim's handle would name another process or thread, which may exist.
      {[](MemoryLoan& loan) { std::ranges::fill(loan.handle, std::byte{0xff}); }, "no such memory"},
      {[](MemoryLoan& loan) { loan.bytes += test::kIpcSlotBytes; }, "fewer bytes"},
      {[](MemoryLoan& loan) { loan.device[0] ^= std::byte{1}; }, "GPU"},
  }};
  for (const Case& one : cases) {
    SCOPED_TRACE(one.reason);
    const std::string text = logged_by([&] {
      sender_ = std::make_unique<test::IpcEnd>(
          std::make_unique<LyingMemory>(test::open_memory(), one.lie));
      receiver_ = std::make_unique<test::IpcEnd>(test::open_memory());
      open();
      const KvTransferRef ref = test::test_transfer(1);
      post(0, 1, ref);
      send(0, 1, ref);
      ASSERT_TRUE(test::wait_until([&] { return (*receiver_)->counts().connections_refused > 1; }));
    });
    EXPECT_EQ((*receiver_)->counts().frames_arrived, 0U);
    EXPECT_EQ((*sender_)->counts().frames_sent, 0U);
    EXPECT_NE(text.find("kv_link_refused"), std::string::npos) << text;
    EXPECT_NE(text.find(one.reason), std::string::npos) << text;
    EXPECT_EQ(text.find("kv_link_refused"), text.rfind("kv_link_refused"));  // once a session
    receiver_.reset();
    sender_.reset();
  }
}

TEST_F(KvIpc, AddressesOfOtherMachinesNamespacesAndDevicesAreNone) {
  const std::string own = (*sender_)->address();
  EXPECT_EQ(own.substr(0, 9), "cuda_ipc:");
  const auto changed = [&own](size_t at) {
    std::string other = own;
    other[at] = other[at] == '0' ? '1' : '0';
    return other;
  };
  const size_t name = own.find(":sluice-kv-");
  const std::string other_boot = changed(10);
  const std::string other_user = changed(name - 1);
  const std::string other_namespace = changed(own.rfind(':', name - 1) - 1);
  const std::string other_device = changed(own.size() - 1);
  for (const std::string& address : {other_boot,
                                     other_user,
                                     other_namespace,
                                     other_device,
                                     own.substr(0, own.rfind(':')),
                                     "shm" + own.substr(8),
                                     std::string("127.0.0.1:4711"),
                                     std::string("cuda_ipc")}) {
    const auto opened = (*receiver_)->open(test::receiver_options(layout_, address));
    ASSERT_FALSE(opened.has_value()) << address;
    EXPECT_EQ(opened.error().code, ErrorCode::kInvalidArgument);
    EXPECT_NE(opened.error().message.find(address), std::string::npos);
  }
  EXPECT_TRUE((*receiver_)->open(test::receiver_options(layout_, own)).has_value());
}

TEST(KvIpcTransport, WithoutAGpuThereIsNone) {
  KvTransportOptions options;
  EXPECT_EQ(make_kv_transport("cuda_ipc", options).error().code, ErrorCode::kUnavailable);
  options.device = &kernels::host_memory();
  EXPECT_EQ(make_kv_transport("cuda_ipc", options).error().code, ErrorCode::kUnavailable);
  EXPECT_TRUE(is_kv_device_transport("cuda_ipc"));
}

// --- The two ends of a link ------------------------------------------------------------------

KvFrame word(KvFrameKind kind, uint64_t sequence) {
  KvFrame frame;
  frame.kind = kind;
  frame.sequence = sequence;
  return frame;
}

TEST(KvIpcLink, APayloadIsThereWhenBothEndsHaveSaidSo) {
  const auto lender = test::open_memory();
  const auto memory = test::open_memory();
  const DeviceBuffer out = *DeviceBuffer::allocate(*lender, 8192, "lent");
  const DeviceBuffer in = *DeviceBuffer::allocate(*memory, 8192, "landing");
  IpcSender sender(out.span());
  const std::byte* const lent = *memory->borrow(*lender->lend(out.data()));
  IpcReceiver receiver(*memory, {lent, out.size()});
  std::vector<uint64_t> done;
  std::vector<KvFrame> said;
  for (const uint64_t number : {5, 7}) {
    const auto bytes = out.span().subspan(number * 100, 256);
    sender.send(number, bytes);
    receiver.receive(number, sender.place_of(bytes), in.span().first(256));
  }
  EXPECT_EQ(sender.num_open(), 2U);
  EXPECT_EQ(receiver.num_open(), 2U);
  ASSERT_TRUE(test::wait_until([&] {
    receiver.advance(done);
    receiver.take_frames(said);
    return said.size() == 2;
  }));
  EXPECT_TRUE(done.empty());  // read, and not known to have been kept
  EXPECT_FALSE(receiver.is_working());
  EXPECT_EQ(receiver.num_open(), 2U);
  EXPECT_FALSE(sender.take(word(KvFrameKind::kRead, 7)));  // 5 comes first
  EXPECT_FALSE(sender.take(word(KvFrameKind::kKept, 5)));
  EXPECT_FALSE(receiver.take(word(KvFrameKind::kKept, 7)));
  EXPECT_FALSE(receiver.take(word(KvFrameKind::kRead, 5)));
  for (const KvFrame& frame : std::exchange(said, {})) EXPECT_TRUE(sender.take(frame));
  EXPECT_FALSE(sender.take(word(KvFrameKind::kRead, 7)));  // once
  sender.advance(done);
  EXPECT_EQ(done, (std::vector<uint64_t>{5, 7}));
  done.clear();
  sender.take_frames(said);
  for (const KvFrame& frame : said) EXPECT_TRUE(receiver.take(frame));
  receiver.advance(done);
  EXPECT_EQ(done, (std::vector<uint64_t>{5, 7}));
  EXPECT_EQ(receiver.num_open() + sender.num_open(), 0U);
}

TEST(KvIpcLink, PlacesOutsideOfWhatWasLentBreakIt) {
  const auto lender = test::open_memory();
  const auto memory = test::open_memory();
  const DeviceBuffer out = *DeviceBuffer::allocate(*lender, 8192, "lent");
  const DeviceBuffer in = *DeviceBuffer::allocate(*memory, 8192, "landing");
  for (const uint64_t place :
       {uint64_t{8192 - 255}, uint64_t{8192}, UINT64_MAX, UINT64_MAX - 100}) {
    const std::byte* const lent = *memory->borrow(*lender->lend(out.data()));
    IpcReceiver receiver(*memory, {lent, out.size()});
    receiver.receive(1, 8192 - 256, in.span().first(256));
    EXPECT_EQ(receiver.state(), DeviceLink::State::kReady);
    receiver.receive(2, place, in.span().first(256));
    EXPECT_EQ(receiver.state(), DeviceLink::State::kBroken) << place;
    EXPECT_TRUE(test::wait_until([&] { return receiver.is_gone(); }));
  }
}

}  // namespace
}  // namespace sluice
