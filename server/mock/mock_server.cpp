// SPDX-License-Identifier: Apache-2.0
#include "server/mock/mock_server.h"

#include <sys/socket.h>

#include <algorithm>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <charconv>
#include <chrono>
#include <deque>
#include <queue>
#include <unordered_map>
#include <utility>
#include <vector>

#include "engine/core/descriptor_limit.h"
#include "server/mock/mock_frames.h"

namespace sluice::mock {

using boost::asio::ip::tcp;
using boost::system::error_code;
using Clock = std::chrono::steady_clock;

namespace {

constexpr size_t kMaxRequestBytes = 64 << 20;
constexpr int64_t kDefaultTokens = 16;
// Limits of streams written, and of connections accepted, between two polls of the sockets.
constexpr size_t kMaxWrites = 256;
constexpr int kMaxAccepts = 256;

constexpr std::pair<const char*, MockFault> kFaults[] = {
    {"none", MockFault::kNone},
    {"no-answer", MockFault::kNoAnswer},
    {"die", MockFault::kDie},
    {"hang", MockFault::kHang},
    {"half-frame", MockFault::kHalfFrame},
    {"truncate", MockFault::kTruncate},
    {"bad-json", MockFault::kBadJson},
    {"error-event", MockFault::kErrorEvent},
    {"rate-limit", MockFault::kRateLimit},
    {"server-error", MockFault::kServerError},
    {"not-http", MockFault::kNotHttp},
};

// Returns the integer after `name` in a body from the load client; a mock need not parse JSON.
int64_t find_integer(std::string_view body, std::string_view name, int64_t fallback) {
  const size_t found = body.rfind(name);
  if (found == std::string_view::npos) return fallback;
  size_t at = found + name.size();
  while (at < body.size() && (body[at] == ' ' || body[at] == ':')) ++at;
  int64_t value = 0;
  const auto [end, error] = std::from_chars(body.data() + at, body.data() + body.size(), value);
  return error == std::errc() && end != body.data() + at ? value : fallback;
}

double to_seconds(Clock::duration duration) {
  return std::chrono::duration<double>(duration).count();
}

}  // namespace

Expected<MockFault> parse_mock_fault(std::string_view name) {
  std::string known;
  for (const auto& [word, fault] : kFaults) {
    if (name == word) return fault;
    known += (known.empty() ? "" : ", ") + std::string(word);
  }
  return make_error(ErrorCode::kInvalidArgument,
                    "--fault must be one of " + known + ", got \"" + std::string(name) + "\"");
}

struct MockServer::Impl {
  class Peer;

  struct Due {
    double at;
    uint64_t peer;

    bool operator>(const Due& other) const { return at > other.at; }
  };

  explicit Impl(const MockScript& mock_script)
      : script(mock_script), acceptor(loop), timer(loop), scratch(256 << 10) {
    for (const MockApi api : {MockApi::kCompletions, MockApi::kChat}) {
      const std::string chunk = http_chunk(token_event(api));
      std::string& write = writes[static_cast<size_t>(api)];
      for (int32_t i = 0; i < script.events_per_write; ++i) write += chunk;
      chunks[static_cast<size_t>(api)] = chunk;
    }
  }

  [[nodiscard]] double now() const { return to_seconds(Clock::now() - start); }

  // Returns the time of an event: no byte leaves while the server is stalled.
  [[nodiscard]] double after_stall(double at) const {
    const double begin = first_request + script.stall_at_s;
    const double end = begin + script.stall_for_s;
    return first_request >= 0 && at >= begin && at < end ? end : at;
  }

  void accept();
  void admit(Peer& peer, double at);
  void release(double at);
  void plan(Peer& peer, double at);
  void arm_timer();
  void pump();
  void pump_later();
  void make_ready(uint64_t peer);

  const MockScript script;
  const Clock::time_point start = Clock::now();
  boost::asio::io_context loop{1};
  tcp::acceptor acceptor;
  boost::asio::steady_timer timer;
  std::vector<char> scratch;
  std::string chunks[2];  // one token's, by MockApi
  std::string writes[2];  // events_per_write of the chunks
  uint64_t next_id = 1;
  std::unordered_map<uint64_t, std::unique_ptr<Peer>> peers;
  std::priority_queue<Due, std::vector<Due>, std::greater<>> due;
  std::deque<uint64_t> ready;  // streams without delays
  bool is_pumping = false;
  std::deque<uint64_t> queue;  // waiting for a slot
  int32_t num_served = 0;
  double first_request = -1;
  uint64_t num_requests = 0;
  int64_t num_tokens = 0;
};

// One connection and the request on it.
class MockServer::Impl::Peer {
 public:
  Peer(Impl& owner, uint64_t id, tcp::socket socket)
      : owner_(owner), id_(id), socket_(std::move(socket)) {
    error_code ignored;
    socket_.set_option(tcp::no_delay(true), ignored);
    socket_.non_blocking(true, ignored);
    wait_for_input();
  }

