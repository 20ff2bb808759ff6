// SPDX-License-Identifier: Apache-2.0
#include "engine/handoff/handoff_links.h"

#include <algorithm>
#include <random>
#include <utility>

#include "engine/core/log.h"
#include "engine/handoff/device_mover.h"
#include "engine/handoff/host_mover.h"
#include "kvcache/kv_key.h"

namespace sluice {
namespace {

uint64_t random_epoch() {
  std::random_device source;
  const uint64_t epoch = uint64_t{source()} << 32 | source();
  return epoch == 0 ? 1 : epoch;
}

// Blocks have all heads of the model, whichever ranks have them.
KvLayout layout_of(const KvRanks& cache, int32_t block_size) {
  KvLayout layout;
  layout.block_size = static_cast<uint32_t>(block_size);
  layout.tensor_parallel = static_cast<uint32_t>(cache.size());
  layout.heads_per_rank = static_cast<uint32_t>(cache.max_heads_of_rank());
  for (const KvGroupSpec& group : cache.groups()) {
    const auto index = static_cast<int32_t>(layout.groups.size());
    if (!group.planes.empty()) {
      layout.dtype = static_cast<uint8_t>(group.planes.front().dtype);
    }
    layout.groups.push_back(
        {.kind = static_cast<uint8_t>(group.kind),
         .num_layers = static_cast<uint32_t>(group.num_layers),
         .window = static_cast<uint32_t>(group.window),
         .half_block_bytes = static_cast<uint64_t>(cache.block_bytes(index)) / 2});
  }
  return layout;
}

// How a worker shares its heads out is its own affair.
bool agree(KvLayout a, const KvLayout& b) {
  a.tensor_parallel = b.tensor_parallel;
  a.heads_per_rank = b.heads_per_rank;
  return a == b;
}

KvFrameLayout frame_layout_of(const KvRanks& cache) {
  KvFrameLayout layout;
  for (const KvGroupSpec& group : cache.groups()) {
    const auto index = static_cast<int32_t>(layout.groups.size());
    const auto bytes = static_cast<uint64_t>(cache.block_bytes(index));
    layout.groups.push_back(
        {.num_layers = static_cast<uint16_t>(group.num_layers),
         .num_heads = 1,
         .head_bytes = static_cast<uint32_t>(bytes / static_cast<uint64_t>(group.num_layers))});
  }
  return layout;
}

}  // namespace

HandoffLinks::HandoffLinks(const Config& config,
                           HandoffRole role,
                           const KvRanks& cache,
                           std::function<void()> wake)
    : wake_(std::move(wake)),
      epoch_(random_epoch()),
      layout_(frame_layout_of(cache)),
      inbox_(1024) {
  int64_t largest = 0;
  for (size_t i = 0; i < cache.groups().size(); ++i) {
    largest = std::max(largest, cache.block_bytes(static_cast<int32_t>(i)));
  }
  slots_ = plan_kv_slots(config, role, largest, !cache.first().memory().is_host());
  own_.epoch = epoch_;
  own_.worker = config.host + ":" + std::to_string(config.port);
  own_.worker.resize(std::min(own_.worker.size(), kMaxKvWorkerName));
  own_.layout = layout_of(cache, config.block_size);
}

HandoffLinks::~HandoffLinks() { channel_.reset(); }

Expected<std::unique_ptr<HandoffLinks>> HandoffLinks::create(const Config& config,
                                                             HandoffRole role,
                                                             const std::string& space,
                                                             const KvRanks& cache,
                                                             const OpenKvPeers& open,
                                                             std::function<void()> wake,
                                                             const KvMover::Backend& backend) {
  std::unique_ptr<HandoffLinks> links(new HandoffLinks(config, role, cache, std::move(wake)));
  const KvKey key = kv_root_key(space, {});
  std::ranges::copy(key, links->own_.fingerprint.begin());
  SLUICE_TRY_VOID(links->make_mover(config, cache, backend));
  for (size_t i = 0; i < links->kinds_.size(); ++i) {
    links->own_.transports.push_back(
        {.kind = links->kinds_[i],
         .address = links->mover_->transports()[i].address(),
         .max_frame_bytes = static_cast<uint64_t>(links->slot_bytes())});
  }
  SLUICE_TRY(links->channel_, open(config, links->own_, *links));
  return links;
}

Expected<void> HandoffLinks::make_mover(const Config& config,
                                        const KvRanks& cache,
                                        const KvMover::Backend& backend) {
  const bool is_on_host = cache.first().memory().is_host();
  const std::string host = config.kv_listen.substr(0, config.kv_listen.rfind(':'));
  const std::chrono::milliseconds progress(config.kv_transfer_timeout_ms);
  const auto kinds = kv_transport_kinds_of(config.kv_transport, !is_on_host);
  std::vector<std::unique_ptr<KvTransport>> transports;
  for (const KvTransportKind kind : kinds) {
    const std::string name(to_string(kind));
    if (is_on_host && is_kv_device_transport(name)) {
      return make_error(ErrorCode::kUnsupported,
                        "--kv-transport " + name + ": KV of a GPU goes by it, found a CPU",
                        "kv-transport");
    }
    auto made =
        make_kv_transport(name,
                          {.listen = host + ":0",
                           .hello_time = progress,
                           .redial_time = progress / 5,
                           .wake = wake_,
                           .device = &cache.first().memory(),
                           .slot_bytes = static_cast<uint64_t>(slots_.slot_bytes),
                           .nccl_library = backend.nccl_library});
    const bool is_last = kind == kinds.back();
    if (!made && is_last) return tl::unexpected(std::move(made.error()));
    if (!made) {
      log_event(LogLevel::kWarning,
                "kv_transport_missing",
                "transport",
                name,
                "reason",
                made.error().message);
      continue;
    }
    kinds_.push_back(kind);
    transports.push_back(std::move(*made));
  }
  auto all = std::make_unique<KvTransports>(std::move(transports));
  const KvMover::Options options{.backend = backend, .slots = slots_};
  if (is_on_host) {
    SLUICE_TRY(mover_, make_host_mover(options, cache, std::move(all)));
  } else {
    SLUICE_TRY(mover_, make_device_mover(options, cache.first(), std::move(all)));
  }
  return {};
}

void HandoffLinks::deliver(KvPeerEvent event) {
  if (inbox_.push_urgent(std::move(event))) wake_();
}

const HandoffPeer* HandoffLinks::find(KvPeerId peer) const {
  const auto found = peers_.find(peer);
  return found == peers_.end() ? nullptr : &found->second;
}

// By one transport of both: D, which dials, takes the first that reaches P, and its claims say
// which. P opens its half by each that both have.
bool HandoffLinks::open_by(size_t index, const KvPeerUp& up, HandoffPeer& peer) {
  const KvTransportKind kind = kinds_[index];
  const auto offer = std::ranges::find(up.hello.transports, kind, &KvTransportOffer::kind);
  if (offer == up.hello.transports.end()) return false;
  const auto refuse = [&](const std::string& why) {
    log_event(LogLevel::kWarning,
              "kv_transport_refused",
              "transport",
              to_string(kind),
              "peer",
              up.hello.worker,
              "reason",
              why);
    return false;
  };
  KvFrameLayout layout = layout_;
  layout.slot_bytes = up.is_prefill ? static_cast<uint64_t>(slot_bytes()) : offer->max_frame_bytes;
  const bool has_room = std::ranges::all_of(layout.groups, [&](const auto& group) {
    return uint64_t{group.num_layers} * group.head_bytes <= layout.slot_bytes;
  });
  if (!has_room || layout.slot_bytes > kKvMostSlotBytes) return refuse("the size of its slots");
  if (up.is_prefill && !mover_->transports()[index].is_address(offer->address)) {
    return refuse("its address is not reached from here: " + offer->address);
  }
  peer.slot_bytes = static_cast<int64_t>(layout.slot_bytes);
  const Expected<void> opened =
      mover_->open(index,
                   {.session = up.peer.value,
                    .token = up.hello.session,
                    .address = up.is_prefill ? offer->address : std::string(),
                    .own_epoch = epoch_,
                    .peer_epoch = up.hello.epoch,
                    .layout = std::move(layout),
                    .payloads = {}});
  return opened ? true : refuse(opened.error().message);
}

void HandoffLinks::open_session(const KvPeerUp& up) {
  HandoffPeer peer{.id = up.peer, .is_prefill = up.is_prefill, .epoch = up.hello.epoch};
  const bool agrees =
      up.hello.fingerprint == own_.fingerprint && agree(up.hello.layout, own_.layout) &&
      up.hello.min_version <= own_.max_version && up.hello.max_version >= own_.min_version;
  for (size_t i = 0; agrees && i < kinds_.size(); ++i) {
    if (!open_by(i, up, peer)) continue;
    peer.is_compatible = true;
    if (!up.is_prefill) continue;
    peer.transport = kinds_[i];
    break;
  }
  peers_.insert_or_assign(up.peer, peer);
}

bool HandoffLinks::use(KvPeerId peer, KvTransportKind kind) {
  const auto found = std::ranges::find(kinds_, kind);
  return found != kinds_.end() &&
         mover_->use(peer.value, static_cast<size_t>(found - kinds_.begin()));
}

void HandoffLinks::receive(std::vector<KvPeerEvent>& events,
                           std::vector<KvCompletion>& completions) {
  inbox_.drain(events);
  for (const KvPeerEvent& event : events) {
    if (const auto* up = std::get_if<KvPeerUp>(&event)) open_session(*up);
    if (const auto* down = std::get_if<KvPeerDown>(&event)) {
      const auto found = peers_.find(down->peer);
      if (found == peers_.end()) continue;
      if (found->second.is_compatible) mover_->close(down->peer.value);
      peers_.erase(found);
    }
  }
  mover_->poll(completions);
}

}  // namespace sluice
