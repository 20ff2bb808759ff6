// SPDX-License-Identifier: Apache-2.0
#include "engine/kv_links.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>

#include "engine/core/aligned_buffer.h"
#include "kvcache/transport/kv_transport.h"

namespace sluice {
namespace {

using Clock = std::chrono::steady_clock;

constexpr KvSession kSession = 1;
constexpr std::chrono::seconds kLongest{60};  // of one transfer: then something is broken

// What one transfer took.
struct Taken {
  double seconds = 0;
  double cpu_seconds = 0;
};

double cpu_now() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

Expected<Taken> timed(const std::function<Expected<void>()>& transfer) {
  const double cpu = cpu_now();
  const Clock::time_point begin = Clock::now();
  SLUICE_TRY_VOID(transfer());
  return Taken{std::chrono::duration<double>(Clock::now() - begin).count(), cpu_now() - cpu};
}

tl::unexpected<Error> broken(const std::string& what) {
  return make_error(ErrorCode::kInternal, "measuring KV links: " + what);
}

// --- What the machine allows -----------------------------------------------------------------

// Two sockets that are connected over loopback.
class SocketPair {
 public:
  static Expected<std::unique_ptr<SocketPair>> create() {
    auto pair = std::make_unique<SocketPair>();
    const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in at{};
    at.sin_family = AF_INET;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(at);
    auto* address = reinterpret_cast<sockaddr*>(&at);
    pair->from_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const bool is_open = bind(listener, address, size) == 0 && listen(listener, 1) == 0 &&
                         getsockname(listener, address, &size) == 0 &&
                         connect(pair->from_, address, size) == 0;
    if (is_open) pair->to_ = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
    close(listener);
    if (pair->to_ < 0) return broken("no connection over loopback");
    return pair;
  }

  SocketPair() = default;

  ~SocketPair() {
    if (from_ >= 0) close(from_);
    if (to_ >= 0) close(to_);
  }

  SocketPair(const SocketPair&) = delete;
  SocketPair& operator=(const SocketPair&) = delete;

  // All of `bytes` into `out`, round and round.
  Expected<void> copy(std::span<const std::byte> bytes, std::span<std::byte> out) const {
    std::thread sender([&] {
      for (size_t at = 0; at < bytes.size();) {
        const ssize_t count = send(from_, bytes.data() + at, bytes.size() - at, MSG_NOSIGNAL);
        if (count <= 0) return;
        at += static_cast<size_t>(count);
      }
    });
    size_t total = 0;
    while (total < bytes.size()) {
      const size_t at = total % out.size();
      const size_t most = std::min({out.size() - at, bytes.size() - total, size_t{64} << 10});
      const ssize_t count = recv(to_, out.data() + at, most, 0);
      if (count <= 0) break;
      total += static_cast<size_t>(count);
    }
    sender.join();
    if (total < bytes.size()) return broken("a connection over loopback has ended");
    return {};
  }

 private:
  int from_ = -1;
  int to_ = -1;
};

void copy_by_slots(std::span<const std::byte> bytes, std::span<std::byte> out, size_t slot) {
  for (size_t at = 0; at < bytes.size(); at += slot) {
    const size_t count = std::min(slot, bytes.size() - at);
    std::memcpy(out.data() + at % out.size(), bytes.data() + at, count);
  }
}

// --- Transports ------------------------------------------------------------------------------

// Something happened at either end.
class Bell {
 public:
  void ring() {
    const std::scoped_lock lock(mutex_);
    has_rung_ = true;
    rung_.notify_one();
  }

  // False: it was too long.
  bool wait() {
    std::unique_lock lock(mutex_);
    return rung_.wait_for(lock, kLongest, [this] { return std::exchange(has_rung_, false); });
  }

 private:
  std::mutex mutex_;
  std::condition_variable rung_;
  bool has_rung_ = false;
};

class Link {
 public:
  Link(const KvLinkOptions& options, std::span<const std::byte> source, std::span<std::byte> slots)
      : options_(options), source_(source), slots_(slots) {
    layout_.groups = {{.num_layers = static_cast<uint16_t>(options.num_layers),
                       .num_heads = static_cast<uint16_t>(options.num_kv_heads),
                       .head_bytes = static_cast<uint32_t>(2 * half_head_bytes())}};
    layout_.slot_bytes = static_cast<uint64_t>(options.slot_bytes);
  }

