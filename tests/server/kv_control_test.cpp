// SPDX-License-Identifier: Apache-2.0
#include "server/grpc/kv_control.h"

#include <grpc/support/log.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/generic/generic_stub.h>
#include <gtest/gtest.h>
#include <kv_control.grpc.pb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "server/http/socket_name.h"
#include "tests/server/idle_sockets.h"
#include "tests/server/kv_messages_sample.h"
#include "tests/server/running_server.h"
#include "tests/support/captured_log.h"
#include "tests/support/certificate.h"
#include "tests/support/fault_proxy.h"
#include "tests/support/free_port.h"
#include "tests/support/temporary_folder.h"

namespace sluice {
namespace {

using kv::v1::Envelope;
using test::Fault;
using test::FaultProxy;
using Clock = std::chrono::steady_clock;

class Events : public KvPeerSink {
 public:
  void deliver(KvPeerEvent event) override {
    const std::scoped_lock lock(mutex_);
    events_.push_back(std::move(event));
    changed_.notify_all();
  }

  // False: a minute is over.
  bool wait_until(const std::function<bool(const std::vector<KvPeerEvent>&)>& done) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::seconds(60), [&] { return done(events_); });
  }

  template <typename Event>
  bool wait_for(size_t count = 1) {
    return wait_until(
        [count](const std::vector<KvPeerEvent>& events) { return num_of<Event>(events) >= count; });
  }

  template <typename Event>
  std::vector<Event> all() {
    const std::scoped_lock lock(mutex_);
    std::vector<Event> found;
    for (const KvPeerEvent& event : events_) {
      if (const auto* one = std::get_if<Event>(&event)) found.push_back(*one);
    }
    return found;
  }

  size_t size() {
    const std::scoped_lock lock(mutex_);
    return events_.size();
  }

 private:
  template <typename Event>
  static size_t num_of(const std::vector<KvPeerEvent>& events) {
    return static_cast<size_t>(std::ranges::count_if(
        events, [](const KvPeerEvent& event) { return std::holds_alternative<Event>(event); }));
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<KvPeerEvent> events_;
};

KvHello hello_of(uint64_t epoch) {
  KvHello hello = test::sample_hello();
  hello.epoch = epoch;
  return hello;
}

KvControlOptions options_with(const std::string& secret = "one secret for all") {
  KvControlOptions options;
  options.listen = "127.0.0.1:0";
  options.secret = secret;
  options.ping_ms = 100;
  options.dead_ms = 2000;
  return options;
}

// A port of this machine that takes connections and says nothing.
struct HeldPort {
  HeldPort() : descriptor(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in any{};
    any.sin_family = AF_INET;
    any.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof any;
    EXPECT_EQ(::bind(descriptor, reinterpret_cast<sockaddr*>(&any), length), 0);
    EXPECT_EQ(::listen(descriptor, 16), 0);
    EXPECT_EQ(::getsockname(descriptor, reinterpret_cast<sockaddr*>(&any), &length), 0);
    port = ntohs(any.sin_port);
  }

  ~HeldPort() { ::close(descriptor); }

  HeldPort(const HeldPort&) = delete;
  HeldPort& operator=(const HeldPort&) = delete;

  [[nodiscard]] std::string address() const { return "127.0.0.1:" + std::to_string(port); }

  int descriptor;
  int port = 0;
};

struct End {
  explicit End(uint64_t epoch, const KvControlOptions& options = options_with())
      : channel(std::move(*open_kv_control(options, hello_of(epoch), events))) {}

