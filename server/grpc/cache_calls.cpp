// SPDX-License-Identifier: Apache-2.0
#include "server/grpc/cache_calls.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <deque>
#include <limits>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "engine/core/kv_event_batch.h"
#include "server/front/io_worker.h"
#include "server/grpc/rpc_context.h"

namespace sluice {
namespace {

namespace common = smg::grpc::common;

common::KvCacheTier tier_of(std::string_view medium) {
  if (medium == "GPU") return common::KV_CACHE_TIER_DEVICE;
  return medium == "CPU" ? common::KV_CACHE_TIER_HOST : common::KV_CACHE_TIER_DISK;
}

// Returns the older number of a tier.
int32_t level_of(std::string_view medium) { return static_cast<int32_t>(tier_of(medium)) - 1; }

template <typename Message>
void fill_place(const KvEvent& event, Message& message) {
  message.set_tier(tier_of(event.medium));
  message.set_medium(std::string(event.medium));
  message.set_group_idx(static_cast<uint32_t>(event.group));
  message.set_locality(common::KV_CACHE_LOCALITY_LOCAL);
}

void fill_stored(const KvEvent& event, int32_t block_size, common::KvBlocksStored& stored) {
  fill_place(event, stored);
  if (event.parent_hash) stored.set_parent_block_hash(static_cast<int64_t>(*event.parent_hash));
  stored.set_kv_cache_spec_kind(std::string(event.group_kind));
  if (event.window > 0) {
    stored.set_kv_cache_spec_sliding_window(static_cast<uint32_t>(event.window));
  }
  std::span<const TokenId> ids = event.token_ids;
  for (const uint64_t hash : event.hashes) {
    common::KvBlock& block = *stored.add_blocks();
    block.set_block_hash(static_cast<int64_t>(hash));
    block.set_block_size(block_size);
    block.set_cache_level(level_of(event.medium));
    if (event.adapter_id != 0) block.set_lora_id(event.adapter_id);
    const auto own = ids.first(std::min(ids.size(), static_cast<size_t>(block_size)));
    for (const TokenId id : own) block.add_token_ids(static_cast<uint32_t>(id));
    ids = ids.subspan(own.size());
  }
}

void fill_removed(const KvEvent& event, common::KvBlocksRemoved& removed) {
  fill_place(event, removed);
  removed.set_cache_level(level_of(event.medium));
  for (const uint64_t hash : event.hashes) removed.add_block_hashes(static_cast<int64_t>(hash));
}

// `salt`: selects one tenant's prefixes; none: all.
void fill_batch(const KvEventBatch& batch,
                const std::optional<uint64_t>& salt,
                common::KvEventBatch& message) {
  message.Clear();
  message.set_sequence_number(static_cast<uint64_t>(batch.number));
  message.set_timestamp(batch.unix_time);
  message.set_dp_rank(0);
  for (size_t i = 0; i < batch.events.size(); ++i) {
    const KvEvent& event = batch.events[i];
    if (event.kind == KvEventKind::kStored && salt && event.tenant_salt != *salt) continue;
    common::KvCacheEvent& out = *message.add_events();
    out.set_event_id(i);
    switch (event.kind) {
      case KvEventKind::kStored:
        fill_stored(event, batch.block_size, *out.mutable_stored());
        break;
      case KvEventKind::kRemoved:
        fill_removed(event, *out.mutable_removed());
        break;
      case KvEventKind::kCleared:
        out.mutable_cleared();
        break;
    }
  }
}

// One subscriber. The publisher's thread hands batches over, gRPC's threads write and end; the
// instance lives until gRPC is done with it, and while a batch is being handed over.
class KvEventStream final : public OneRequestReactor<common::KvEventBatch>,
                            public KvEventWatcher {
 public:
  KvEventStream(RpcContext& rpc, std::optional<uint64_t> salt) : rpc_(rpc), salt_(salt) { read(); }

  static KvEventStream* start(RpcContext& rpc, const Tenant& tenant) {
    std::optional<uint64_t> salt;
    if (tenant.salt() != 0) salt = tenant.salt();  // 0: there are no keys
    auto stream = std::make_shared<KvEventStream>(rpc, salt);
    stream->self_ = stream;
    return stream.get();
  }

  void take(grpc::ByteBuffer& message) override {
    common::SubscribeKvEventsRequest request;
    if (!parse(message, request)) return end(malformed());
    const auto first = static_cast<int64_t>(
        std::min<uint64_t>(request.start_sequence_number(), std::numeric_limits<int64_t>::max()));
    if (!rpc_.front_end.engine.watch_kv_events(self_, first)) {
      end(grpc::Status(grpc::StatusCode::UNIMPLEMENTED,
                       "The server runs without --kv-events-config."));
    }
  }

  void publish(std::shared_ptr<const KvEventBatch> batch) override {
    const std::scoped_lock lock(mutex_);
    if (ending_) return;
    if (queue_.size() == kMaxQueued) {
      queue_.clear();
      return end_locked(grpc::Status(grpc::StatusCode::RESOURCE_EXHAUSTED,
                                     "The subscriber does not read; batches were lost."));
    }
    queue_.push_back(std::move(batch));
    if (!is_writing_) write_next();
  }

  void fail(const grpc::Status& status) override { end(status); }

  void OnWriteDone(bool ok) override {
    const std::scoped_lock lock(mutex_);
    is_writing_ = false;
    if (!ok && !ending_) ending_ = grpc::Status::CANCELLED;
    if (ending_) return finish();
    if (!queue_.empty()) write_next();
  }

  void OnCancel() override { end(grpc::Status::CANCELLED); }

  void OnDone() override { self_.reset(); }

 private:
  static constexpr size_t kMaxQueued = 4096;

  void end(const grpc::Status& status) {
    const std::scoped_lock lock(mutex_);
    if (!ending_) end_locked(status);
  }

  void end_locked(const grpc::Status& status) {
    ending_ = status;
    if (!is_writing_) finish();
  }

  void finish() {
    if (std::exchange(is_finished_, true)) return;
    rpc_.front_end.grpc_counters.count(grpc_method(kVllmService, "SubscribeKvEvents"),
                                       ending_->error_code());
    Finish(*ending_);
  }

  void write_next() {
    fill_batch(*queue_.front(), salt_, message_);
    queue_.pop_front();
    is_writing_ = true;
    StartWrite(&message_);
  }

  RpcContext& rpc_;
  const std::optional<uint64_t> salt_;
  std::shared_ptr<KvEventStream> self_;  // until OnDone()
  std::mutex mutex_;                     // guards what follows
  std::deque<std::shared_ptr<const KvEventBatch>> queue_;
  common::KvEventBatch message_;
  bool is_writing_ = false;
  bool is_finished_ = false;
  std::optional<grpc::Status> ending_;  // status to end with after the current write
};

using FlushReactor = AnswerReactor<common::FlushCacheRequest, common::FlushCacheResponse>;

// Asks the engine until it has forgotten its cache or time is up. Runs on one I/O thread, about
// every 100 ms.
class CacheFlush : public std::enable_shared_from_this<CacheFlush> {
 public:
  CacheFlush(RpcContext& rpc,
             IoWorker& worker,
             FlushReactor& reactor,
             std::chrono::milliseconds timeout)
      : rpc_(rpc),
        worker_(worker),
        reactor_(reactor),
        deadline_(std::chrono::steady_clock::now() + timeout) {}

