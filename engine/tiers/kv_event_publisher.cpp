// SPDX-License-Identifier: Apache-2.0
#include "engine/tiers/kv_event_publisher.h"

#include <sys/eventfd.h>
#include <unistd.h>
#include <zmq.h>

#include <array>
#include <atomic>
#include <chrono>
#include <deque>
#include <mutex>
#include <nlohmann/json.hpp>
#include <span>
#include <thread>
#include <utility>

#include "engine/core/log.h"

namespace sluice {
namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kEndOfReplay = -1;
constexpr size_t kReplayFrames = 3;  // of a request
constexpr int kLingerMs = 1000;
// The most bytes of a client's frame: a request for a replay, or a topic. A longer one ends the
// connection.
constexpr int64_t kMostRequestBytes = 4096;

std::array<char, 8> big_endian(int64_t value) {
  std::array<char, 8> bytes{};
  for (size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] = static_cast<char>(static_cast<uint64_t>(value) >> (56 - 8 * i));
  }
  return bytes;
}

const char* kind_name(KvGroupKind kind) {
  switch (kind) {
    case KvGroupKind::kFull:
      return "full_attention";
    case KvGroupKind::kWindow:
      return "sliding_window";
    case KvGroupKind::kLatent:
      return "mla_attention";
    case KvGroupKind::kState:
      return "mamba";
  }
  return "";
}

// Returns vLLM's names: the medium that attention reads is "GPU" on any machine.
const char* medium_name(KvMedium medium) {
  switch (medium) {
    case KvMedium::kDevice:
      return "GPU";
    case KvMedium::kHost:
      return "CPU";
    case KvMedium::kDisk:
      return "STORAGE";
  }
  return "";
}

PrefixExtras extras_of(const KvEvent& event) {
  return {event.tenant_salt, event.adapter_id, event.media_hash};
}

// Returns per block what distinguishes equal tokens; nil when nothing does.
Json extra_keys(const KvEvent& event) {
  if (extras_of(event) == PrefixExtras{}) return nullptr;
  const Json keys = {event.tenant_salt, event.adapter_id, event.media_hash};
  return Json(event.hashes.size(), keys);
}

class Encoder {
 public:
  explicit Encoder(KvEventFormat format) : format_(format) {}

  [[nodiscard]] std::vector<uint8_t> encode(const KvEventBatch& batch) const {
    Json events = Json::array();
    for (const KvEvent& event : batch.events) {
      events.push_back(format_ == KvEventFormat::kMap ? as_map(event, batch.block_size)
                                                      : as_array(event, batch.block_size));
    }
    return Json::to_msgpack(Json::array({batch.unix_time, std::move(events), nullptr}));
  }

 private:
  static Json as_map(const KvEvent& event, int32_t block_size) {
    if (event.kind == KvEventKind::kCleared) return {{"type", "AllBlocksCleared"}};
    if (event.kind == KvEventKind::kRemoved) {
      return {{"type", "BlockRemoved"},
              {"block_hashes", event.hashes},
              {"medium", event.medium},
              {"group_idx", event.group}};
    }
    return {
        {"type", "BlockStored"},
        {"block_hashes", event.hashes},
        {"parent_block_hash", optional(event.parent_hash)},
        {"token_ids", event.token_ids},
        {"block_size", block_size},
        {"lora_id", adapter(event)},
        {"medium", event.medium},
        {"lora_name", nullptr},
        {"extra_keys", extra_keys(event)},
        {"group_idx", event.group},
        {"kv_cache_spec_kind", event.group_kind},
        {"kv_cache_spec_sliding_window", event.window > 0 ? Json(event.window) : Json(nullptr)}};
  }

  static Json as_array(const KvEvent& event, int32_t block_size) {
    if (event.kind == KvEventKind::kCleared) return Json::array({"AllBlocksCleared"});
    if (event.kind == KvEventKind::kRemoved) {
      return Json::array({"BlockRemoved", event.hashes, event.medium});
    }
    return Json::array({"BlockStored",
                        event.hashes,
                        optional(event.parent_hash),
                        event.token_ids,
                        block_size,
                        adapter(event),
                        event.medium,
                        nullptr,
                        extra_keys(event)});
  }

  static Json optional(std::optional<uint64_t> value) {
    return value ? Json(*value) : Json(nullptr);
  }

  static Json adapter(const KvEvent& event) {
    return event.adapter_id == 0 ? Json(nullptr) : Json(event.adapter_id);
  }

  KvEventFormat format_;
};