  Events events;
  std::unique_ptr<KvPeerChannel> channel;
};

TEST(KvControl, PeersKnowEachOtherAndMessagesComeInOrder) {
  End prefill(11);
  End decode(22);
  const auto peer = decode.channel->connect(prefill.channel->address());
  ASSERT_TRUE(peer.has_value());
  // Before the stream is open.
  for (const KvMessage& message : test::sample_messages()) {
    EXPECT_TRUE(decode.channel->send(*peer, message));
  }
  ASSERT_TRUE(decode.events.wait_for<KvPeerUp>());
  ASSERT_TRUE(prefill.events.wait_for<KvPeerUp>());
  const KvPeerUp at_decode = decode.events.all<KvPeerUp>().front();
  const KvPeerUp at_prefill = prefill.events.all<KvPeerUp>().front();
  EXPECT_EQ(at_decode.peer, *peer);
  EXPECT_TRUE(at_decode.is_prefill);
  EXPECT_FALSE(at_prefill.is_prefill);
  EXPECT_EQ(at_decode.hello.epoch, 11u);
  EXPECT_EQ(at_prefill.hello.epoch, 22u);
  EXPECT_EQ(at_decode.hello.session, at_prefill.hello.session);
  EXPECT_NE(at_decode.hello.session, test::sample_hello().session);
  // Where the prefill worker's data listener is, as seen from here.
  EXPECT_EQ(at_decode.hello.transports.at(1).address, "127.0.0.1:4711");
  for (const KvMessage& message : test::sample_messages()) {
    EXPECT_TRUE(prefill.channel->send(at_prefill.peer, message));
  }
  const size_t count = test::sample_messages().size();
  ASSERT_TRUE(decode.events.wait_for<KvPeerMessage>(count));
  ASSERT_TRUE(prefill.events.wait_for<KvPeerMessage>(count));
  for (size_t i = 0; i < count; ++i) {
    EXPECT_EQ(decode.events.all<KvPeerMessage>()[i].message, test::sample_messages()[i]);
    EXPECT_EQ(prefill.events.all<KvPeerMessage>()[i].message, test::sample_messages()[i]);
  }
  EXPECT_EQ(decode.channel->connect(prefill.channel->address()), *peer);
  EXPECT_FALSE(decode.channel->send(KvPeerId(99), KvDrain{}));
}

TEST(KvControl, WhatGrpcSaysOfAPeersBytesIsALineOfTheLog) {
  const End end(11);
  const std::string text =
      logged_by([] { gpr_log(GPR_ERROR, "Error parsing metadata: %s", "a\xC9\nb"); });
  EXPECT_EQ(text, "");  // at the level that tests have
}

TEST(KvControl, WithoutTheSecretThereIsNoPeer) {
  for (const auto& [prefills, decodes] :
       {std::pair<std::string, std::string>{"one secret for all", "another one, wrong"},
        {"one secret for all", ""},
        {"", "one secret for all"}}) {
    End prefill(11, options_with(prefills));
    End decode(22, options_with(decodes));
    ASSERT_TRUE(decode.channel->connect(prefill.channel->address()).has_value());
    ASSERT_TRUE(decode.events.wait_for<KvPeerDown>());
    EXPECT_EQ(decode.events.all<KvPeerUp>().size(), 0u);
    EXPECT_EQ(decode.events.size(), 1u);
    EXPECT_TRUE(prefills.empty() || prefill.events.size() == 0);
  }
  End prefill(11, options_with(""));
  End decode(22, options_with(""));
  ASSERT_TRUE(decode.channel->connect(prefill.channel->address()).has_value());
  EXPECT_TRUE(decode.events.wait_for<KvPeerUp>());
}

// A client that gRPC itself gives: what does it get?
class KvStranger : public ::testing::Test {
 protected:
  KvStranger()
      : prefill_(11),
        channel_(
            grpc::CreateChannel(prefill_.channel->address(), grpc::InsecureChannelCredentials())) {}

  // Everything that comes after `first`, and the status.
  grpc::Status say(const std::vector<Envelope>& messages, std::vector<Envelope>& answers) {
    const auto stub = kv::v1::KvControl::NewStub(channel_);
    grpc::ClientContext context;
    const auto stream = stub->Connect(&context);
    for (const Envelope& message : messages) stream->Write(message);
    Envelope answer;
    while (stream->Read(&answer)) answers.push_back(answer);
    return stream->Finish();
  }