  [[nodiscard]] uint64_t block_bytes() const {
    return 2 * half_head_bytes() * static_cast<uint64_t>(options_.num_kv_heads) *
           static_cast<uint64_t>(options_.num_layers);
  }

  Expected<void> open(std::string_view kind) {
    KvTransportOptions options;
    options.listen = "127.0.0.1:0";
    options.num_connections = options_.num_connections;
    options.wake = [this] { bell_.ring(); };
    SLUICE_TRY(sender_, make_kv_transport(kind, options));
    SLUICE_TRY(receiver_, make_kv_transport(kind, options));
    KvSessionOptions session;
    session.session = kSession;
    session.layout = layout_;
    SLUICE_TRY_VOID(sender_->open(session));
    session.address = sender_->address();
    return receiver_->open(session);
  }

  // From the first credit to the last arrival.
  Expected<void> transfer() {
    ++ref_.attempt;
    num_frames_ = num_credits_ = 0;
    const uint64_t blocks = source_.size() / block_bytes();
    blocks_left_ = blocks;
    const size_t num_slots = slots_.size() / layout_.slot_bytes;
    for (uint32_t slot = 0; slot < num_slots && blocks_left_ > 0; ++slot) give(slot);
    ++num_credits_;
    std::vector<KvCompletion> fresh;
    for (uint64_t arrived = 0; arrived < blocks;) {
      bool has_given = false;
      receiver_->poll(fresh);
      for (const KvCompletion& one : fresh) {
        if (one.kind != KvCompletion::Kind::kArrived) return broken("a payload is spoiled");
        arrived += one.frame.num_blocks;
        if (blocks_left_ > 0) {
          give(one.frame.slot);
          has_given = true;
        }
      }
      num_credits_ += has_given ? 1 : 0;
      const bool is_first = fresh.empty();
      sender_->poll(fresh);
      if (is_first && fresh.empty() && !bell_.wait()) return broken("nothing arrives");
    }
    return {};
  }

  [[nodiscard]] int32_t num_frames() const { return num_frames_; }

  [[nodiscard]] int32_t num_credits() const { return num_credits_; }

 private:
  // K or V of a block in a layer and head, in bfloat16.
  [[nodiscard]] uint64_t half_head_bytes() const {
    return 2 * static_cast<uint64_t>(options_.block_size) *
           static_cast<uint64_t>(options_.head_dim);
  }

  // The slot for the next blocks: posted, and what goes into it sent.
  void give(uint32_t slot) {
    const uint64_t num_blocks =
        std::min(blocks_left_, static_cast<uint64_t>(layout_.slot_bytes) / block_bytes());
    const std::span<const std::byte> bytes =
        source_.subspan(source_.size() - blocks_left_ * block_bytes(), num_blocks * block_bytes());
    KvFrame frame;
    frame.ref = ref_;
    frame.slot = slot;
    frame.slot_generation = ++generation_;
    frame.num_layers = static_cast<uint16_t>(options_.num_layers);
    frame.num_heads = static_cast<uint16_t>(options_.num_kv_heads);
    frame.first_block = static_cast<uint32_t>(source_.size() / block_bytes() - blocks_left_);
    frame.num_blocks = static_cast<uint32_t>(num_blocks);
    frame.payload_bytes = bytes.size();
    // The parts are those of a cache: K and V of each layer of each block.
    const size_t span = half_head_bytes() * static_cast<uint64_t>(options_.num_kv_heads);
    KvPayload payload;
    for (size_t at = 0; at < bytes.size(); at += span) payload.push_back(bytes.subspan(at, span));
    CHECK(receiver_->post(
        kSession,
        {ref_, slot, generation_, slots_.subspan(slot * layout_.slot_bytes, layout_.slot_bytes)}));
    CHECK(sender_->send(kSession, frame, std::move(payload)));
    blocks_left_ -= num_blocks;
    ++num_frames_;
  }