struct CloseSocket {
  void operator()(void* socket) const { zmq_close(socket); }
};

struct EndContext {
  void operator()(void* context) const { zmq_ctx_term(context); }
};

using Socket = std::unique_ptr<void, CloseSocket>;

bool is_bound(const std::string& endpoint) {
  return endpoint.find('*') != std::string::npos || endpoint.find("::") != std::string::npos ||
         endpoint.starts_with("ipc://") || endpoint.starts_with("inproc://");
}

Expected<Socket> open_socket(
    void* context, int type, const std::string& endpoint, bool binds, int hwm) {
  Socket socket(zmq_socket(context, type));
  const int linger = kLingerMs;
  zmq_setsockopt(socket.get(), ZMQ_LINGER, &linger, sizeof linger);
  zmq_setsockopt(socket.get(), ZMQ_SNDHWM, &hwm, sizeof hwm);
  zmq_setsockopt(socket.get(), ZMQ_MAXMSGSIZE, &kMostRequestBytes, sizeof kMostRequestBytes);
  const int failed = binds ? zmq_bind(socket.get(), endpoint.c_str())
                           : zmq_connect(socket.get(), endpoint.c_str());
  if (failed != 0) {
    return make_error(ErrorCode::kUnavailable,
                      "kv-events-config: " + endpoint + ": " + zmq_strerror(zmq_errno()),
                      "kv-events-config");
  }
  return socket;
}

class ZmqPublisher final : public KvEventPublisher {
 public:
  ZmqPublisher(const KvEventsOptions& options, int32_t block_size, std::vector<KvGroupSpec> groups)
      : options_(options),
        encoder_(options.format),
        block_size_(block_size),
        groups_(std::move(groups)),
        context_(zmq_ctx_new()),
        wake_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {}

  ~ZmqPublisher() override {
    if (thread_.joinable()) {
      stopping_ = true;
      wake();
      thread_.join();
    }
    ::close(wake_);
  }

  ZmqPublisher(const ZmqPublisher&) = delete;
  ZmqPublisher& operator=(const ZmqPublisher&) = delete;

  Expected<void> open() {
    const std::string& endpoint = options_.endpoint;
    SLUICE_TRY(publisher_,
               open_socket(context_.get(), ZMQ_PUB, endpoint, is_bound(endpoint), options_.hwm));
    if (!options_.replay_endpoint.empty()) {
      SLUICE_TRY(replay_,
                 open_socket(context_.get(),
                             ZMQ_ROUTER,
                             options_.replay_endpoint,
                             /*binds=*/true,
                             options_.buffer_steps + 1));
    }
    cleared();
    end_step();
    thread_ = std::thread([this] { run(); });
    return {};
  }

  void stored(const StoredBlock& block) override {
    if (step_.empty() || !continues(step_.back(), block)) {
      const KvGroupSpec& group = groups_[static_cast<size_t>(block.group)];
      KvEvent& event = step_.emplace_back();
      event.kind = KvEventKind::kStored;
      event.parent_hash = block.parent_hash;
      event.tenant_salt = block.extras.tenant_salt;
      event.adapter_id = block.extras.adapter_id;
      event.media_hash = block.extras.media_hash;
      event.group = block.group;
      event.group_kind = kind_name(group.kind);
      event.window = group.kind == KvGroupKind::kWindow ? group.window : 0;
      event.medium = medium_name(block.medium);
    }
    KvEvent& event = step_.back();
    event.hashes.push_back(block.hash);
    event.token_ids.insert(event.token_ids.end(), block.token_ids.begin(), block.token_ids.end());
  }

  void removed(uint64_t hash, int32_t group, KvMedium medium) override {
    if (step_.empty() || step_.back().kind != KvEventKind::kRemoved ||
        step_.back().group != group || step_.back().medium != medium_name(medium)) {
      KvEvent& event = step_.emplace_back();
      event.kind = KvEventKind::kRemoved;
      event.group = group;
      event.medium = medium_name(medium);
    }
    step_.back().hashes.push_back(hash);
  }

  void cleared() override { step_.emplace_back(); }

  void end_step() override {
    if (step_.empty()) return;
    const auto now = std::chrono::system_clock::now().time_since_epoch();
    KvEventBatch batch;
    batch.unix_time = std::chrono::duration<double>(now).count();
    batch.block_size = block_size_;
    batch.events = std::exchange(step_, {});
    {
      const std::scoped_lock lock(mutex_);
      if (queue_.size() >= static_cast<size_t>(options_.max_queue_size)) {
        ++num_dropped_;
        return;
      }
      queue_.push_back(std::move(batch));
    }
    wake();
  }

