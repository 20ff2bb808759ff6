// SPDX-License-Identifier: Apache-2.0
// The peers of this worker's handoffs: their streams on the control channel, and with each a
// session of the data plane. Engine thread only; the channel and the transport have threads of
// their own.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "engine/core/config.h"
#include "engine/core/queue.h"
#include "engine/core/status.h"
#include "engine/handoff/handoff_config.h"
#include "engine/handoff/kv_mover.h"
#include "engine/handoff/kv_peer.h"
#include "kvcache/store/kv_ranks.h"

namespace sluice {

struct HandoffPeer {
  KvPeerId id;
  bool is_prefill = false;     // it is the P of this stream
  bool is_compatible = false;  // the same model, layout and version, and a transport of both
  uint64_t epoch = 0;
  int64_t slot_bytes = 0;  // of D's landing slots, wherever D is
  KvTransportKind transport = KvTransportKind::kNone;  // named in claims to a P
};

class HandoffLinks final : private KvPeerSink {
 public:
  // `space` names model, build, dtypes and block size; `wake` is called on other threads when
  // receive() has something. The storages of `cache` must outlive it. kUnsupported: its KV
  // does not go by the transport that the configuration names.
  static Expected<std::unique_ptr<HandoffLinks>> create(const Config& config,
                                                        HandoffRole role,
                                                        const std::string& space,
                                                        const KvRanks& cache,
                                                        const OpenKvPeers& open,
                                                        std::function<void()> wake,
                                                        const KvMover::Backend& backend);
  ~HandoffLinks() override;

  [[nodiscard]] uint64_t epoch() const { return epoch_; }

  [[nodiscard]] int64_t slot_bytes() const { return slots_.slot_bytes; }

  [[nodiscard]] std::string address() const { return channel_->address(); }

  // Notes how a peer that claims fetches, once for all its claims. False: it cannot in this way.
  bool use(KvPeerId peer, KvTransportKind kind);

  Expected<KvPeerId> connect(std::string_view address) { return channel_->connect(address); }

  // False: the peer has disconnected.
  bool send(KvPeerId peer, KvMessage message) { return channel_->send(peer, std::move(message)); }

  void report(uint64_t num_steps, const KvLoad& load) { channel_->report(num_steps, load); }

  // Returns null if the peer is not connected yet, or has disconnected.
  [[nodiscard]] const HandoffPeer* find(KvPeerId peer) const;

  [[nodiscard]] KvMover& mover() { return *mover_; }

  [[nodiscard]] KvTransportCounts transport_counts() const {
    return mover_->transports().counts();
  }

  // Returns the number of usable data planes to peers.
  [[nodiscard]] int64_t num_sessions() const {
    return std::ranges::count(
        peers_, true, [](const auto& entry) { return entry.second.is_compatible; });
  }

  // Replaces both by what has arrived since the last call. Before the caller sees them, peers that
  // connected are registered and peers that disconnected are removed.
  void receive(std::vector<KvPeerEvent>& events, std::vector<KvCompletion>& completions);

 private:
  HandoffLinks(const Config& config,
               HandoffRole role,
               const KvRanks& cache,
               std::function<void()> wake);

  Expected<void> make_mover(const Config& config,
                            const KvRanks& cache,
                            const KvMover::Backend& backend);
  void deliver(KvPeerEvent event) override;
  void open_session(const KvPeerUp& up);
  bool open_by(size_t index, const KvPeerUp& up, HandoffPeer& peer);

  const std::function<void()> wake_;
  const uint64_t epoch_;
  KvSlotPlan slots_;
  std::vector<KvTransportKind> kinds_;  // of the mover's transports
  KvFrameLayout layout_;
  KvHello own_;
  std::unordered_map<KvPeerId, HandoffPeer> peers_;
  Inbox<KvPeerEvent> inbox_;
  std::unique_ptr<KvMover> mover_;
  std::unique_ptr<KvPeerChannel> channel_;  // destroyed first: its threads use the rest
};

}  // namespace sluice
