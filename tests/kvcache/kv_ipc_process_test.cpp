// SPDX-License-Identifier: Apache-2.0
// KV between devices of two processes by CUDA IPC, on devices of the shim or one GPU: a sender that
// is killed and one that is stopped.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/ipc_end.h"

namespace sluice {
namespace {

using Kind = KvCompletion::Kind;

constexpr const char* kChildPipes = "SLUICE_KV_IPC_CHILD_PIPES";  // to its parent, and from it
constexpr uint32_t kChildFrames = 300;

KvFrame child_frame(const KvFrameLayout& layout, uint32_t number) {
  return test::test_frame(layout,
                          test::test_transfer(1),
                          number % test::kNumIpcSlots,
                          1 + number / test::kNumIpcSlots,
                          number,
                          8);
}

std::vector<std::byte> child_bytes(const KvFrame& frame) {
  return test::test_bytes(frame.payload_bytes, 100 + frame.first_block);
}

// What the process that a test below starts does until it is killed: it sends, one frame at a time
// from each slot, and a frame for each byte of its parent's, which has then posted its slot.
TEST(KvIpcProcess, DISABLED_Sender) {
  const char* const pipes = std::getenv(kChildPipes);
  ASSERT_NE(pipes, nullptr);
  const int to_parent = std::atoi(pipes);
  const int from_parent = std::atoi(std::strchr(pipes, ',') + 1);
  const KvFrameLayout layout = test::test_layout(1021, test::kIpcSlotBytes);
  test::IpcEnd end(test::open_memory());
  ASSERT_TRUE(end->open(test::ipc_sender_options(layout, end)).has_value());
  const std::string line = end->address() + "\n";
  ASSERT_EQ(write(to_parent, line.data(), line.size()), static_cast<ssize_t>(line.size()));
  for (uint32_t number = 0; number < kChildFrames; ++number) {
    if (number >= test::kNumIpcSlots) {
      ASSERT_TRUE(end.transport->wait_for(Kind::kSent, number - test::kNumIpcSlots + 1));
    }
    char credit = 0;
    ASSERT_EQ(read(from_parent, &credit, 1), 1);
    const KvFrame frame = child_frame(layout, number);
    end.write(frame.slot, child_bytes(frame));
    ASSERT_TRUE(end->send(test::kTestSession, frame, {end.slot(frame.slot, frame.payload_bytes)}));
  }
  ASSERT_TRUE(end.transport->wait_for(Kind::kSent, kChildFrames));
  pause();  // until it is killed
}

class SenderProcess {
 public:
  SenderProcess() {
    std::array<int, 2> address_pipe{};
    std::array<int, 2> credit_pipe{};
    CHECK_EQ(pipe2(address_pipe.data(), O_CLOEXEC), 0);
    CHECK_EQ(pipe2(credit_pipe.data(), O_CLOEXEC), 0);
    for (const int end : {address_pipe[1], credit_pipe[0]}) CHECK_EQ(fcntl(end, F_SETFD, 0), 0);
    const std::string variable = std::string(kChildPipes) + "=" + std::to_string(address_pipe[1]) +
                                 "," + std::to_string(credit_pipe[0]);
    std::vector<char*> environment;
    for (char** entry = environ; *entry != nullptr; ++entry) environment.push_back(*entry);
    environment.push_back(const_cast<char*>(variable.c_str()));
    environment.push_back(nullptr);
    std::array<std::string, 3> arguments = {
        "sender", "--gtest_filter=*.DISABLED_Sender", "--gtest_also_run_disabled_tests"};
    std::array<char*, 4> pointers = {
        arguments[0].data(), arguments[1].data(), arguments[2].data(), nullptr};
    CHECK_EQ(
        posix_spawn(
            &process_, "/proc/self/exe", nullptr, nullptr, pointers.data(), environment.data()),
        0);
    close(address_pipe[1]);
    close(credit_pipe[0]);
    credits_ = credit_pipe[1];
    char c = 0;
    while (read(address_pipe[0], &c, 1) == 1 && c != '\n') address += c;
    close(address_pipe[0]);
  }

  SenderProcess(const SenderProcess&) = delete;
  SenderProcess& operator=(const SenderProcess&) = delete;