  void watch(std::weak_ptr<KvEventWatcher> watcher, int64_t first) override {
    {
      const std::scoped_lock lock(mutex_);
      new_watchers_.push_back({std::move(watcher), first});
    }
    wake();
  }

 private:
  struct Watch {
    std::weak_ptr<KvEventWatcher> watcher;
    int64_t first;
  };

  static bool continues(const KvEvent& event, const StoredBlock& block) {
    return event.kind == KvEventKind::kStored && event.group == block.group &&
           event.medium == medium_name(block.medium) && extras_of(event) == block.extras &&
           block.parent_hash == event.hashes.back();
  }

  void wake() const {
    const uint64_t one = 1;
    // Fails only when the counter is full, in which case it is already readable.
    [[maybe_unused]] const auto ignored = ::write(wake_, &one, sizeof one);
  }

  // --- The thread ---

  void run() {
    while (!stopping_) {
      std::array<zmq_pollitem_t, 2> items = {
          {{nullptr, wake_, ZMQ_POLLIN, 0}, {replay_.get(), -1, ZMQ_POLLIN, 0}}};
      zmq_poll(items.data(), replay_ ? 2 : 1, -1);
      uint64_t count = 0;
      [[maybe_unused]] const auto ignored = ::read(wake_, &count, sizeof count);
      publish_queued();
      if (replay_ && (items[1].revents & ZMQ_POLLIN) != 0) answer_replay();
    }
    publish_queued();
  }

  void publish_queued() {
    std::deque<KvEventBatch> batches;
    std::vector<Watch> watchers;
    uint64_t num_dropped = 0;
    {
      const std::scoped_lock lock(mutex_);
      batches.swap(queue_);
      watchers.swap(new_watchers_);
      num_dropped = std::exchange(num_dropped_, 0);
    }
    for (Watch& watch : watchers) catch_up(std::move(watch));
    for (KvEventBatch& batch : batches) {
      batch.number = next_number_++;
      send(std::make_shared<const KvEventBatch>(std::move(batch)));
    }
    if (num_dropped > 0) {
      // Subscribers see a gap in the numbers.
      next_number_ += static_cast<int64_t>(num_dropped);
      log_event(LogLevel::kWarning, "kv_events_dropped", "messages", num_dropped);
    }
  }

  void send(const std::shared_ptr<const KvEventBatch>& batch) {
    const std::vector<uint8_t> payload = encoder_.encode(*batch);
    const std::array<char, 8> sequence = big_endian(batch->number);
    zmq_send(publisher_.get(), options_.topic.data(), options_.topic.size(), ZMQ_SNDMORE);
    zmq_send(publisher_.get(), sequence.data(), sequence.size(), ZMQ_SNDMORE);
    zmq_send(publisher_.get(), payload.data(), payload.size(), 0);
    sent_.push_back(batch);
    if (sent_.size() > static_cast<size_t>(options_.buffer_steps)) sent_.pop_front();
    std::erase_if(watchers_, [](const auto& watcher) { return watcher.expired(); });
    for (const auto& weak : watchers_) {
      if (const auto watcher = weak.lock()) watcher->publish(batch);
    }
  }

  void catch_up(Watch watch) {
    const auto watcher = watch.watcher.lock();
    if (watcher == nullptr) return;
    // Kept batches are useful from the first one on, or from the watcher's position.
    const bool has_start = !sent_.empty() && sent_.front()->number == 0;
    for (const auto& batch : sent_) {
      if (batch->number < watch.first || (watch.first <= 0 && !has_start)) continue;
      watcher->publish(batch);
    }
    watchers_.push_back(std::move(watch.watcher));
  }

  // Answers a request of three frames: client, an empty one, the number to start at.
  void answer_replay() {
    std::vector<std::string> frames;
    int more = 1;
    while (more != 0) {
      zmq_msg_t message;
      zmq_msg_init(&message);
      if (zmq_msg_recv(&message, replay_.get(), ZMQ_DONTWAIT) < 0) break;
      if (frames.size() <= kReplayFrames) {
        frames.emplace_back(static_cast<const char*>(zmq_msg_data(&message)),
                            zmq_msg_size(&message));
      }
      more = zmq_msg_more(&message);
      zmq_msg_close(&message);
    }
    if (frames.size() != kReplayFrames || frames[2].size() != 8) return;
    uint64_t start = 0;
    for (const char byte : frames[2]) start = start << 8 | static_cast<unsigned char>(byte);
    for (const auto& batch : sent_) {
      if (batch->number >= static_cast<int64_t>(start)) {
        send_replay(frames[0], batch->number, encoder_.encode(*batch));
      }
    }
    send_replay(frames[0], kEndOfReplay, {});
  }

