// SPDX-License-Identifier: Apache-2.0
#include "kvcache/transport/transport_sessions.h"

#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <ctime>
#include <list>
#include <map>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include "engine/core/file_descriptor.h"
#include "engine/core/log.h"
#include "engine/core/queue.h"
#include "kvcache/transport/transport_device.h"
#include "kvcache/transport/transport_session.h"
#include "kvcache/transport/transport_stream.h"

namespace sluice {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kMostOutstanding = 16384;  // slots posted and frames queued, all sessions
constexpr size_t kMostReported = 4096;      // NAK and END between two polls, all peers
constexpr size_t kMostPending = 64;         // connections before their HELLO
constexpr uint64_t kNoStream = 0;           // datum in the epoll set of no stream
// How long the end of the transport waits for peers that read this worker's memory.
constexpr std::chrono::milliseconds kReaderTime{500};
constexpr size_t kScratchBytes = size_t{64} << 10;
constexpr int kNice = 2;  // lower priority than front ends' threads, higher than those that compute

// Compares in constant time: looks at all bytes, whatever they are.
bool is_same_token(const KvSessionToken& a, const KvSessionToken& b) {
  unsigned difference = 0;
  for (size_t i = 0; i < a.size(); ++i) difference |= static_cast<unsigned>(a[i] ^ b[i]);
  return difference == 0;
}

void add_one(const FileDescriptor& eventfd) {
  const uint64_t one = 1;
  // A full counter fails the write, but then the thread has a wake-up pending.
  [[maybe_unused]] const auto written = ::write(eventfd.get(), &one, sizeof(one));
}

// The owner's calls become commands, which the thread executes in order, and poll() returns
// completions. Sessions and their tokens are checked on the owner's thread, so that the transport's
// finds each session that a command names.
class SessionTransport final : public KvTransport, private KvSessionOwner {
 public:
  SessionTransport(std::unique_ptr<KvStreamMaker> maker,
                   std::unique_ptr<DeviceLinks> links,
                   KvTransportOptions options)
      : maker_(std::move(maker)),
        links_(std::move(links)),
        options_(std::move(options)),
        commands_(kMostOutstanding),
        completions_(kMostOutstanding) {}

  ~SessionTransport() override;
  Expected<void> start();

  [[nodiscard]] std::string_view kind() const override {
    return links_ != nullptr ? links_->kind() : maker_->kind();
  }

  [[nodiscard]] bool moves_device_memory() const override { return links_ != nullptr; }

  [[nodiscard]] std::string address() const override { return maker_->address(); }

  [[nodiscard]] bool is_address(std::string_view address) const override {
    return maker_->is_address(address);
  }

  Expected<void> open(const KvSessionOptions& options) override;
  [[nodiscard]] bool post(KvSession session, const KvLanding& landing) override;
  [[nodiscard]] bool send(KvSession session, const KvFrame& frame, KvPayload payload) override;
  void poll(std::vector<KvCompletion>& out) override;
  void abort(KvSession session, const KvTransferRef& ref) override;
  void close(KvSession session) override;

  [[nodiscard]] KvTransportCounts counts() const override {
    KvTransportCounts now;
    counts_.add_to(now);
    return now;
  }

 private:
  struct Close {};

  struct Command {
    KvSession session;
    std::variant<KvSessionOptions, KvLanding, KvOutgoing, KvTransferRef, Close> what;
  };

  // A connection before its HELLO.
  struct PendingConnection {
    std::unique_ptr<KvConnection> connection;
    Clock::time_point since;
    std::optional<KvFrame> hello;  // of a session that is not open yet
  };

  // The owner's thread.
  bool take_one(KvSession session);
  void enqueue(Command command);

  // The transport's thread.
  void run();
  void execute(Command& command);
  void wait(std::chrono::nanoseconds tick);
  [[nodiscard]] std::chrono::nanoseconds tick() const;
  void note_ready(uint64_t id);
  std::unique_ptr<KvConnection> connect(std::unique_ptr<KvStream> stream, bool is_receiver);
  void accept_all();
  void advance_pending(Clock::time_point now);
  KvSessionState* find_session(const KvSessionToken& token);
  void dial(KvSessionState& session, Clock::time_point now);
  bool advance_sessions(Clock::time_point now);
  void notify_owner();
  void wait_for_readers();

  // KvSessionOwner.
  void run_commands() override;

