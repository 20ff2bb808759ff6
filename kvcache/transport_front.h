// SPDX-License-Identifier: Apache-2.0
// The owner's half of a transport that has a thread of its own: calls become commands, which the
// thread does in order, and completions come back with poll(). Sessions and their tokens are
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

// All bytes are looked at, whatever they are.
bool is_same_token(const KvSessionToken& a, const KvSessionToken& b);

class KvTransportFront : public KvTransport {
 public:
  static constexpr size_t kMostOutstanding = 16384;  // slots posted and frames queued, all sessions
  static constexpr uint64_t kNoStream = 0;           // in epoll(): none of the transport's own
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

  // `wake`: as in KvTransportOptions.
  explicit KvTransportFront(std::function<void()> wake);

  // Owner's thread.
  //
  // Begins the transport's thread: body(), which returns once is_closing() holds. Its epoll() is
  // ready, edge by edge and with kNoStream, for commands and for `listener`. kResourceExhausted: no
  // descriptor is left.
  Expected<void> start(int listener, std::function<void()> body);
  // The thread's wait ends, and then the thread: first of all in the destructor of whatever body()
  // uses. Nothing, where it has not begun.
  void end();

  // The transport's thread.
  [[nodiscard]] bool is_closing() const { return closing_; }

  [[nodiscard]] int epoll() const { return epoll_; }

  void drain_commands(std::vector<Command>& out) { commands_.drain(out); }

  // A slot or a queued frame is the caller's again.
  void release_outstanding() { --num_outstanding_; }

  void add_completion(const KvCompletion& completion) { fresh_.push_back(completion); }

  // Of what a peer says whenever it likes. False: more often than one that means well.
  bool add_told(const KvCompletion& completion);
  // What was added since the last call.
  void tell_owner();

  KvAtomicCounts counts_;

 private:
  bool take_one(KvSession session);
  void tell(Command command);

  const std::function<void()> wake_;
  Inbox<Command> commands_;
  Inbox<KvCompletion> completions_;
  std::atomic<size_t> num_outstanding_ = 0;
  std::atomic<size_t> num_told_ = 0;  // what peers said since the last poll()
  std::atomic<bool> woken_ = false;   // since the last poll()
  std::atomic<bool> closing_ = false;
  int wake_fd_ = -1;
  int epoll_ = -1;
  std::thread thread_;
  std::map<KvSession, KvSessionToken> open_;  // owner's thread
  std::vector<KvCompletion> fresh_;           // the transport's thread
};

}  // namespace sluice