  void send_replay(const std::string& client, int64_t number, std::span<const uint8_t> payload) {
    const std::array<char, 8> sequence = big_endian(number);
    zmq_send(replay_.get(), client.data(), client.size(), ZMQ_SNDMORE);
    zmq_send(replay_.get(), "", 0, ZMQ_SNDMORE);
    zmq_send(replay_.get(), sequence.data(), sequence.size(), ZMQ_SNDMORE);
    zmq_send(replay_.get(), payload.data(), payload.size(), 0);
  }

  const KvEventsOptions options_;
  const Encoder encoder_;
  const int32_t block_size_;
  const std::vector<KvGroupSpec> groups_;
  std::vector<KvEvent> step_;  // engine thread only
  std::unique_ptr<void, EndContext> context_;
  Socket publisher_;  // the thread's, like all below but the queue
  Socket replay_;
  int64_t next_number_ = 0;
  std::deque<std::shared_ptr<const KvEventBatch>> sent_;  // the last ones
  std::vector<std::weak_ptr<KvEventWatcher>> watchers_;
  int wake_;
  std::mutex mutex_;
  std::deque<KvEventBatch> queue_;   // guarded by mutex_
  std::vector<Watch> new_watchers_;  // guarded by mutex_
  uint64_t num_dropped_ = 0;         // guarded by mutex_
  std::atomic<bool> stopping_ = false;
  std::thread thread_;
};

tl::unexpected<Error> config_error(const std::string& what) {
  return make_error(ErrorCode::kInvalidArgument, "kv-events-config: " + what, "kv-events-config");
}

Expected<void> set_member(const std::string& name, const Json& value, KvEventsOptions& options) {
  const auto number = [&](int32_t& field) -> Expected<void> {
    if (!value.is_number_integer() || value < 1 || value > 100000000) {
      return config_error(name + " must be 1..100000000, got " + value.dump());
    }
    field = value.get<int32_t>();
    return {};
  };
  const auto text = [&](std::string& field) -> Expected<void> {
    if (!value.is_string()) {
      return config_error(name + " must be a string, got " + value.dump());
    }
    field = value.get<std::string>();
    return {};
  };
  if (name == "buffer_steps") return number(options.buffer_steps);
  if (name == "hwm") return number(options.hwm);
  if (name == "max_queue_size") return number(options.max_queue_size);
  if (name == "endpoint") return text(options.endpoint);
  if (name == "topic") return text(options.topic);
  if (name == "replay_endpoint")
    return value.is_null() ? Expected<void>() : text(options.replay_endpoint);
  if (name == "enable_kv_cache_events") {
    if (!value.is_boolean()) {
      return config_error(name + " must be true or false, got " + value.dump());
    }
    options.is_enabled = value.get<bool>();
    return {};
  }
  if (name == "publisher") {
    if (value == "zmq" || value == "null") return {};
    return config_error("publisher must be zmq or null, got " + value.dump());
  }
  if (name == "format") {
    if (value != "map" && value != "array") {
      return config_error("format must be map or array, got " + value.dump());
    }
    options.format = value == "map" ? KvEventFormat::kMap : KvEventFormat::kArray;
    return {};
  }
  return config_error("unknown member \"" + name + "\"");
}

}  // namespace

Expected<KvEventsOptions> parse_kv_events_config(const std::string& json) {
  KvEventsOptions options;
  if (json.empty()) return options;
  const Json parsed = Json::parse(json, nullptr, /*allow_exceptions=*/false);
  if (!parsed.is_object()) {
    return config_error("must be a JSON object, got \"" + json + "\"");
  }
  for (const auto& [name, value] : parsed.items()) {
    SLUICE_TRY_VOID(set_member(name, value, options));
  }
  if (parsed.value("publisher", Json("zmq")) == "null") options.is_enabled = false;
  return options;
}

Expected<std::unique_ptr<KvEventPublisher>> KvEventPublisher::create(
    const KvEventsOptions& options, int32_t block_size, std::vector<KvGroupSpec> groups) {
  auto publisher = std::make_unique<ZmqPublisher>(options, block_size, std::move(groups));
  SLUICE_TRY_VOID(publisher->open());
  return publisher;
}

}  // namespace sluice