  void complete(const KvCompletion& completion) override { fresh_.push_back(completion); }

  bool report_once(const KvCompletion& completion) override;

  void release_one() override { --num_outstanding_; }

  KvAtomicCounts& atomic_counts() override { return counts_; }

  void warn(const std::string& reason) override {
    log_event(LogLevel::kWarning, "kv_link_refused", "transport", kind(), "reason", reason);
  }

  const std::unique_ptr<KvStreamMaker> maker_;
  const std::unique_ptr<DeviceLinks> links_;
  const KvTransportOptions options_;
  FileDescriptor wake_;
  FileDescriptor epoll_;
  std::thread thread_;

  // Both threads.
  KvAtomicCounts counts_;
  Inbox<Command> commands_;
  Inbox<KvCompletion> completions_;
  std::atomic<size_t> num_outstanding_ = 0;
  std::atomic<size_t> num_reported_ = 0;  // what peers reported since the last poll()
  std::atomic<bool> woken_ = false;       // true since the last poll()
  std::atomic<bool> closing_ = false;

  // The owner's thread.
  std::map<KvSession, KvSessionToken> open_;

  // The transport's thread.
  kernels::DeviceBuffer unread_;    // a device's, for payloads without a slot
  std::vector<std::byte> scratch_;  // the host's
  std::map<KvSession, KvSessionState> sessions_;
  std::list<PendingConnection> pending_;
  uint64_t next_id_ = kNoStream + 1;
  std::vector<Command> drained_;
  std::vector<KvCompletion> fresh_;
};

// --- The owner's thread ----------------------------------------------------------------------

Expected<void> SessionTransport::start() {
  if (links_ == nullptr) {
    scratch_.resize(kScratchBytes);
  } else {
    const auto bytes = static_cast<int64_t>(options_.slot_bytes);
    SLUICE_TRY(
        unread_,
        kernels::DeviceBuffer::allocate(*options_.device, bytes, "KV that nobody waits for"));
    options_.device->wait();  // it is zeroed before a queue of a link writes it
  }
  wake_ = FileDescriptor(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  epoll_ = FileDescriptor(epoll_create1(EPOLL_CLOEXEC));
  if (!wake_.is_open() || !epoll_.is_open()) {
    return make_error(ErrorCode::kResourceExhausted, "KV transport: no descriptors are left");
  }
  for (const int fd : {wake_.get(), maker_->listener()}) {
    epoll_event event{};
    event.events = EPOLLIN | EPOLLET;
    event.data.u64 = kNoStream;
    CHECK_EQ(epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event), 0);
  }
  thread_ = std::thread([this] { run(); });
  return {};
}

SessionTransport::~SessionTransport() {
  if (thread_.joinable()) {
    closing_ = true;
    add_one(wake_);
    thread_.join();
  }
  for (auto& [id, session] : sessions_) session.close();  // side by side: a link may take a second
}

Expected<void> SessionTransport::open(const KvSessionOptions& options) {
  const auto refuse = [](const char* what) {
    return make_error(ErrorCode::kInvalidArgument, std::string("KV transport: ") + what);
  };
  if (!is_kv_layout(options.layout)) return refuse("a layout with nothing in it");
  if (!options.address.empty() && !is_address(options.address)) {
    return refuse(("no address of " + std::string(kind()) + ": " + options.address).c_str());
  }
  if (open_.contains(options.session)) return refuse("the session is open");
  for (const auto& [session, token] : open_) {
    if (is_same_token(token, options.token)) return refuse("the session's token is in use");
  }
  open_.emplace(options.session, options.token);
  enqueue({options.session, options});
  return {};
}

bool SessionTransport::take_one(KvSession session) {
  if (!open_.contains(session) || num_outstanding_ >= kMostOutstanding) return false;
  ++num_outstanding_;
  return true;
}

void SessionTransport::enqueue(Command command) {
  commands_.push_urgent(std::move(command));
  add_one(wake_);
}

bool SessionTransport::post(KvSession session, const KvLanding& landing) {
  if (!take_one(session)) return false;
  enqueue({session, landing});
  return true;
}

bool SessionTransport::send(KvSession session, const KvFrame& frame, KvPayload payload) {
  uint64_t bytes = 0;
  for (const std::span<const std::byte> part : payload) bytes += part.size();
  CHECK_EQ(bytes, frame.payload_bytes);
  CHECK(frame.kind == KvFrameKind::kNak || (frame.kind == KvFrameKind::kData && bytes > 0));
  if (!take_one(session)) return false;
  enqueue({session, KvOutgoing{frame, std::move(payload)}});
  return true;
}

void SessionTransport::poll(std::vector<KvCompletion>& out) {
  woken_ = false;
  num_reported_ = 0;
  completions_.drain(out);
}

void SessionTransport::abort(KvSession session, const KvTransferRef& ref) {
  if (open_.contains(session)) enqueue({session, ref});
}

void SessionTransport::close(KvSession session) {
  if (open_.erase(session) == 1) enqueue({session, Close()});
}

// --- Connections -----------------------------------------------------------------------------

// Null: no descriptor can be watched.
std::unique_ptr<KvConnection> SessionTransport::connect(std::unique_ptr<KvStream> stream,
                                                        bool is_receiver) {
  const uint64_t id = next_id_++;
  if (!stream->watch(epoll_.get(), id)) return nullptr;
  if (links_ == nullptr) {
    return std::make_unique<StreamConnection>(id, std::move(stream), is_receiver, scratch_);
  }
  return std::make_unique<DeviceConnection>(
      id, std::move(stream), is_receiver, *links_, unread_.span());
}

void SessionTransport::accept_all() {
  while (std::unique_ptr<KvStream> stream = maker_->accept()) {
    std::unique_ptr<KvConnection> connection =
        pending_.size() < kMostPending ? connect(std::move(stream), false) : nullptr;
    if (connection == nullptr) {
      ++counts_.connections_refused;
    } else {
      pending_.push_back({std::move(connection), Clock::now(), std::nullopt});
    }
  }
}

KvSessionState* SessionTransport::find_session(const KvSessionToken& token) {
  KvSessionState* found = nullptr;
  for (auto& [id, session] : sessions_) {
    if (is_same_token(session.options().token, token) && !session.is_closed()) found = &session;
  }
  return found;
}

void SessionTransport::advance_pending(Clock::time_point now) {
  std::erase_if(pending_, [&](PendingConnection& pending) {
    KvConnection& connection = *pending.connection;
    std::vector<KvDone> none;
    if (!pending.hello) {
      connection.read(kKvFrameBytes, none);
      pending.hello = connection.take_frame();
    }
    const bool is_hello = pending.hello && pending.hello->kind == KvFrameKind::kHello;
    KvSessionState* const session = is_hello ? find_session(pending.hello->ref.transfer) : nullptr;
    if (session != nullptr && session->accept(*pending.hello, pending.connection)) return true;
    const bool is_wrong = session != nullptr || (pending.hello && !is_hello) ||
                          connection.failure() != KvConnection::Failure::kNone ||
                          now > pending.since + options_.hello_time;
    const bool is_lost = connection.failure() == KvConnection::Failure::kLost;
    if (is_wrong) ++(is_lost ? counts_.connections_lost : counts_.connections_refused);
    return is_wrong;
  });
}

void SessionTransport::dial(KvSessionState& session, Clock::time_point now) {
  while (session.should_dial(now)) {
    std::unique_ptr<KvStream> stream = maker_->dial(session.options().address);
    std::unique_ptr<KvConnection> connection =
        stream != nullptr ? connect(std::move(stream), true) : nullptr;
    if (connection == nullptr) break;
    session.add_dialled(std::move(connection));
  }
  session.delay_dialling(now + options_.redial_time);
}

// --- The thread ------------------------------------------------------------------------------

void SessionTransport::run_commands() {
  commands_.drain(drained_);
  for (Command& command : drained_) execute(command);
}

void SessionTransport::execute(Command& command) {
  if (auto* const options = std::get_if<KvSessionOptions>(&command.what)) {
    // Payloads that go beside the streams need one alone.
    const auto num_connections = links_ != nullptr ? 1 : static_cast<size_t>(maker_->num_streams());
    KvSessionOwner& owner = *this;
    sessions_.try_emplace(
        command.session, std::move(*options), num_connections, owner, Clock::now());
    return;
  }
  KvSessionState& session = sessions_.at(command.session);
  if (const auto* const landing = std::get_if<KvLanding>(&command.what)) {
    session.post(*landing);
  } else if (auto* const outgoing = std::get_if<KvOutgoing>(&command.what)) {
    session.send(std::move(*outgoing));
  } else if (const auto* const ref = std::get_if<KvTransferRef>(&command.what)) {
    session.abort(*ref, Clock::now());
  } else {
    session.close();
  }
}

bool SessionTransport::report_once(const KvCompletion& completion) {
  if (++num_reported_ > kMostReported) return false;
  complete(completion);
  return true;
}

void SessionTransport::notify_owner() {
  if (fresh_.empty()) return;
  for (const KvCompletion& completion : fresh_) completions_.push_urgent(completion);
  fresh_.clear();
  if (!woken_.exchange(true) && options_.wake) options_.wake();
}

std::chrono::nanoseconds SessionTransport::tick() const {
  std::chrono::nanoseconds tick =
      pending_.empty() ? KvConnection::kNever : KvSessionState::kTimerTick;
  for (const auto& [id, session] : sessions_) tick = std::min(tick, session.tick());
  return tick;
}

void SessionTransport::wait(std::chrono::nanoseconds tick) {
  if (tick.count() > 0) {
    timespec time{};
    time.tv_nsec = tick == KvConnection::kNever ? 0 : tick.count();
    pollfd ready{.fd = epoll_.get(), .events = POLLIN, .revents = 0};
    ppoll(&ready, 1, tick == KvConnection::kNever ? nullptr : &time, nullptr);
  }
  std::array<epoll_event, 64> events;
  int count = static_cast<int>(events.size());
  while (count == static_cast<int>(events.size())) {
    count = epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), 0);
    for (int i = 0; i < count; ++i) note_ready(events[static_cast<size_t>(i)].data.u64);
  }
}

