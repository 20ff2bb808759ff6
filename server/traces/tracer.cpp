// SPDX-License-Identifier: Apache-2.0
#include "server/traces/tracer.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <string>
#include <utility>

#include "engine/core/log.h"
#include "server/http/client/fetch.h"
#include "server/traces/otlp_json.h"

namespace sluice {
namespace {

using SteadyClock = std::chrono::steady_clock;

// OpenTelemetry's batch processor: queue, batch; its delay is 5 s, which is long to look at.
constexpr size_t kMostWaiting = 8192;
constexpr size_t kMostInBatch = 512;
constexpr auto kDelay = std::chrono::seconds(1);
constexpr auto kLastWait = std::chrono::seconds(2);
constexpr int64_t kWarnEveryNs = 60'000'000'000;

template <size_t kBytes>
std::array<uint8_t, kBytes> random_id(std::mt19937_64& random) {
  std::array<uint8_t, kBytes> id{};
  for (size_t i = 0; i < kBytes; i += sizeof(uint64_t)) {
    const uint64_t bits = std::max<uint64_t>(random(), 1);  // zeros are not an identifier
    std::memcpy(id.data() + i, &bits, sizeof(bits));
  }
  return id;
}

// The trace id decides, so that every process that sees a trace decides alike.
bool is_in_ratio(const TraceContext& context, double ratio) {
  if (ratio >= 1) return true;
  uint64_t low = 0;
  for (size_t i = 8; i < context.trace_id.size(); ++i) low = low << 8 | context.trace_id[i];
  constexpr double kTwoTo63 = 9223372036854775808.0;
  return static_cast<double>(low >> 1) < ratio * kTwoTo63;
}

// A collector's answer to an export: what it says on a refusal.
class CollectorAnswer final : public client::ResponseSink {
 public:
  Expected<void> on_head(const client::ResponseHead&) override { return {}; }

  Expected<void> on_body(std::string_view bytes) override {
    constexpr size_t kMostKept = 200;
    text_ += bytes.substr(0, kMostKept - std::min(text_.size(), kMostKept));
    return {};
  }

  [[nodiscard]] const std::string& text() const { return text_; }

 private:
  std::string text_;
};

}  // namespace

Tracer::Tracer(std::optional<TraceSettings> settings)
    : settings_(std::move(settings)), random_(std::random_device{}()) {
  random_.discard(std::random_device{}() % 1024);
  if (settings_) thread_ = std::thread([this] { run(); });
}

Tracer::~Tracer() {
  if (!thread_.joinable()) return;
  {
    std::unique_lock lock(mutex_);
    is_ending_ = true;
    changed_.notify_all();
    changed_.wait_for(lock, kLastWait, [this] { return has_ended_; });
  }
  cut_.request_stop();
  thread_.join();
}

TraceContext Tracer::begin(const TraceContext& parent) {
  if (!settings_) return parent;
  TraceContext own = parent;
  const std::scoped_lock lock(mutex_);
  if (!own.is_set()) own.trace_id = random_id<16>(random_);
  own.is_sampled = parent.is_set() && settings_->follows_parent
                       ? parent.is_sampled
                       : is_in_ratio(own, settings_->ratio);
  if (own.is_sampled || !parent.is_set()) own.span_id = random_id<8>(random_);
  return own;
}

void Tracer::add(Span span) {
  const std::scoped_lock lock(mutex_);
  if (waiting_.size() == kMostWaiting) {
    dropped_.fetch_add(1);
    return;
  }
  waiting_.push_back(std::move(span));
  if (waiting_.size() == kMostInBatch) changed_.notify_all();
}

void Tracer::run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait_for(
        lock, kDelay, [this] { return is_ending_ || waiting_.size() >= kMostInBatch; });
    while (!waiting_.empty() && !cut_.stop_requested()) {
      const auto end =
          waiting_.begin() + static_cast<ptrdiff_t>(std::min(waiting_.size(), kMostInBatch));
      const std::vector<Span> batch(std::make_move_iterator(waiting_.begin()),
                                    std::make_move_iterator(end));
      waiting_.erase(waiting_.begin(), end);
      lock.unlock();
      export_batch(batch);
      lock.lock();
    }
    if (!is_ending_) continue;
    has_ended_ = true;
    return changed_.notify_all();
  }
}

void Tracer::export_batch(const std::vector<Span>& batch) {
  client::FetchRequest request;
  request.method = "POST";
  request.url = settings_->url;
  request.headers = settings_->headers;
  request.headers.emplace_back("Content-Type", "application/json");
  request.body = otlp_json(*settings_, batch);
  request.stop = cut_.get_token();
  CollectorAnswer answer;
  const auto head = client::fetch(request, answer);
  if (head && head->status / 100 == 2) {
    exported_.fetch_add(batch.size());
    return;
  }
  dropped_.fetch_add(batch.size());
  note_failure(head ? "status " + std::to_string(head->status) + " " + answer.text()
                    : head.error().message);
}

void Tracer::note_failure(const std::string& reason) {
  const int64_t now = SteadyClock::now().time_since_epoch() / std::chrono::nanoseconds(1);
  if (last_warning_ns_ != 0 && now - last_warning_ns_ < kWarnEveryNs) return;
  last_warning_ns_ = now;
  log_event(LogLevel::kWarning,
            "traces_not_exported",
            "endpoint",
            settings_->url,
            "reason",
            reason,
            "dropped",
            dropped_.load());
}

int64_t unix_ns(SteadyClock::time_point steady) {
  const auto age = SteadyClock::now() - steady;
  const auto then = std::chrono::system_clock::now().time_since_epoch() - age;
  return std::chrono::duration_cast<std::chrono::nanoseconds>(then).count();
}

}  // namespace sluice