  void begin() {
    worker_.watch_deadlines(this, [self = shared_from_this()] { self->ask(); });
    ask();
  }

 private:
  void ask() {
    if (std::exchange(is_asking_, true) || is_done_) return;
    rpc_.front_end.engine.flush_prefix_cache([self = shared_from_this()](bool is_flushed) {
      self->worker_.post([self, is_flushed] { self->answer(is_flushed); });
    });
  }

  void answer(bool is_flushed) {
    is_asking_ = false;
    const bool is_late = std::chrono::steady_clock::now() >= deadline_;
    if (is_done_ || (!is_flushed && !is_late)) return;
    is_done_ = true;
    reactor_.response().set_success(is_flushed);
    if (!is_flushed) reactor_.response().set_message("Requests run or wait.");
    reactor_.finish(rpc_.count(grpc_method(kVllmService, "FlushCache"), grpc::Status::OK));
    worker_.forget_deadlines(this);
  }

  RpcContext& rpc_;
  IoWorker& worker_;
  FlushReactor& reactor_;  // valid until it is finished
  const std::chrono::steady_clock::time_point deadline_;
  bool is_asking_ = false;
  bool is_done_ = false;
};

}  // namespace

OneRequestWire<common::KvEventBatch>* subscribe_kv_events(RpcContext& rpc,
                                                          grpc::CallbackServerContext& context) {
  const auto tenant = rpc.admit(context);
  if (!tenant) {
    constexpr size_t kMethod = grpc_method(kVllmService, "SubscribeKvEvents");
    return rpc.refuse<common::KvEventBatch>(kMethod, tenant.error());
  }
  return KvEventStream::start(rpc, **tenant);
}

OneRequestWire<common::FlushCacheResponse>* flush_cache(RpcContext& rpc,
                                                        grpc::CallbackServerContext& context) {
  constexpr size_t kMethod = grpc_method(kVllmService, "FlushCache");
  const auto tenant = rpc.admit(context);
  if (!tenant) return rpc.refuse<common::FlushCacheResponse>(kMethod, tenant.error());
  return new FlushReactor([&rpc](const common::FlushCacheRequest& request, FlushReactor& reactor) {
    constexpr float kMaxSeconds = 3600;
    if (!(request.timeout_s() >= 0 && request.timeout_s() <= kMaxSeconds)) {
      return reactor.finish(rpc.refusal(
          kMethod,
          Error{ErrorCode::kInvalidArgument, "timeout_s must be in [0, 3600].", "timeout_s", {}}));
    }
    IoWorker& worker = rpc.worker_of(0);
    const std::chrono::milliseconds timeout(std::lround(1e3 * request.timeout_s()));
    auto flush = std::make_shared<CacheFlush>(rpc, worker, reactor, timeout);
    worker.post([flush] { flush->begin(); });
  });
}

}  // namespace sluice
