// SPDX-License-Identifier: Apache-2.0
// Publishes the changes of the prefix cache over ZeroMQ, in vLLM's encoding, for routers that send
// requests to where their prefixes are cached (llm-d, Dynamo, AIBrix).
//
// A PUB socket sends [topic][sequence number, 8 bytes big-endian][MessagePack: [time, [events],
// nil]], one message per step with changes. A ROUTER socket replays: a request of 8 bytes is
// answered with every buffered message from that number on, then with number -1. The first message
// of a process says that its cache is empty. A client's frame of more than 4 KiB ends its
// connection. ZeroMQ keeps the frames of a client's message until the last one, however many they
// are: the endpoints are for a network whose clients are trusted.
//
// The sink's functions and end_step() run on the engine thread and never wait; a separate thread
// encodes and sends.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/core/kv_event_batch.h"
#include "engine/core/status.h"
#include "kvcache/kv_cache_manager.h"
#include "kvcache/kv_events.h"

namespace sluice {

enum class KvEventFormat : uint8_t {
  kMap,    // tagged maps, vLLM since 0.23
  kArray,  // positional, before
};

struct KvEventsOptions {
  bool is_enabled = false;
  std::string endpoint = "tcp://*:5557";  // bound if it has a * or is ipc, otherwise connected
  std::string replay_endpoint;            // empty: no replay
  std::string topic;
  int32_t buffer_steps = 10000;     // messages kept for replay
  int32_t hwm = 100000;             // messages queued for a slow subscriber
  int32_t max_queue_size = 100000;  // messages queued for the thread; more are dropped
  KvEventFormat format = KvEventFormat::kMap;
};

// Parses the JSON object of `--kv-events-config`, with vLLM's names; "format": map or array is
// ours. Empty: disabled. kInvalidArgument names member and value.
Expected<KvEventsOptions> parse_kv_events_config(const std::string& json);

class KvEventPublisher : public KvEventSink {
 public:
  // kUnavailable names the endpoint that cannot be opened.
  static Expected<std::unique_ptr<KvEventPublisher>> create(const KvEventsOptions& options,
                                                            int32_t block_size,
                                                            std::vector<KvGroupSpec> groups);

  // Engine thread. Sends the changes since the last call as one message.
  virtual void end_step() = 0;

  // Any thread. While `watcher` lives it gets each batch: kept ones from number `first` on, then
  // new ones. With `first` 0 it gets all from the first of this process if that is kept, else only
  // new ones.
  virtual void watch(std::weak_ptr<KvEventWatcher> watcher, int64_t first) = 0;
};

}  // namespace sluice