  [[nodiscard]] uint64_t id() const { return id_; }

  void begin(double at) {
    due_ = at + owner_.script.ttft_s;
    owner_.plan(*this, due_);
  }

  void set_due(double at) { due_ = at; }

  // Sends the events that are due. True: the stream continues at once, and the socket took
  // everything.
  bool advance() {
    is_blocked_ = !unsent_.empty();
    if (is_blocked_) return false;
    const MockScript& orders = owner_.script;
    if (has_fault_ && sent_events_ >= num_events_ / 2) return misbehave();
    std::string head;
    if (sent_events_ == 0) head = stream_head();
    const auto api = static_cast<size_t>(api_);
    const int64_t count = std::min<int64_t>(orders.events_per_write, num_events_ - sent_events_);
    sent_events_ += count;
    owner_.num_tokens += count * orders.tokens_per_event;
    const bool at_end = sent_events_ == num_events_;
    if (head.empty() && !at_end && count == orders.events_per_write) {
      send(owner_.writes[api]);
    } else {
      for (int64_t i = 0; i < count; ++i) head += owner_.chunks[api];
      if (at_end) head += stream_end(api_, prompt_tokens_, num_tokens_, orders.reports_usage);
      send(head);
    }
    if (at_end) {
      end_request();
      return false;
    }
    due_ += orders.itl_s;
    if (orders.itl_s > 0) {
      owner_.plan(*this, due_);
      return false;
    }
    is_blocked_ = !unsent_.empty();
    return !is_blocked_;
  }

 private:
  void wait_for_input() {
    socket_.async_wait(tcp::socket::wait_read, [this, id = id_, &owner = owner_](error_code error) {
      if (!error && owner.peers.contains(id)) receive();
    });
  }

  void receive() {
    error_code error;
    const size_t count = socket_.read_some(
        boost::asio::mutable_buffer(owner_.scratch.data(), owner_.scratch.size()), error);
    if (error == boost::asio::error::would_block) return wait_for_input();
    if (error) return leave();
    input_.append(owner_.scratch.data(), count);
    if (input_.size() > kMaxRequestBytes) return leave();
    wait_for_input();
    if (!is_busy_) take_request();
  }

  void take_request() {
    const size_t head_end = input_.find("\r\n\r\n");
    if (head_end == std::string::npos) return;
    const std::string_view head(input_.data(), head_end);
    const auto body_size =
        static_cast<size_t>(std::max<int64_t>(0, find_integer(head, "Content-Length", 0)));
    const size_t body_begin = head_end + 4;
    if (input_.size() - body_begin < body_size) return;
    const std::string target(head.substr(0, head.find("\r\n")));
    const std::string body = input_.substr(body_begin, body_size);
    input_.erase(0, body_begin + body_size);
    input_.shrink_to_fit();
    is_busy_ = true;
    route(target, body);
  }

  void route(const std::string& target, const std::string& body) {
    if (target.starts_with("POST ")) {
      api_ = target.find("/chat/") != std::string::npos ? MockApi::kChat : MockApi::kCompletions;
      if (target.find("/completions") != std::string::npos) return complete(body);
    } else if (target.starts_with("GET /v1/models ")) {
      return answer("200 OK", R"({"object":"list","data":[{"id":"mock","root":"mock"}]})");
    } else if (target.starts_with("GET /metrics ")) {
      return answer("200 OK",
                    "vllm:request_success_total " + std::to_string(owner_.num_requests) +
                        "\nvllm:generation_tokens_total " + std::to_string(owner_.num_tokens) +
                        "\n");
    } else if (target.starts_with("GET /health ")) {
      return answer("200 OK", "");
    }
    answer("404 Not Found", R"({"error":{"message":"the mock server has no such path"}})");
  }

