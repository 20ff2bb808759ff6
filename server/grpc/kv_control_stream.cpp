// SPDX-License-Identifier: Apache-2.0
#include "server/grpc/kv_control_stream.h"

#include <cstring>
#include <optional>
#include <utility>

#include "server/grpc/kv_codec.h"
#include "server/http/socket_name.h"

namespace sluice {
namespace {

constexpr size_t kMostQueued = 1024;        // messages in one direction
constexpr uint32_t kReadsPerRefill = 4096;  // messages that are read from a peer in a second
constexpr std::chrono::seconds kRefill{1};

// Parses gRPC's name of a peer, with brackets plain or escaped as in a URI.
std::optional<SocketName> socket_of_peer(std::string_view peer) {
  const size_t colon = peer.find(':');
  if (colon == std::string_view::npos) return std::nullopt;
  std::string text(peer.substr(colon + 1));
  for (const auto& [escaped, bracket] : {std::pair{"%5B", "["}, std::pair{"%5D", "]"}}) {
    const size_t at = text.find(escaped);
    if (at != std::string::npos) text.replace(at, std::strlen(escaped), bracket);
  }
  return parse_socket_name(text);
}

}  // namespace

std::string reached_by(const std::string& address, std::string_view peer) {
  const auto listens = parse_socket_name(address);
  if (!listens || !is_any_host(listens->host)) return address;
  const auto socket = socket_of_peer(peer);
  return socket ? text_of({socket->host, listens->port}) : address;
}

KvControlStream::KvControlStream(KvPeerId id,
                                 KvSide side,
                                 const KvStreamSettings& settings,
                                 KvPeerSink& sink,
                                 bool hides_failure)
    : id_(id),
      side_(side),
      settings_(settings),
      sink_(sink),
      hides_failure_(hides_failure),
      began_at_(Clock::now()),
      reads_left_(kReadsPerRefill),
      refill_at_(Clock::now() + kRefill),
      heard_at_(began_at_),
      ping_at_(heard_at_ + settings.ping) {
  fill_random(nonce_);
  if (side_ == KvSide::kListener) fill_random(session_);
}

void KvControlStream::start(KvWire& wire) {
  const std::scoped_lock lock(mutex_);
  wire_ = &wire;
  if (side_ == KvSide::kListener) {
    kv::v1::Envelope challenge;
    challenge.mutable_challenge()->mutable_nonce()->assign(nonce_.begin(), nonce_.end());
    queue(std::move(challenge));
  }
  read_next();
}

void KvControlStream::on_read(bool ok) {
  const std::scoped_lock lock(mutex_);
  is_reading_ = false;
  if (has_ended()) return;
  if (!ok) return end(false, "the stream has ended");
  heard_at_ = Clock::now();
  handle(in_);
  if (!has_ended() && --reads_left_ > 0) read_next();
}

void KvControlStream::on_write(bool ok) {
  const std::scoped_lock lock(mutex_);
  is_writing_ = false;
  if (has_ended()) return;
  if (!ok) return end(false, "the stream has ended");
  out_.pop_front();
  write_next();
}

bool KvControlStream::send(const KvMessage& message) {
  const std::scoped_lock lock(mutex_);
  if (state_ == State::kOver) return false;
  if (state_ == State::kFailing) return true;  // lost like what was sent before
  auto& waiting = state_ == State::kUp ? out_ : held_;
  if (waiting.size() >= kMostQueued) return false;
  kv::v1::Envelope out;
  encode_kv_message(message, out);
  if (out.ByteSizeLong() > kMaxKvMessageBytes) return false;
  waiting.push_back(std::move(out));
  write_next();
  return true;
}

void KvControlStream::tick(Clock::time_point now, uint64_t num_steps, const KvLoad& load) {
  const std::scoped_lock lock(mutex_);
  if (state_ == State::kHandshake && now > began_at_ + settings_.dead) {
    end(false, "the peer is silent");
  }
  if (state_ == State::kFailing && now > began_at_ + settings_.dead) return send_failure();
  if (has_ended() || wire_ == nullptr) return;
  num_steps_ = num_steps;
  load_ = load;
  if (now >= refill_at_) {
    refill_at_ = now + kRefill;
    reads_left_ = kReadsPerRefill;
    if (!is_reading_) read_next();
  }
  if (now > heard_at_ + settings_.dead) return end(false, "the peer is silent");
  if (is_writing_ && now > wrote_at_ + settings_.dead) return end(false, "the peer does not read");
  if (state_ != State::kUp || now < ping_at_) return;
  ping_at_ = now + settings_.ping;
  kv::v1::Envelope out;
  out.mutable_ping()->set_sequence(++num_pings_);
  out.mutable_ping()->set_num_steps(num_steps_);
  encode_kv_load(load_, *out.mutable_ping()->mutable_load());
  queue(std::move(out));
}

void KvControlStream::close(const std::string& reason) {
  const std::scoped_lock lock(mutex_);
  if (!has_ended()) end(false, reason);
  if (state_ == State::kFailing) send_failure();
}

bool KvControlStream::is_over() const {
  const std::scoped_lock lock(mutex_);
  return state_ == State::kOver;
}

bool KvControlStream::is_up() const {
  const std::scoped_lock lock(mutex_);
  return state_ == State::kUp;
}

void KvControlStream::send_failure() {
  state_ = State::kOver;
  sink_.deliver(KvPeerDown{id_, failure_});
}

void KvControlStream::end(bool is_refused, const std::string& reason) {
  const bool is_known = state_ == State::kUp || side_ == KvSide::kCaller;
  const bool is_hidden = hides_failure_ && state_ == State::kHandshake;
  state_ = is_hidden ? State::kFailing : State::kOver;
  held_.clear();
  if (wire_ != nullptr) std::exchange(wire_, nullptr)->finish(is_refused, reason);
  if (is_hidden) {
    failure_ = reason;
  } else if (is_known) {
    sink_.deliver(KvPeerDown{id_, reason});
  }
}

void KvControlStream::read_next() {
  is_reading_ = true;
  wire_->start_read(in_);
}

void KvControlStream::write_next() {
  if (is_writing_ || out_.empty() || wire_ == nullptr) return;
  is_writing_ = true;
  wrote_at_ = Clock::now();
  wire_->start_write(out_.front());
}

// Queues a message of the stream's own. Pings and pongs are dropped if the queue is full: the
// messages in it prove life as well.
void KvControlStream::queue(kv::v1::Envelope message) {
  if (out_.size() >= kMostQueued) return;
  out_.push_back(std::move(message));
  write_next();
}

void KvControlStream::handle(const kv::v1::Envelope& in) {
  using Body = kv::v1::Envelope::BodyCase;
  if (state_ == State::kHandshake) {
    const bool waits_for_challenge = side_ == KvSide::kCaller && !has_challenge_;
    return waits_for_challenge ? handle_challenge(in) : handle_hello(in);
  }
  // An unknown body belongs to a later version.
  if (in.body_case() == Body::kPong || in.body_case() == Body::BODY_NOT_SET) return;
  if (in.body_case() == Body::kPing) return handle_ping(in.ping());
  auto message = decode_kv_message(in);
  if (!message) return end(true, message.error().message);
  sink_.deliver(KvPeerMessage{id_, std::move(*message)});
}

void KvControlStream::handle_challenge(const kv::v1::Envelope& in) {
  KvNonce nonce{};
  if (!in.has_challenge() || in.challenge().nonce().size() != nonce.size()) {
    return end(true, "the peer does not begin as one of these");
  }
  std::memcpy(nonce.data(), in.challenge().nonce().data(), nonce.size());
  has_challenge_ = true;
  kv::v1::Envelope out;
  sign_kv_hello(settings_.own, side_, settings_.secret, nonce, nonce_, *out.mutable_hello());
  queue(std::move(out));
}

void KvControlStream::handle_hello(const kv::v1::Envelope& in) {
  const bool is_caller = side_ == KvSide::kCaller;
  if (!in.has_hello()) return end(true, "the peer does not say who it is");
  auto proven = verify_kv_hello(
      in.hello(), is_caller ? KvSide::kListener : KvSide::kCaller, settings_.secret, nonce_);
  if (!proven) return end(true, proven.error().message);
  KvHello& hello = proven->hello;
  if (is_caller) {
    for (KvTransportOffer& offer : hello.transports) {
      offer.address = reached_by(offer.address, wire_->peer());
    }
  } else {
    hello.session = session_;
    KvHello own = settings_.own;
    own.session = session_;
    kv::v1::Envelope out;
    sign_kv_hello(own, side_, settings_.secret, proven->nonce, nonce_, *out.mutable_hello());
    queue(std::move(out));
  }
  state_ = State::kUp;
  for (kv::v1::Envelope& message : std::exchange(held_, {})) out_.push_back(std::move(message));
  sink_.deliver(KvPeerUp{id_, is_caller, std::move(hello)});
  write_next();
}

void KvControlStream::handle_ping(const kv::v1::Ping& ping) {
  kv::v1::Envelope out;
  out.mutable_pong()->set_sequence(ping.sequence());
  out.mutable_pong()->set_num_steps(num_steps_);
  encode_kv_load(load_, *out.mutable_pong()->mutable_load());
  queue(std::move(out));
}

}  // namespace sluice