  const KvLinkOptions options_;
  const std::span<const std::byte> source_;
  const std::span<std::byte> slots_;
  KvFrameLayout layout_;
  KvTransferRef ref_;
  uint32_t generation_ = 0;
  uint64_t blocks_left_ = 0;
  int32_t num_frames_ = 0;
  int32_t num_credits_ = 0;
  Bell bell_;
  std::unique_ptr<KvTransport> sender_;
  std::unique_ptr<KvTransport> receiver_;
};

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

struct Subject {
  KvLinkFigure figure;
  std::function<Expected<void>()> transfer;
  std::vector<Taken> taken = {};
};

Expected<void> measure(std::vector<Subject>& subjects, int32_t rounds) {
  for (int32_t round = -1; round < rounds; ++round) {  // the first one is not counted
    for (Subject& subject : subjects) {
      SLUICE_TRY(const Taken taken, timed(subject.transfer));
      if (round >= 0) subject.taken.push_back(taken);
    }
  }
  for (Subject& subject : subjects) {
    std::vector<double> seconds;
    std::vector<double> cpu;
    for (const Taken& taken : subject.taken) {
      seconds.push_back(taken.seconds);
      cpu.push_back(taken.cpu_seconds);
    }
    subject.figure.seconds = median(std::move(seconds));
    subject.figure.cpu_seconds = median(std::move(cpu));
  }
  for (Subject& subject : subjects) {
    for (const Subject& limit : subjects) {
      if (limit.figure.name != subject.figure.limit) continue;
      subject.figure.share = limit.figure.seconds / subject.figure.seconds;
    }
  }
  return {};
}

}  // namespace

Expected<KvLinkFigures> measure_kv_links(const KvLinkOptions& options) {
  const Link sizes(options, {}, {});
  const auto block_bytes = static_cast<int64_t>(sizes.block_bytes());
  const int64_t num_blocks = options.num_tokens / options.block_size;
  if (num_blocks < 1 || block_bytes > options.slot_bytes ||
      options.slot_bytes > options.buffer_bytes || options.num_layers > UINT16_MAX) {
    return make_error(ErrorCode::kInvalidArgument,
                      "A prompt has at least one block, a slot holds one of " +
                          std::to_string(block_bytes) + " bytes, and the buffer holds a slot.");
  }
  KvLinkFigures figures{.num_bytes = num_blocks * block_bytes, .links = {}};
  SLUICE_TRY(const auto source, AlignedBuffer::allocate(figures.num_bytes, "KV to be sent"));
  SLUICE_TRY(const auto buffer, AlignedBuffer::allocate(options.buffer_bytes, "landing slots"));
  const auto slots = buffer.span().first(
      static_cast<size_t>(options.buffer_bytes / options.slot_bytes * options.slot_bytes));
  std::ranges::fill(source.span(), std::byte{0x3c});
  std::ranges::fill(slots, std::byte{});
  SLUICE_TRY(const auto sockets, SocketPair::create());
  constexpr const char* kSocketCopy = "socket copy";
  constexpr const char* kMemcpy = "memcpy";
  std::vector<Subject> subjects = {
      {{.name = kSocketCopy, .limit = ""}, [&] { return sockets->copy(source.span(), slots); }},
      {{.name = kMemcpy, .limit = ""},
       [&]() -> Expected<void> {
         copy_by_slots(source.span(), slots, static_cast<size_t>(options.slot_bytes));
         return {};
       }},
  };
  std::vector<std::unique_ptr<Link>> links;
  for (const std::string_view kind : kv_transport_kinds()) {
    Link& link = *links.emplace_back(std::make_unique<Link>(options, source.span(), slots));
    SLUICE_TRY_VOID(link.open(kind));
    const char* limit = kind == "tcp" ? kSocketCopy : kMemcpy;
    subjects.push_back(
        {{.name = std::string(kind), .limit = limit}, [&link] { return link.transfer(); }});
  }
  SLUICE_TRY_VOID(measure(subjects, options.rounds));
  for (size_t i = 0; i < subjects.size(); ++i) {
    KvLinkFigure& figure = figures.links.emplace_back(subjects[i].figure);
    if (figure.limit.empty()) continue;
    const Link& link = *links[i - (subjects.size() - links.size())];
    figure.num_frames = link.num_frames();
    figure.num_credits = link.num_credits();
    figure.num_messages = figure.num_credits + 5;
  }
  return figures;
}

}  // namespace sluice
