// SPDX-License-Identifier: Apache-2.0
#include "kvcache/transport/transport_front.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <string>
#include <utility>

namespace sluice {

bool is_same_token(const KvSessionToken& a, const KvSessionToken& b) {
  unsigned difference = 0;
  for (size_t i = 0; i < a.size(); ++i) difference |= static_cast<unsigned>(a[i] ^ b[i]);
  return difference == 0;
}

KvTransportFront::KvTransportFront(std::unique_ptr<KvStreamMaker> maker, KvTransportOptions options)
    : maker_(std::move(maker)),
      options_(std::move(options)),
      commands_(kMostOutstanding),
      completions_(kMostOutstanding) {}

KvTransportFront::~KvTransportFront() {
  for (const int fd : {wake_fd_, epoll_}) {
    if (fd >= 0) ::close(fd);
  }
}

// --- Owner's thread --------------------------------------------------------------------------

Expected<void> KvTransportFront::start() {
  wake_fd_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  epoll_ = epoll_create1(EPOLL_CLOEXEC);
  if (wake_fd_ < 0 || epoll_ < 0) {
    return make_error(ErrorCode::kResourceExhausted, "KV transport: no descriptors are left");
  }
  for (const int fd : {wake_fd_, maker_->listener()}) {
    epoll_event event{};
    event.events = EPOLLIN | EPOLLET;
    event.data.u64 = kNoStream;
    CHECK_EQ(epoll_ctl(epoll_, EPOLL_CTL_ADD, fd, &event), 0);
  }
  thread_ = std::thread([this] { run(); });
  return {};
}

void KvTransportFront::end() {
  if (!thread_.joinable()) return;
  closing_ = true;
  const uint64_t one = 1;
  [[maybe_unused]] const auto written = ::write(wake_fd_, &one, sizeof(one));
  thread_.join();
}

Expected<void> KvTransportFront::open(const KvSessionOptions& options) {
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
  tell(OpenCommand{options});
  return {};
}

bool KvTransportFront::take_one(KvSession session) {
  if (!open_.contains(session) || num_outstanding_ >= kMostOutstanding) return false;
  ++num_outstanding_;
  return true;
}

void KvTransportFront::tell(Command command) {
  commands_.push_urgent(std::move(command));
  const uint64_t one = 1;
  // A full counter fails the write, but then the thread has a wake-up pending.
  [[maybe_unused]] const auto written = ::write(wake_fd_, &one, sizeof(one));
}

bool KvTransportFront::post(KvSession session, const KvLanding& landing) {
  if (!take_one(session)) return false;
  tell(PostCommand{session, landing});
  return true;
}

bool KvTransportFront::send(KvSession session, const KvFrame& frame, KvPayload payload) {
  uint64_t bytes = 0;
  for (const std::span<const std::byte> part : payload) bytes += part.size();
  CHECK_EQ(bytes, frame.payload_bytes);
  CHECK(frame.kind == KvFrameKind::kNak || (frame.kind == KvFrameKind::kData && bytes > 0));
  if (!take_one(session)) return false;
  tell(SendCommand{session, {frame, std::move(payload)}});
  return true;
}

void KvTransportFront::poll(std::vector<KvCompletion>& out) {
  woken_ = false;
  num_told_ = 0;
  completions_.drain(out);
}

void KvTransportFront::abort(KvSession session, const KvTransferRef& ref) {
  if (open_.contains(session)) tell(AbortCommand{session, ref});
}

void KvTransportFront::close(KvSession session) {
  if (open_.erase(session) == 1) tell(CloseCommand{session});
}

KvTransportCounts KvTransportFront::counts() const {
  return {.bytes_sent = counts_.bytes_sent,
          .bytes_arrived = counts_.bytes_arrived,
          .frames_sent = counts_.frames_sent,
          .frames_arrived = counts_.frames_arrived,
          .frames_stale = counts_.frames_stale,
          .frames_spoiled = counts_.frames_spoiled,
          .connections_lost = counts_.connections_lost,
          .connections_refused = counts_.connections_refused};
}

// --- The transport's thread ------------------------------------------------------------------

void KvTransportFront::do_commands() {
  commands_.drain(drained_);
  for (Command& command : drained_) {
    std::visit([this](auto& one) { do_one(one); }, command);
  }
}

void KvTransportFront::add_writer_gone(KvSession session, const KvTransferRef& ref) {
  KvFrame gone;
  gone.ref = ref;
  add_completion({KvCompletion::Kind::kWriterGone, session, gone});
}

void KvTransportFront::queue_end(std::deque<KvOutgoing>& queue, const KvTransferRef& attempt) {
  if (queue.size() >= kMostTold) return;
  KvFrame frame;
  frame.kind = KvFrameKind::kEnd;
  frame.ref = attempt;
  queue.push_back({frame, {}});
}

void KvTransportFront::take_back_frames(std::deque<KvOutgoing>& queue,
                                        const KvTransferRef* attempt) {
  std::erase_if(queue, [&](const KvOutgoing& outgoing) {
    if (!is_of(outgoing.frame.ref, attempt)) return false;
    if (outgoing.frame.kind != KvFrameKind::kEnd) release_outstanding();
    return true;
  });
}

bool KvTransportFront::add_told(const KvCompletion& completion) {
  if (++num_told_ > kMostTold) return false;
  add_completion(completion);
  return true;
}

void KvTransportFront::tell_owner() {
  if (fresh_.empty()) return;
  for (const KvCompletion& completion : fresh_) completions_.push_urgent(completion);
  fresh_.clear();
  if (!woken_.exchange(true) && options_.wake) options_.wake();
}

}  // namespace sluice