void SessionTransport::note_ready(uint64_t id) {
  const auto note = [id](KvConnection& connection) {
    if (connection.id() == id) connection.may_read = connection.may_write = true;
  };
  for (const auto& [number, session] : sessions_) {
    for (const auto& connection : session.connections()) note(*connection);
  }
  for (const PendingConnection& pending : pending_) note(*pending.connection);
}

// Returns whether there may be more to do at once.
bool SessionTransport::advance_sessions(Clock::time_point now) {
  bool more = false;
  for (auto at = sessions_.begin(); at != sessions_.end();) {
    KvSessionState& session = at->second;
    if (session.should_dial(now)) dial(session, now);
    more = session.advance(now, options_.redial_time) || more;
    const bool is_over = session.is_over();
    if (is_over) complete({KvCompletion::Kind::kClosed, at->first, {}});
    at = is_over ? sessions_.erase(at) : std::next(at);
  }
  return more;
}

void SessionTransport::run() {
  if (links_ != nullptr) {
    options_.device->enter();
  } else {
    setpriority(PRIO_PROCESS, 0, getpriority(PRIO_PROCESS, 0) + kNice);
  }
  bool more = false;
  while (!closing_) {
    wait(more ? std::chrono::nanoseconds(0) : tick());
    run_commands();
    const Clock::time_point now = Clock::now();
    accept_all();  // also those that came when no descriptors were left
    advance_pending(now);
    more = advance_sessions(now);
    notify_owner();
  }
  wait_for_readers();
}

// Waits until no peer reads this worker's memory, which is freed next; kReaderTime at most.
void SessionTransport::wait_for_readers() {
  const Clock::time_point until = Clock::now() + kReaderTime;
  std::vector<KvConnection*> readers;
  for (const auto& [id, session] : sessions_) {
    for (const auto& connection : session.connections()) {
      if (connection->is_lent()) readers.push_back(connection.get());
    }
  }
  for (KvConnection* const reader : readers) reader->finish();
  std::vector<KvDone> none;
  while (Clock::now() < until) {
    std::erase_if(readers, [&](KvConnection* reader) {
      while (Clock::now() < until && reader->read(kKvFrameBytes, none) > 0) reader->take_frame();
      return !reader->is_lent();
    });
    if (readers.empty()) return;
    wait(KvSessionState::kTimerTick);
  }
}

}  // namespace

Expected<std::unique_ptr<KvTransport>> make_session_transport(std::unique_ptr<KvStreamMaker> maker,
                                                              std::unique_ptr<DeviceLinks> links,
                                                              KvTransportOptions options) {
  auto transport =
      std::make_unique<SessionTransport>(std::move(maker), std::move(links), std::move(options));
  SLUICE_TRY_VOID(transport->start());
  return transport;
}

}  // namespace sluice