  ~SenderProcess() {
    end();
    close(credits_);
  }

  void signal(int number) const { CHECK_EQ(kill(process_, number), 0); }

  // It lives.
  void credit() const { CHECK_EQ(write(credits_, "+", 1), 1); }

  void end() {
    if (process_ <= 0) return;
    kill(process_, SIGKILL);
    waitpid(std::exchange(process_, 0), nullptr, 0);
  }

  std::string address;

 private:
  pid_t process_ = 0;
  int credits_ = -1;
};

// Takes frames of the child until `most` have arrived, each checked.
class Taking {
 public:
  Taking(test::IpcEnd& end, const SenderProcess& sender)
      : end_(end), sender_(sender), layout_(test::test_layout(1021, test::kIpcSlotBytes)) {}

  void open() {
    ASSERT_TRUE(end_->open(test::receiver_options(layout_, sender_.address)).has_value());
    for (uint32_t number = 0; number < test::kNumIpcSlots; ++number) post(number);
  }

  bool take(uint32_t most) {
    return end_.transport->wait_until([&](const auto& all) {
      for (; num_seen_ < all.size(); ++num_seen_) {
        if (all[num_seen_].kind != Kind::kArrived) continue;
        const KvFrame& frame = all[num_seen_].frame;
        EXPECT_EQ(end_.read(frame.slot, frame.payload_bytes), child_bytes(frame));
        ++num_arrived_;
        post(frame.first_block + test::kNumIpcSlots);
      }
      return num_arrived_ >= most;
    });
  }

 private:
  void post(uint32_t number) {
    if (number >= kChildFrames) return;
    const KvFrame frame = child_frame(layout_, number);
    ASSERT_TRUE(end_->post(test::kTestSession,
                           {frame.ref, frame.slot, frame.slot_generation, end_.slot(frame.slot)}));
    sender_.credit();
  }

  test::IpcEnd& end_;
  const SenderProcess& sender_;
  const KvFrameLayout layout_;
  size_t num_seen_ = 0;
  uint32_t num_arrived_ = 0;
};

TEST(KvIpcProcess, AnotherProcessSendsAndIsKilledInTheMiddle) {
  for (const uint32_t count : {kChildFrames, 40U, 1U}) {
    SCOPED_TRACE(count);
    SenderProcess sender;
    test::IpcEnd end(test::open_memory());
    Taking taking(end, sender);
    taking.open();
    ASSERT_TRUE(taking.take(count));
    sender.end();
    ASSERT_TRUE(test::wait_until([&] { return end->counts().connections_lost > 0; }));
    end->abort(test::kTestSession, test::test_transfer(1));
    ASSERT_TRUE(end.transport->wait_for(Kind::kWriterGone));
    end->close(test::kTestSession);
    ASSERT_TRUE(end.transport->wait_for(Kind::kClosed));
    EXPECT_EQ(end->counts().frames_spoiled + end->counts().connections_refused, 0U);
  }
}

TEST(KvIpcProcess, AStoppedSenderHoldsNoAbortUpAndWritesNothingAfterwards) {
  SenderProcess sender;
  test::IpcEnd end(test::open_memory());
  Taking taking(end, sender);
  taking.open();
  ASSERT_TRUE(taking.take(20));
  sender.signal(SIGSTOP);
  end->abort(test::kTestSession, test::test_transfer(1));
  ASSERT_TRUE(end.transport->wait_for(Kind::kWriterGone));
  const auto others = test::test_bytes(test::kIpcSlotBytes, 12345);
  for (uint32_t slot = 0; slot < test::kNumIpcSlots; ++slot) end.write(slot, others);
  sender.signal(SIGCONT);
  // What it sends again, and what it sends from now on, lands nowhere.
  for (int i = 0; i < 8; ++i) sender.credit();
  ASSERT_TRUE(test::wait_until([&] { return end->counts().frames_stale > 2; }));
  for (uint32_t slot = 0; slot < test::kNumIpcSlots; ++slot) {
    EXPECT_EQ(end.read(slot, test::kIpcSlotBytes), others) << slot;
  }
}

}  // namespace
}  // namespace sluice