  void answer(std::string_view status, std::string_view body, std::string_view headers = {}) {
    send(http_answer(status, headers, body));
    is_busy_ = false;
    if (!input_.empty()) take_request();
  }

  void complete(const std::string& body) {
    const MockScript& orders = owner_.script;
    const double at = owner_.now();
    if (owner_.first_request < 0) owner_.first_request = at;
    ++owner_.num_requests;
    const int64_t asked = find_integer(body, "\"max_tokens\"", kDefaultTokens);
    num_tokens_ = std::max<int64_t>(1, find_integer(body, "\"max_completion_tokens\"", asked));
    num_events_ = (num_tokens_ + orders.tokens_per_event - 1) / orders.tokens_per_event;
    prompt_tokens_ = static_cast<int64_t>(std::count(body.begin(), body.end(), ',')) + 1;
    sent_events_ = 0;
    has_fault_ = orders.fault != MockFault::kNone &&
                 owner_.num_requests % static_cast<uint64_t>(orders.fault_every) == 0;
    if (has_fault_) {
      if (orders.fault == MockFault::kNoAnswer) return leave();
      if (orders.fault == MockFault::kNotHttp) {
        send("SSH-2.0-OpenSSH_9.2\r\n");
        return leave();
      }
      if (orders.fault == MockFault::kRateLimit) {
        return answer("429 Too Many Requests",
                      R"({"error":{"message":"too many requests"}})",
                      "Retry-After: " + std::to_string(kRetryAfterSeconds) + "\r\n");
      }
      if (orders.fault == MockFault::kServerError) {
        return answer("500 Internal Server Error", R"({"error":{"message":"broken"}})");
      }
    }
    owner_.admit(*this, at);
  }

  bool misbehave() {
    std::string text;
    if (sent_events_ == 0) text = stream_head();
    const std::string& chunk = owner_.chunks[static_cast<size_t>(api_)];
    switch (owner_.script.fault) {
      case MockFault::kHang:
        return false;
      case MockFault::kHalfFrame:
        text += http_chunk(token_event(api_).substr(0, 40));
        break;
      case MockFault::kTruncate:
        send(text + "0\r\n\r\n");
        has_fault_ = false;
        end_request();
        return false;
      case MockFault::kBadJson:
        text += http_chunk("data: {\"choices\": [oops\n\n");
        break;
      case MockFault::kErrorEvent:
        text += http_chunk("data: {\"error\": {\"message\": \"out of blocks\"}}\n\n");
        break;
      default:
        text += chunk;
        break;
    }
    send(text);
    leave();
    return false;
  }

  void end_request() {
    is_busy_ = false;
    is_served_ = false;
    owner_.release(due_);
    if (!input_.empty()) take_request();
  }

