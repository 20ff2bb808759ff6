// SPDX-License-Identifier: Apache-2.0
#include "server/grpc/kv_control.h"

#include <grpcpp/channel.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>
#include <kv_control.grpc.pb.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <condition_variable>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>

#include "engine/core/incoming_memory.h"
#include "server/grpc/callback_queue.h"
#include "server/grpc/counted_port.h"
#include "server/grpc/kv_control_stream.h"
#include "server/grpc/rpc_context.h"
#include "server/grpc/server_settings.h"
#include "server/grpc/worker_secret.h"
#include "server/http/socket_name.h"

namespace sluice {
namespace {

using kv::v1::Envelope;

constexpr size_t kMostAuthenticated = 1024;
constexpr int kMostKvConnections = 128;  // --max-connections leaves descriptors for them
constexpr std::chrono::milliseconds kTick{100};
constexpr std::chrono::milliseconds kLastBytes{100};

// Counts gRPC's objects that have not called OnDone: the channel ends after them.
class Reactors {
 public:
  void begin() {
    const std::scoped_lock lock(mutex_);
    ++count_;
  }

  void end() {
    const std::scoped_lock lock(mutex_);
    if (--count_ == 0) none_.notify_all();
  }

  void wait() {
    std::unique_lock lock(mutex_);
    none_.wait(lock, [this] { return count_ == 0; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable none_;
  int64_t count_ = 0;
};

class ListenerWire final : public grpc::ServerBidiReactor<Envelope, Envelope>, public KvWire {
 public:
  ListenerWire(grpc::CallbackServerContext* context, Reactors& reactors)
      : context_(context), reactors_(reactors) {
    reactors_.begin();
  }

  void begin(std::shared_ptr<KvControlStream> stream) {
    stream_ = std::move(stream);
    stream_->start(*this);
  }

  void start_read(Envelope& into) override { StartRead(&into); }

  void start_write(const Envelope& message) override { StartWrite(&message); }

  void finish(bool is_refused, const std::string& reason) override {
    Finish(
        {is_refused ? grpc::StatusCode::UNAUTHENTICATED : grpc::StatusCode::UNAVAILABLE, reason});
  }

  [[nodiscard]] std::string peer() const override { return context_->peer(); }

  void OnReadDone(bool ok) override { stream_->on_read(ok); }

  void OnWriteDone(bool ok) override { stream_->on_write(ok); }

  void OnCancel() override {
    if (stream_ != nullptr) stream_->close("the stream has ended");
  }

  void OnDone() override {
    Reactors& reactors = reactors_;
    delete this;
    reactors.end();
  }

 private:
  grpc::CallbackServerContext* const context_;
  Reactors& reactors_;
  std::shared_ptr<KvControlStream> stream_;
};

class CallerWire final : public grpc::ClientBidiReactor<Envelope, Envelope>, public KvWire {
 public:
  CallerWire(std::shared_ptr<grpc::Channel> channel,
             std::shared_ptr<KvControlStream> stream,
             Reactors& reactors)
      : stub_(std::move(channel)), stream_(std::move(stream)), reactors_(reactors) {
    reactors_.begin();
  }

  void begin() {
    stub_.async()->Connect(&context_, this);
    AddHold();  // until finish(): reads and writes also come from other threads
    stream_->start(*this);
    StartCall();
  }

  void start_read(Envelope& into) override { StartRead(&into); }

  void start_write(const Envelope& message) override { StartWrite(&message); }

  void finish(bool, const std::string&) override {
    context_.TryCancel();
    RemoveHold();
  }

  [[nodiscard]] std::string peer() const override { return context_.peer(); }

  void OnReadDone(bool ok) override { stream_->on_read(ok); }

  void OnWriteDone(bool ok) override { stream_->on_write(ok); }

  void OnDone(const grpc::Status&) override {
    Reactors& reactors = reactors_;
    delete this;
    reactors.end();
  }

 private:
  grpc::ClientContext context_;
  kv::v1::KvControl::Stub stub_;
  const std::shared_ptr<KvControlStream> stream_;
  Reactors& reactors_;
};

class GrpcKvChannel final : public KvPeerChannel, private kv::v1::KvControl::CallbackService {
 public:
  GrpcKvChannel(KvControlOptions options, const KvHello& own, KvPeerSink& sink)
      : options_(std::move(options)),
        settings_{.own = own,
                  .secret = options_.secret,
                  .ping = std::chrono::milliseconds(options_.ping_ms),
                  .dead = std::chrono::milliseconds(options_.dead_ms)},
        sink_(sink) {}

  ~GrpcKvChannel() override;
  Expected<void> start();

  Expected<KvPeerId> connect(std::string_view address) override;
  bool send(KvPeerId peer, KvMessage message) override;
  void report(uint64_t num_steps, const KvLoad& load) override;

  [[nodiscard]] std::string address() const override { return address_; }

 private:
  using StreamPtr = std::shared_ptr<KvControlStream>;

  grpc::ServerBidiReactor<Envelope, Envelope>* Connect(
      grpc::CallbackServerContext* context) override;
  // Whoever is spoken to has proven that it may.
  [[nodiscard]] bool knows_peers() const {
    return !options_.secret.empty() || options_.tls.is_on();
  }

  // Uncounts a connection; false.
  bool give_back() {
    num_connections_.fetch_sub(1);
    return false;
  }

  // `from`: the connection of a listener's stream.
  StreamPtr add_stream(KvSide side, const std::string& address, const std::string& from = {});
  // Tells whether a client that names `address` must not learn what is there: it is on this
  // machine, neither --kv-peers names it with its port, nor has a worker ever been there.
  [[nodiscard]] bool hides_failure(const std::string& address);
  void run_timer();
  [[nodiscard]] std::vector<StreamPtr> all_streams();

  struct Peer {
    StreamPtr stream;
    KvSide side;
    std::string address;  // the caller's
    std::string from;     // the listener's: the peer's own end
  };

  const KvControlOptions options_;
  const KvStreamSettings settings_;
  KvPeerSink& sink_;
  std::string address_;
  Reactors reactors_;

  std::mutex mutex_;
  std::condition_variable stop_;
  std::map<uint64_t, Peer> peers_;  // guarded by mutex_, like all below
  std::set<std::string> authenticated_;    // addresses of authenticated workers
  uint64_t next_id_ = 1;
  uint64_t num_steps_ = 0;
  KvLoad load_;
  bool is_stopping_ = false;

  std::atomic<int> num_connections_{0};
  std::unique_ptr<CountedPort> port_;
  std::unique_ptr<grpc::Server> server_;
  std::thread timer_;
};

Expected<void> GrpcKvChannel::start() {
  const auto refuse = [&](const std::string& why) {
    return make_error(ErrorCode::kInvalidArgument,
                      "Cannot listen for KV transfers at " + options_.listen + ": " + why,
                      "kv-listen");
  };
  std::optional<SocketName> name = parse_socket_name(options_.listen);
  if (!name) return refuse("that is not host:port");
  if (!knows_peers() && !is_loopback(name->host)) {
    return refuse("beyond this machine a secret is needed (--worker-secret) or TLS "
                  "(--worker-ssl-ca-certs)");
  }
  grpc::ServerBuilder builder;
  builder.SetMaxReceiveMessageSize(static_cast<int>(kMaxKvMessageBytes));
  set_memory_limit(builder, incoming_kv_bytes());
  builder.AddChannelArgument(GRPC_ARG_MAX_METADATA_SIZE, 8192);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, 4);
  builder.AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, options_.dead_ms);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_IDLE_MS, options_.dead_ms);
  builder.AddChannelArgument(GRPC_ARG_ENABLE_PER_MESSAGE_DECOMPRESSION, 0);
  for (const auto algorithm : {GRPC_COMPRESS_DEFLATE, GRPC_COMPRESS_GZIP}) {
    builder.SetCompressionAlgorithmSupportStatus(algorithm, false);
  }
  const auto slots = CountedPort::Slots{
      .take = [this] { return num_connections_.fetch_add(1) < kMostKvConnections || give_back(); },
      .give = [this] { give_back(); }};
  if (auto port = CountedPort::create(*name, /*joins=*/false, slots)) {
    port_ = std::move(*port);
    port_->add_to(builder, mutual_server_credentials(options_.tls));
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
  }
  if (server_ == nullptr) return refuse("no such address here, or it is taken");
  port_->start();
  name->port = port_->port();
  address_ = text_of(*name);
  timer_ = std::thread([this] { run_timer(); });
  return {};
}

GrpcKvChannel::~GrpcKvChannel() {
  {
    const std::scoped_lock lock(mutex_);
    is_stopping_ = true;
  }
  stop_.notify_all();
  if (timer_.joinable()) timer_.join();
  for (const StreamPtr& stream : all_streams()) stream->close("this worker ends");
  if (server_ != nullptr) {
    port_->stop();
    server_->Shutdown(std::chrono::system_clock::now() + kLastBytes);
    server_->Wait();
  }
  reactors_.wait();
}

std::vector<std::shared_ptr<KvControlStream>> GrpcKvChannel::all_streams() {
  const std::scoped_lock lock(mutex_);
  std::erase_if(peers_, [](const auto& entry) { return entry.second.stream->is_over(); });
  std::vector<StreamPtr> streams;
  for (const auto& [id, peer] : peers_) {
    const bool is_authenticated = peer.side == KvSide::kCaller && peer.stream->is_up();
    if (is_authenticated && authenticated_.size() < kMostAuthenticated) {
      authenticated_.insert(peer.address);
    }
    if (!peer.from.empty() && peer.stream->is_up()) port_->mark_authenticated(peer.from);
    streams.push_back(peer.stream);
  }
  return streams;
}

// Returns null if there are too many peers.
std::shared_ptr<KvControlStream> GrpcKvChannel::add_stream(KvSide side,
                                                           const std::string& address,
                                                           const std::string& from) {
  const bool hides = side == KvSide::kCaller && hides_failure(address);
  StreamPtr oldest;  // of too many pending
  StreamPtr stream;
  {
    const std::scoped_lock lock(mutex_);
    std::erase_if(peers_, [](const auto& entry) { return entry.second.stream->is_over(); });
    std::vector<StreamPtr> pending;
    size_t num_authenticated = 0;
    for (const auto& [id, peer] : peers_) {
      if (peer.side != side) continue;
      if (side == KvSide::kCaller || peer.stream->is_up()) {
        ++num_authenticated;
      } else {
        pending.push_back(peer.stream);
      }
    }
    if (is_stopping_ || num_authenticated >= kMostKvPeers) return nullptr;
    if (pending.size() >= kMostKvPending) oldest = pending.front();
    const uint64_t id = next_id_++;
    stream = std::make_shared<KvControlStream>(KvPeerId(id), side, settings_, sink_, hides);
    peers_.emplace(id, Peer{stream, side, address, from});
  }
  if (oldest != nullptr) oldest->close("others wait to prove themselves");
  return stream;
}

bool GrpcKvChannel::hides_failure(const std::string& address) {
  const auto name = parse_socket_name(address);
  if (!name || !is_loopback(name->host)) return false;
  const bool is_named = std::ranges::any_of(options_.peers, [&](const std::string& peer) {
    const auto one = parse_socket_name(peer);
    return one && *one == *name;
  });
  const std::scoped_lock lock(mutex_);
  return !is_named && !authenticated_.contains(address);
}

grpc::ServerBidiReactor<Envelope, Envelope>* GrpcKvChannel::Connect(
    grpc::CallbackServerContext* context) {
  auto* wire = new ListenerWire(context, reactors_);
  if (StreamPtr stream = add_stream(KvSide::kListener, {}, address_of(context->peer()))) {
    wire->begin(std::move(stream));
  } else {
    wire->Finish({grpc::StatusCode::RESOURCE_EXHAUSTED, "too many peers"});
  }
  return wire;
}

Expected<KvPeerId> GrpcKvChannel::connect(std::string_view to) {
  const std::string address(to);
  if (!is_kv_peer_allowed(options_.peers, address)) {
    return make_error(ErrorCode::kPermissionDenied,
                      "no peer for KV transfers, by --kv-peers: " + address);
  }
  if (!knows_peers() && !is_loopback(parse_socket_name(address)->host)) {
    return make_error(ErrorCode::kPermissionDenied,
                      "KV transfers beyond this machine need --worker-secret or "
                      "--worker-ssl-ca-certs: " +
                          address);
  }
  {
    const std::scoped_lock lock(mutex_);
    for (const auto& [id, peer] : peers_) {
      if (peer.address == address && !peer.stream->is_over()) return KvPeerId(id);
    }
  }
  StreamPtr stream = add_stream(KvSide::kCaller, address);
  if (stream == nullptr) {
    return make_error(ErrorCode::kResourceExhausted, "too many peers for KV transfers");
  }
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(static_cast<int>(kMaxKvMessageBytes));
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  arguments.SetInt(GRPC_ARG_ENABLE_PER_MESSAGE_DECOMPRESSION, 0);
  keep_callback_queue();
  auto channel =
      grpc::CreateCustomChannel(address, channel_credentials(options_.tls), arguments);
  const KvPeerId id = stream->id();
  auto* wire = new CallerWire(std::move(channel), std::move(stream), reactors_);
  wire->begin();
  return id;
}

bool GrpcKvChannel::send(KvPeerId peer, KvMessage message) {
  StreamPtr stream;
  {
    const std::scoped_lock lock(mutex_);
    const auto at = peers_.find(peer.value);
    if (at == peers_.end()) return false;
    stream = at->second.stream;
  }
  return stream->send(message);
}

void GrpcKvChannel::report(uint64_t num_steps, const KvLoad& load) {
  const std::scoped_lock lock(mutex_);
  num_steps_ = num_steps;
  load_ = load;
}

void GrpcKvChannel::run_timer() {
  std::unique_lock lock(mutex_);
  while (!stop_.wait_for(lock, kTick, [this] { return is_stopping_; })) {
    const uint64_t num_steps = num_steps_;
    const KvLoad load = load_;
    lock.unlock();
    const auto now = KvControlStream::Clock::now();
    for (const StreamPtr& stream : all_streams()) stream->tick(now, num_steps, load);
    lock.lock();
  }
}

}  // namespace

bool is_kv_peer_allowed(const std::vector<std::string>& peers, std::string_view address) {
  const std::optional<SocketName> name = parse_socket_name(address);
  if (!name || name->port == 0) return false;
  if (peers.empty()) return is_loopback(name->host);
  return std::ranges::any_of(peers, [&](const std::string& peer) {
    if (peer == "*") return true;
    const std::optional<SocketName> one = parse_socket_name(peer);
    return one ? *one == *name : peer == name->host || peer == "[" + name->host + "]";
  });
}

Expected<KvControlOptions> kv_control_options(const Config& config) {
  SLUICE_TRY_VOID(check_worker_secret(config));
  SLUICE_TRY(WorkerTls tls, worker_tls(config));
  return KvControlOptions{.listen = config.kv_listen,
                          .peers = config.kv_peers,
                          .secret = config.worker_secret,
                          .tls = std::move(tls)};
}

Expected<std::unique_ptr<KvPeerChannel>> open_kv_control(const KvControlOptions& options,
                                                         const KvHello& own,
                                                         KvPeerSink& sink) {
  set_up_grpc();
  auto channel = std::make_unique<GrpcKvChannel>(options, own, sink);
  SLUICE_TRY_VOID(channel->start());
  return channel;
}

Expected<std::unique_ptr<KvPeerChannel>> open_kv_peers(const Config& config,
                                                       const KvHello& own,
                                                       KvPeerSink& sink) {
  SLUICE_TRY(const KvControlOptions options, kv_control_options(config));
  return open_kv_control(options, own, sink);
}

}  // namespace sluice
