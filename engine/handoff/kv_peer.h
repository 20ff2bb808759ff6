// SPDX-License-Identifier: Apache-2.0
// The control channel of KV transfers as the engine sees it: it sends messages to peers, and what
// comes from them arrives at a sink. Connecting, authentication, Hello, pings and the codec are the
// channel's; the engine compares a peer's Hello with its own and decides all that concerns
// requests. Front ends inject an implementation, as with RankGroups.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <variant>

#include "engine/core/config.h"
#include "engine/core/status.h"
#include "engine/core/types.h"
#include "engine/handoff/kv_messages.h"

namespace sluice {

// One stream, from its Hello to its end. The channel never uses a number twice, so a restarted peer
// has another one.
using KvPeerId = StrongId<struct KvPeerIdTag, uint64_t>;

// The Hellos of both sides have been exchanged, and the peer has proven that it may speak.
struct KvPeerUp {
  KvPeerId peer;
  bool is_prefill = false;  // the peer is P on this stream: connect() opened it; else the peer did
  KvHello hello;            // the peer's
};

// The peer is lost: the stream ended, could not be opened, or was silent for too long. Reported
// once for each KvPeerId that connect() gave or KvPeerUp named.
struct KvPeerDown {
  KvPeerId peer;
  std::string reason;  // one line for the log
};

struct KvPeerMessage {
  KvPeerId peer;
  KvMessage message;  // within the bounds of kv_messages.h
};

using KvPeerEvent = std::variant<KvPeerUp, KvPeerDown, KvPeerMessage>;

// The engine's end of the channel. Called on any of the channel's threads, but never inside a call
// of the engine; events of one peer are in order. Accepts every event and returns at once: the
// channel bounds how far it reads ahead of the engine's answers.
class KvPeerSink {
 public:
  virtual ~KvPeerSink() = default;
  virtual void deliver(KvPeerEvent event) = 0;
};

// Called on the engine thread; the destructor on any one thread, after all other calls. No call
// waits for the network.
class KvPeerChannel {
 public:
  virtual ~KvPeerChannel() = default;  // joins its threads; nothing is delivered afterwards

  // Returns the stream to the prefill worker at `address`, "host:port": a new one, or the one that
  // is open or being opened. An error: the address is not allowed, or there are too many peers. A
  // stream that cannot be opened ends with KvPeerDown.
  virtual Expected<KvPeerId> connect(std::string_view address) = 0;

  // Sends in order for one peer, once the stream is open. False: the peer is lost or does not read;
  // the message is lost, which its sender's timers notice.
  virtual bool send(KvPeerId peer, KvMessage message) = 0;

  // Sets what pings report from the next second on.
  virtual void report(uint64_t num_steps, const KvLoad& load) = 0;

  // Returns where peers find this worker, "host:port", with the port that the kernel chose.
  [[nodiscard]] virtual std::string address() const = 0;
};

// Opens the listener and starts the channel. `own` is the content of each Hello, except `session`,
// which is the channel's for each pair. The sink outlives the channel.
using OpenKvPeers = std::function<Expected<std::unique_ptr<KvPeerChannel>>(
    const Config& config, const KvHello& own, KvPeerSink& sink)>;

}  // namespace sluice