  void send(std::string_view bytes) {
    if (unsent_.empty()) {
      const ssize_t sent =
          ::send(socket_.native_handle(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
      if (sent > 0) bytes.remove_prefix(static_cast<size_t>(sent));
      if (bytes.empty()) return;
      unsent_ = bytes;
      wait_for_room();
    } else {
      unsent_ += bytes;
    }
  }

  void wait_for_room() {
    socket_.async_wait(tcp::socket::wait_write,
                       [this, id = id_, &owner = owner_](error_code error) {
                         if (!error && owner.peers.contains(id)) flush();
                       });
  }

  void flush() {
    const ssize_t sent = ::send(
        socket_.native_handle(), unsent_.data(), unsent_.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0 && errno != EAGAIN && errno != EINTR) return leave();
    unsent_.erase(0, sent > 0 ? static_cast<size_t>(sent) : 0);
    if (!unsent_.empty()) return wait_for_room();
    if (std::exchange(is_blocked_, false) && is_busy_) owner_.make_ready(id_);
  }

  // Ends the connection and destroys this object.
  void leave() {
    const bool held_slot = is_busy_ && is_served_;
    Impl& owner = owner_;
    const double at = owner.now();
    owner.peers.erase(id_);
    if (held_slot) owner.release(at);
  }

  friend struct MockServer::Impl;

  Impl& owner_;
  const uint64_t id_;
  tcp::socket socket_;
  std::string input_;
  std::string unsent_;
  MockApi api_ = MockApi::kCompletions;
  bool is_busy_ = false;
  bool is_served_ = false;   // has a slot
  bool is_blocked_ = false;  // continues when the socket has room
  bool has_fault_ = false;
  int64_t prompt_tokens_ = 0;
  int64_t num_tokens_ = 0;
  int64_t num_events_ = 0;
  int64_t sent_events_ = 0;
  double due_ = 0;  // time of the next event
};

void MockServer::Impl::accept() {
  acceptor.async_wait(tcp::acceptor::wait_read, [this](error_code failed) {
    if (failed) return;
    for (int i = 0; i < kMaxAccepts; ++i) {
      error_code error;
      tcp::socket socket = acceptor.accept(error);
      if (error) break;
      const uint64_t id = next_id++;
      peers.emplace(id, std::make_unique<Peer>(*this, id, std::move(socket)));
    }
    accept();
  });
}

void MockServer::Impl::admit(Peer& peer, double at) {
  if (script.slots > 0 && num_served >= script.slots) {
    queue.push_back(peer.id());
    return;
  }
  ++num_served;
  peer.is_served_ = true;
  peer.begin(at);
}

// Gives away a slot that is free since `at`.
void MockServer::Impl::release(double at) {
  --num_served;
  while (!queue.empty() && num_served < std::max(1, script.slots)) {
    const auto found = peers.find(queue.front());
    queue.pop_front();
    if (found == peers.end()) continue;
    ++num_served;
    found->second->is_served_ = true;
    found->second->begin(at);
  }
}

void MockServer::Impl::plan(Peer& peer, double at) {
  const double moved = after_stall(at);
  peer.set_due(moved);
  if (script.itl_s <= 0 && script.ttft_s <= 0 && moved == at) return make_ready(peer.id());
  const bool is_first = due.empty() || moved < due.top().at;
  due.push({moved, peer.id()});
  if (is_first) arm_timer();
}

void MockServer::Impl::arm_timer() {
  if (due.empty()) return;
  timer.expires_at(start + std::chrono::duration_cast<Clock::duration>(
                               std::chrono::duration<double>(due.top().at)));
  timer.async_wait([this](error_code error) {
    if (error) return;  // armed again for an earlier time
    const double at_now = now();
    while (!due.empty() && due.top().at <= at_now) {
      const uint64_t id = due.top().peer;
      due.pop();
      const auto found = peers.find(id);
      if (found == peers.end()) continue;
      if (found->second->advance()) make_ready(id);
    }
    arm_timer();
  });
}

void MockServer::Impl::make_ready(uint64_t peer) {
  ready.push_back(peer);
  pump_later();
}

void MockServer::Impl::pump_later() {
  if (std::exchange(is_pumping, true)) return;
  boost::asio::post(loop, [this] { pump(); });
}

// Writes once for each stream with events to send, then handles the input that came meanwhile.
void MockServer::Impl::pump() {
  is_pumping = false;
  for (size_t left = std::min(ready.size(), kMaxWrites); left > 0; --left) {
    const uint64_t id = ready.front();
    ready.pop_front();
    const auto found = peers.find(id);
    if (found != peers.end() && found->second->advance()) ready.push_back(id);
  }
  if (!ready.empty()) pump_later();
}

MockServer::MockServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

MockServer::~MockServer() = default;

Expected<std::unique_ptr<MockServer>> MockServer::create(const std::string& host,
                                                         uint16_t port,
                                                         const MockScript& script) {
  raise_descriptor_limit();
  auto impl = std::make_unique<Impl>(script);
  error_code error;
  const auto address = boost::asio::ip::make_address(host, error);
  tcp::acceptor& acceptor = impl->acceptor;
  if (!error) acceptor.open(tcp::endpoint(address, port).protocol(), error);
  if (!error) acceptor.set_option(tcp::acceptor::reuse_address(true), error);
  if (!error) acceptor.bind(tcp::endpoint(address, port), error);
  if (!error) acceptor.listen(/*backlog=*/1 << 16, error);
  if (!error) acceptor.non_blocking(true, error);
  if (error) {
    return make_error(
        ErrorCode::kUnavailable,
        "cannot listen on " + host + ":" + std::to_string(port) + ": " + error.message());
  }
  return std::unique_ptr<MockServer>(new MockServer(std::move(impl)));
}

uint16_t MockServer::port() const { return impl_->acceptor.local_endpoint().port(); }

void MockServer::run() {
  impl_->accept();
  impl_->loop.run();
}

void MockServer::stop() {
  boost::asio::post(impl_->loop, [this] { impl_->loop.stop(); });
}

}  // namespace sluice::mock