  End prefill_;
  std::shared_ptr<grpc::Channel> channel_;
};

TEST_F(KvStranger, GetsAChallengeAndTheEnd) {
  Envelope claim;
  claim.mutable_claim()->set_transfer(std::string(16, 'x'));
  Envelope hello;
  hello.mutable_hello()->set_hello("x");
  hello.mutable_hello()->set_nonce(std::string(32, 'n'));
  hello.mutable_hello()->set_mac(std::string(32, 'm'));
  Envelope large;
  large.mutable_claim()->set_trace(std::string(70'000, 'x'));
  for (const Envelope& first : {claim, hello, large, Envelope()}) {
    std::vector<Envelope> answers;
    const grpc::Status status = say({first}, answers);
    EXPECT_FALSE(status.ok());
    // The end may overtake the challenge.
    EXPECT_LE(answers.size(), 1u);
    EXPECT_TRUE(answers.empty() || answers[0].has_challenge());
  }
  // One that says nothing is not waited for.
  std::vector<Envelope> answers;
  const auto begin = Clock::now();
  EXPECT_FALSE(say({}, answers).ok());
  EXPECT_LT(Clock::now() - begin, std::chrono::seconds(10));
  ASSERT_EQ(answers.size(), 1u);
  EXPECT_TRUE(answers[0].has_challenge());
  EXPECT_EQ(prefill_.events.size(), 0u);
}

TEST_F(KvStranger, FindsNoOtherService) {
  for (const char* method : {"/grpc.health.v1.Health/Check",
                             "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
                             "/sluice.v1.Sluice/Generate"}) {
    grpc::ClientContext context;
    grpc::CompletionQueue queue;
    grpc::GenericStub stub(channel_);
    const auto call = stub.PrepareUnaryCall(&context, method, grpc::ByteBuffer(), &queue);
    grpc::ByteBuffer answer;
    grpc::Status status;
    call->StartCall();
    call->Finish(&answer, &status, &queue);
    void* tag = nullptr;
    bool ok = false;
    ASSERT_TRUE(queue.Next(&tag, &ok));
    EXPECT_EQ(status.error_code(), grpc::StatusCode::UNIMPLEMENTED) << method;
  }
}

TEST(KvControl, ASilentPeerIsDeadInTimeOnBothSides) {
  End prefill(11);
  FaultProxy proxy(prefill.channel->address(), [](size_t) {
    return Fault{Fault::Kind::kStall, true, 2000, 0};
  });
  End decode(22);
  ASSERT_TRUE(decode.channel->connect(proxy.address()).has_value());
  ASSERT_TRUE(decode.events.wait_for<KvPeerUp>());
  const auto begin = Clock::now();
  ASSERT_TRUE(decode.events.wait_for<KvPeerDown>());
  ASSERT_TRUE(prefill.events.wait_for<KvPeerDown>());
  // The pings that filled the 2000 bytes take part of it.
  EXPECT_LT(Clock::now() - begin, std::chrono::seconds(10));
  EXPECT_EQ(decode.events.all<KvPeerDown>().front().reason, "the peer is silent");
}

TEST(KvControl, PingsKeepAnIdleStreamAlive) {
  End prefill(11);
  End decode(22);
  ASSERT_TRUE(decode.channel->connect(prefill.channel->address()).has_value());
  ASSERT_TRUE(prefill.events.wait_for<KvPeerUp>());
  prefill.channel->report(5, {.num_active_blocks = 1});
  std::this_thread::sleep_for(std::chrono::milliseconds(3500));
  EXPECT_EQ(decode.events.size(), 1u);
  EXPECT_EQ(prefill.events.size(), 1u);
}

TEST(KvControl, ACutIsSeenAtOnceAndTheNextStreamIsANewPeer) {
  End prefill(11);
  FaultProxy proxy(prefill.channel->address(), [](size_t connection) {
    return connection > 0 ? Fault{} : Fault{Fault::Kind::kCut, true, 2000, 0};
  });
  End decode(22);
  const auto first = decode.channel->connect(proxy.address());
  ASSERT_TRUE(first.has_value());
  ASSERT_TRUE(decode.events.wait_for<KvPeerDown>());
  EXPECT_FALSE(decode.channel->send(*first, KvDrain{}));
  const auto second = decode.channel->connect(proxy.address());
  ASSERT_TRUE(second.has_value());
  EXPECT_NE(*first, *second);
  ASSERT_TRUE(decode.events.wait_until([&](const std::vector<KvPeerEvent>& events) {
    return std::ranges::any_of(events, [&](const KvPeerEvent& event) {
      const auto* up = std::get_if<KvPeerUp>(&event);
      return up != nullptr && up->peer == *second;
    });
  }));
}

TEST(KvControl, APeerThatEndsOrIsNotThereIsDown) {
  auto prefill = std::make_unique<End>(11);
  End decode(22);
  const std::string address = prefill->channel->address();
  ASSERT_TRUE(decode.channel->connect(address).has_value());
  ASSERT_TRUE(decode.events.wait_for<KvPeerUp>());
  prefill->channel.reset();
  ASSERT_TRUE(decode.events.wait_for<KvPeerDown>());
  ASSERT_TRUE(decode.channel->connect(address).has_value());
  ASSERT_TRUE(decode.events.wait_for<KvPeerDown>(2));
  EXPECT_EQ(decode.events.all<KvPeerUp>().size(), 1u);
}

// A port of this machine without a listener, one that takes connections and is silent, one that
// closes them, and a worker with another secret.
TEST(KvControl, NoTimeTellsWhatListensOnThisMachine) {
  KvControlOptions options = options_with();
  options.dead_ms = 800;
  const std::string closed = "127.0.0.1:" + std::to_string(testing::free_port());
  const HeldPort silent;
  FaultProxy cuts("127.0.0.1:1", [](size_t) { return Fault{}; });
  const End stranger(33, options_with("another one, wrong"));
  const std::string refuses = stranger.channel->address();
  for (const auto& address : {closed, silent.address(), cuts.address(), refuses}) {
    auto least = Clock::duration::max();  // a busy machine may delay one
    for (int i = 0; i < 5 && least >= std::chrono::milliseconds(1300); ++i) {
      End decode(22, options);
      const auto begin = Clock::now();
      const auto peer = decode.channel->connect(address);
      ASSERT_TRUE(peer.has_value());
      std::this_thread::sleep_for(std::chrono::milliseconds(300));
      const bool holds =
          decode.channel->send(*peer, KvDrain{}) && decode.channel->connect(address) == *peer;
      EXPECT_TRUE(holds || Clock::now() - begin >= std::chrono::milliseconds(800));
      ASSERT_TRUE(decode.events.wait_for<KvPeerDown>());
      least = std::min(least, Clock::now() - begin);
    }
    EXPECT_GE(least, std::chrono::milliseconds(800)) << address;
    EXPECT_LT(least, std::chrono::milliseconds(1300)) << address;
  }
  // Where its owner names the port, its absence is told at once.
  options.peers = {closed};
  options.dead_ms = 100'000;
  End decode(22, options);
  ASSERT_TRUE(decode.channel->connect(closed) && decode.events.wait_for<KvPeerDown>());
}

TEST(KvControl, StrangersKeepNoWorkerOut) {
  KvControlOptions options = options_with();
  options.dead_ms = 20'000;
  End prefill(11, options);
  struct Stranger {
    grpc::ClientContext context;
    std::unique_ptr<kv::v1::KvControl::Stub> stub;
    std::unique_ptr<grpc::ClientReaderWriter<Envelope, Envelope>> stream;
  };
  std::vector<std::unique_ptr<Stranger>> strangers;
  for (int i = 0; i < 140; ++i) {
    auto stranger = std::make_unique<Stranger>();
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    stranger->stub = kv::v1::KvControl::NewStub(grpc::CreateCustomChannel(
        prefill.channel->address(), grpc::InsecureChannelCredentials(), arguments));
    stranger->stream = stranger->stub->Connect(&stranger->context);
    Envelope challenge;
    EXPECT_TRUE(stranger->stream->Read(&challenge));
    strangers.push_back(std::move(stranger));
  }
  for (uint64_t epoch : {21, 22, 23}) {
    End decode(epoch);
    ASSERT_TRUE(decode.channel->connect(prefill.channel->address()).has_value());
    EXPECT_TRUE(decode.events.wait_for<KvPeerUp>());
  }
  for (const auto& stranger : strangers) stranger->context.TryCancel();
}

TEST(KvControl, ConnectionsThatSayNothingAreBoundedAndKeepNoWorkerOut) {
  KvControlOptions options = options_with();
  options.dead_ms = 20'000;
  End prefill(11, options);
  const auto name = parse_socket_name(prefill.channel->address());
  const testing::IdleSockets idle(static_cast<uint16_t>(name->port), 300);
  EXPECT_TRUE(eventually([&] { return idle.num_open() <= 129; })) << idle.num_open();
  End decode(21);
  ASSERT_TRUE(decode.channel->connect(prefill.channel->address()).has_value());
  EXPECT_TRUE(decode.events.wait_for<KvPeerUp>());
}

// Whoever has the secret and means no good: a peer is read from so often and no more.
TEST(KvControl, APeerIsNotReadWithoutEnd) {
  End prefill(11);
  End decode(22);
  const auto peer = decode.channel->connect(prefill.channel->address());
  ASSERT_TRUE(prefill.events.wait_for<KvPeerUp>());
  const auto end = Clock::now() + std::chrono::milliseconds(700);
  uint64_t num_sent = 0;
  while (Clock::now() < end) {
    num_sent += decode.channel->send(*peer, KvDrain{}) ? 1 : 0;
  }
  EXPECT_LE(prefill.events.size(), 2 * 4096u + 1);
  EXPECT_GT(num_sent, 100u);
}

TEST(KvControl, OnlyPeersThatAreAllowedAreConnectedTo) {
  const std::vector<std::string> none;
  EXPECT_TRUE(is_kv_peer_allowed(none, "127.0.0.1:50060"));
  EXPECT_TRUE(is_kv_peer_allowed(none, "localhost:50060"));
  EXPECT_TRUE(is_kv_peer_allowed(none, "[::1]:50060"));
  for (const char* other : {"10.0.0.1:50060",
                            "169.254.169.254:80",
                            "127.evil.example:80",
                            "localhost",
                            "localhost:",
                            ":80",
                            "",
                            "127.0.0.1:80x",
                            "unix:/tmp/x:1",
                            "dns:///localhost:80"}) {
    EXPECT_FALSE(is_kv_peer_allowed(none, other)) << other;
  }
  const std::vector<std::string> some = {"prefill-0.kv", "10.0.0.1:50060", "fd00::1"};
  EXPECT_TRUE(is_kv_peer_allowed(some, "prefill-0.kv:1"));
  EXPECT_TRUE(is_kv_peer_allowed(some, "10.0.0.1:50060"));
  EXPECT_TRUE(is_kv_peer_allowed(some, "[fd00::1]:50060"));
  EXPECT_TRUE(is_kv_peer_allowed({"[fd00::1]"}, "[fd00::1]:50060"));
  EXPECT_TRUE(is_kv_peer_allowed({"[fd00::1]:50060"}, "[fd00::1]:50060"));
  EXPECT_FALSE(is_kv_peer_allowed({"[fd00::1]:50060"}, "[fd00::1]:50061"));
  EXPECT_FALSE(is_kv_peer_allowed({"10.0.0.1"}, "10.0.0.1:70000"));
  EXPECT_FALSE(is_kv_peer_allowed(some, "10.0.0.1:50061"));
  EXPECT_FALSE(is_kv_peer_allowed(some, "prefill-0.kv.evil.example:1"));
  EXPECT_FALSE(is_kv_peer_allowed(some, "127.0.0.1:50060"));
  EXPECT_TRUE(is_kv_peer_allowed({"*"}, "10.0.0.1:50061"));
  EXPECT_FALSE(is_kv_peer_allowed({"*"}, "10.0.0.1"));

  End decode(22);
  const auto peer = decode.channel->connect("10.255.255.1:50060");
  ASSERT_FALSE(peer.has_value());
  EXPECT_EQ(peer.error().code, ErrorCode::kPermissionDenied);
}

TEST(KvControl, BeyondThisMachineThereIsASecret) {
  Events events;
  KvControlOptions options = options_with("");
  for (const char* listen : {"0.0.0.0:0", "[::]:0", "nowhere", "127.0.0.1"}) {
    options.listen = listen;
    EXPECT_FALSE(open_kv_control(options, hello_of(1), events).has_value()) << listen;
  }
  Config config;
  config.worker_secret = "too short";
  ASSERT_FALSE(kv_control_options(config).has_value());
  EXPECT_EQ(kv_control_options(config).error().param, "worker-secret");
  config.worker_secret = "one secret for all";
  ASSERT_TRUE(kv_control_options(config).has_value());
  options.secret = kv_control_options(config)->secret;
  options.listen = "0.0.0.0:0";
  EXPECT_TRUE(open_kv_control(options, hello_of(1), events).has_value());
  // The port is one worker's.
  End first(1);
  options.listen = first.channel->address();
  EXPECT_FALSE(open_kv_control(options, hello_of(2), events).has_value());
}

// --- TLS -------------------------------------------------------------------------------------

class KvControlTls : public ::testing::Test {
 protected:
  KvControlTls() {
    for (const auto& [certificate, name] : {std::pair(&authority_, "ca"),
                                            std::pair(&worker_, "worker"),
                                            std::pair(&elsewhere_, "elsewhere"),
                                            std::pair(&expired_, "expired"),
                                            std::pair(&stranger_, "stranger")}) {
      write_certificate(*certificate, path(std::string(name) + ".pem"));
      write_key(*certificate, path(std::string(name) + ".key"));
    }
  }

  [[nodiscard]] std::string path(const std::string& name) const { return folder_.at(name); }

  // Without a secret: whoever is known is so by the certificate.
  [[nodiscard]] KvControlOptions options(const std::string& authority,
                                         const std::string& own) const {
    KvControlOptions made = options_with("");
    if (authority.empty()) return made;
    made.tls = {.authorities = path(authority + ".pem"),
                .certificate = own.empty() ? "" : path(own + ".pem"),
                .key = own.empty() ? "" : path(own + ".key")};
    return made;
  }

  // Whether one that trusts `authority` and shows `own` becomes a peer of a good worker.
  bool meets(const std::string& authority, const std::string& own) {
    End prefill(11, options("ca", "worker"));
    End decode(22, options(authority, own));
    EXPECT_TRUE(decode.channel->connect(prefill.channel->address()).has_value());
    EXPECT_TRUE(decode.events.wait_until([](const auto& events) { return !events.empty(); }));
    const bool is_up = !decode.events.all<KvPeerUp>().empty();
    if (is_up) {
      EXPECT_TRUE(prefill.events.wait_for<KvPeerUp>());
    } else {
      EXPECT_EQ(prefill.events.size(), 0u);
    }
    return is_up;
  }

  const testing::TemporaryFolder folder_;
  const Certificate authority_ = make_certificate("DNS:ca", -kDay, kDay);
  const Certificate worker_ = make_certificate("IP:127.0.0.1", -kDay, kDay, &authority_);
  const Certificate elsewhere_ = make_certificate("IP:127.0.0.2", -kDay, kDay, &authority_);
  const Certificate expired_ = make_certificate("IP:127.0.0.1", -2 * kDay, -kDay, &authority_);
  const Certificate stranger_ = make_certificate("IP:127.0.0.1", -kDay, kDay);
};

TEST_F(KvControlTls, WorkersKnowEachOtherByCertificatesOrAreNoPeers) {
  EXPECT_TRUE(meets("ca", "worker"));
  EXPECT_TRUE(meets("ca", "elsewhere"));   // who calls may come from anywhere
  EXPECT_FALSE(meets("ca", ""));           // shows none
  EXPECT_FALSE(meets("ca", "stranger"));   // signed by another one
  EXPECT_FALSE(meets("ca", "expired"));
  EXPECT_FALSE(meets("stranger", "worker"));  // does not believe the other one
  EXPECT_FALSE(meets("", ""));                // speaks no TLS
}

TEST_F(KvControlTls, AListenerThatShowsABadCertificateIsNotSpokenTo) {
  for (const char* shown : {"expired", "stranger", "elsewhere"}) {
    End prefill(11, options("ca", shown));
    End decode(22, options("ca", "worker"));
    ASSERT_TRUE(decode.channel->connect(prefill.channel->address()).has_value());
    ASSERT_TRUE(decode.events.wait_for<KvPeerDown>()) << shown;
    EXPECT_EQ(decode.events.all<KvPeerUp>().size(), 0u) << shown;
    EXPECT_EQ(prefill.events.size(), 0u) << shown;
  }
  End plain(11, options("", ""));
  End decode(22, options("ca", "worker"));
  ASSERT_TRUE(decode.channel->connect(plain.channel->address()).has_value());
  ASSERT_TRUE(decode.events.wait_for<KvPeerDown>());
  EXPECT_EQ(plain.events.size(), 0u);
}

// A certificate and no secret, or both.
TEST_F(KvControlTls, ASecretIsAskedForAsWell) {
  for (const bool is_same : {true, false}) {
    KvControlOptions with_secret = options("ca", "worker");
    with_secret.secret = "one secret for all";
    End prefill(11, with_secret);
    if (!is_same) with_secret.secret = "another secret, wrong";
    End decode(22, with_secret);
    ASSERT_TRUE(decode.channel->connect(prefill.channel->address()).has_value());
    ASSERT_TRUE(decode.events.wait_until([](const auto& events) { return !events.empty(); }));
    EXPECT_EQ(decode.events.all<KvPeerUp>().size(), is_same ? 1u : 0u);
  }
}

TEST_F(KvControlTls, CertificatesAreAsGoodAsASecretBeyondThisMachine) {
  Events events;
  KvControlOptions anywhere = options("ca", "worker");
  anywhere.listen = "0.0.0.0:0";
  anywhere.peers = {"*"};
  const auto channel = open_kv_control(anywhere, hello_of(1), events);
  ASSERT_TRUE(channel.has_value());
  EXPECT_TRUE((*channel)->connect("10.255.255.1:50060").has_value());
}

TEST_F(KvControlTls, FilesAreLookedAtWhenTheWorkerStarts) {
  Config config;
  EXPECT_FALSE(kv_control_options(config)->tls.is_on());
  config.worker_ssl_ca_certs = path("ca.pem");
  ASSERT_FALSE(kv_control_options(config).has_value());
  EXPECT_EQ(kv_control_options(config).error().param, "worker-ssl-ca-certs");
  config.ssl_certfile = path("worker.pem");
  config.ssl_keyfile = path("worker.key");
  ASSERT_TRUE(kv_control_options(config).has_value());
  EXPECT_EQ(kv_control_options(config)->tls.certificate, path("worker.pem"));
  config.worker_ssl_certfile = path("elsewhere.pem");
  config.worker_ssl_keyfile = path("elsewhere.key");
  EXPECT_EQ(kv_control_options(config)->tls.key, path("elsewhere.key"));
  config.worker_ssl_keyfile = path("worker.key");  // of another one
  ASSERT_FALSE(kv_control_options(config).has_value());
  config.worker_ssl_keyfile = path("elsewhere.key");
  config.worker_ssl_ca_certs = path("nowhere.pem");
  ASSERT_FALSE(kv_control_options(config).has_value());
  EXPECT_NE(kv_control_options(config).error().message.find("nowhere.pem"), std::string::npos);
}

}  // namespace
}  // namespace sluice
