// SPDX-License-Identifier: Apache-2.0
// The owner's half of a transport that has a thread of its own: calls become commands, which the
// thread executes in order, and completions come back with poll(). Sessions and their tokens are
// checked here, so that the thread finds each session that a command names.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string_view>
#include <thread>
#include <variant>
#include <vector>

#include "engine/core/queue.h"
#include "kvcache/kv_transport.h"

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

  ~KvTransportFront() override;

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

  // `wake`: see KvTransportOptions.
  explicit KvTransportFront(std::function<void()> wake);

  // Owner's thread.
  //
  // Begins the transport's thread: body(), which returns once is_closing() holds. Its epoll() is
  // ready, edge by edge and with kNoStream, for commands and for `listener`. kResourceExhausted: no
  // descriptor is left.
  Expected<void> start(int listener, std::function<void()> body);
  // Ends the thread's wait, and then the thread; does nothing if it has not been started. The
  // destructor of the class that owns what body() uses calls it first.
  void end();

  // Called on the transport's thread, as are all calls below.
  [[nodiscard]] bool is_closing() const { return closing_; }

  [[nodiscard]] int epoll() const { return epoll_; }

  void drain_commands(std::vector<Command>& out) { commands_.drain(out); }

  // Gives a slot or a queued frame back to the caller.
  void release_outstanding() { --num_outstanding_; }

  void add_completion(const KvCompletion& completion) { fresh_.push_back(completion); }

  // Reports a frame that a peer may send at any time. False: more often than an honest peer does.
  bool add_told(const KvCompletion& completion);
  // Hands the owner the completions added since the last call.
  void tell_owner();

  KvAtomicCounts counts_;

 private:
  bool take_one(KvSession session);
  void tell(Command command);

  const std::function<void()> wake_;
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
  std::vector<KvCompletion> fresh_;           // the transport's thread
};

}  // namespace sluice
