// SPDX-License-Identifier: Apache-2.0
// The owner's half of a transport that has a thread of its own: calls become commands, which the
// thread executes in order, and poll() returns completions. Sessions and their tokens are
// checked here, so that the thread finds each session that a command names. The other half is a
// class of its own: run() and what each command does.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <variant>
#include <vector>

#include "engine/core/queue.h"
#include "kvcache/transport/kv_stream.h"
#include "kvcache/transport/kv_transport.h"

namespace sluice {

// Counters of KvTransportCounts, written by the transport's thread.
struct KvAtomicCounts {
  std::atomic<uint64_t> bytes_sent = 0;
  std::atomic<uint64_t> bytes_arrived = 0;
  std::atomic<uint64_t> frames_sent = 0;
  std::atomic<uint64_t> frames_arrived = 0;
  std::atomic<uint64_t> frames_stale = 0;
  std::atomic<uint64_t> frames_spoiled = 0;
  std::atomic<uint64_t> connections_lost = 0;
  std::atomic<uint64_t> connections_refused = 0;
};

struct KvOutgoing {
  KvFrame frame;
  KvPayload payload;
};

// Compares in constant time: looks at all bytes, whatever they are.
bool is_same_token(const KvSessionToken& a, const KvSessionToken& b);

class KvTransportFront : public KvTransport {
 public:
  static constexpr size_t kMostOutstanding = 16384;  // slots posted and frames queued, all sessions
  static constexpr uint64_t kNoStream = 0;           // datum in epoll() of no stream
  static constexpr size_t kMostTold = 4096;          // NAK and END between two polls, all peers
  static constexpr size_t kMostStrangers = 64;       // connections before their HELLO

  ~KvTransportFront() override;

  // Begins the transport's thread, which calls run(). Its epoll() is ready, edge by edge and with
  // kNoStream, for commands and for the maker's listener. kResourceExhausted: no descriptor is
  // left.
  Expected<void> start();

  [[nodiscard]] std::string address() const final { return maker_->address(); }

  [[nodiscard]] bool is_address(std::string_view address) const final {
    return maker_->is_address(address);
  }

  Expected<void> open(const KvSessionOptions& options) final;
  [[nodiscard]] bool post(KvSession session, const KvLanding& landing) final;
  [[nodiscard]] bool send(KvSession session, const KvFrame& frame, KvPayload payload) final;
  void poll(std::vector<KvCompletion>& out) final;
  void abort(KvSession session, const KvTransferRef& ref) final;
  void close(KvSession session) final;
  [[nodiscard]] KvTransportCounts counts() const final;

 protected:
  struct OpenCommand {
    KvSessionOptions options;
  };

  struct PostCommand {
    KvSession session;
    KvLanding landing;
  };

  struct SendCommand {
    KvSession session;
    KvOutgoing outgoing;
  };

  struct AbortCommand {
    KvSession session;
    KvTransferRef ref;
  };

  struct CloseCommand {
    KvSession session;
  };

  using Command = std::variant<OpenCommand, PostCommand, SendCommand, AbortCommand, CloseCommand>;

  KvTransportFront(std::unique_ptr<KvStreamMaker> maker, KvTransportOptions options);

  // Owner's thread. Ends the thread's wait, and then the thread; does nothing if it has not been
  // started. The destructor of the class that owns what run() uses calls it first.
  void end();

  // The transport's thread makes all calls below. run() returns once is_closing() holds.
  virtual void run() = 0;
  virtual void do_one(OpenCommand& command) = 0;
  virtual void do_one(PostCommand& command) = 0;
  virtual void do_one(SendCommand& command) = 0;
  virtual void do_one(AbortCommand& command) = 0;
  virtual void do_one(CloseCommand& command) = 0;

  [[nodiscard]] bool is_closing() const { return closing_; }

  [[nodiscard]] int epoll() const { return epoll_; }

  // Executes all queued commands.
  void do_commands();

  // Gives a slot or a queued frame back to the caller.
  void release_outstanding() { --num_outstanding_; }

  void add_completion(const KvCompletion& completion) { fresh_.push_back(completion); }

  void add_writer_gone(KvSession session, const KvTransferRef& ref);

  // Reports a frame that a peer may send at any time. False: more often than an honest peer does.
  bool add_told(const KvCompletion& completion);
  // Hands the owner the completions added since the last call.
  void tell_owner();

  // Tells whether `ref` is the attempt; null matches all attempts.
  static bool is_of(const KvTransferRef& ref, const KvTransferRef* attempt) {
    return attempt == nullptr || ref == *attempt;
  }

  // Queues a sender's END of the attempt, unless much is queued.
  static void queue_end(std::deque<KvOutgoing>& queue, const KvTransferRef& attempt);
  // Takes the attempt's frames out of the queue.
  void take_back_frames(std::deque<KvOutgoing>& queue, const KvTransferRef* attempt);

  const std::unique_ptr<KvStreamMaker> maker_;
  const KvTransportOptions options_;

  KvAtomicCounts counts_;

 private:
  bool take_one(KvSession session);
  void tell(Command command);

  Inbox<Command> commands_;
  Inbox<KvCompletion> completions_;
  std::atomic<size_t> num_outstanding_ = 0;
  std::atomic<size_t> num_told_ = 0;  // what peers reported since the last poll()
  std::atomic<bool> woken_ = false;   // true since the last poll()
  std::atomic<bool> closing_ = false;
  int wake_fd_ = -1;
  int epoll_ = -1;
  std::thread thread_;
  std::map<KvSession, KvSessionToken> open_;  // owner's thread
  std::vector<Command> drained_;              // the transport's thread
  std::vector<KvCompletion> fresh_;           // the transport's thread
};

}  // namespace sluice
