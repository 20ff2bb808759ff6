// SPDX-License-Identifier: Apache-2.0
// Publishes the changes of the prefix cache over ZeroMQ, in vLLM's encoding, for routers that send
// a request where its prefix is cached (llm-d, Dynamo, AIBrix).
//
// A PUB socket sends [topic][sequence number, 8 bytes big-endian][MessagePack: [time, [events],
// nil]], one message for each step that changed something. A ROUTER socket replays: a request of 8
// bytes is answered with every buffered message from that number on, then with number -1. The first
// message of a process says that its cache is empty.
//
// The sink's functions and end_step() belong to the engine thread and never wait; a thread of its
// own encodes and sends.
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
  std::string endpoint = "tcp://*:5557";  // bound with a * or as ipc, connected to otherwise
  std::string replay_endpoint;            // empty: no replay
  std::string topic;
  int32_t buffer_steps = 10000;     // messages kept for replay
  int32_t hwm = 100000;             // messages that wait for a slow subscriber
  int32_t max_queue_size = 100000;  // messages that wait for the thread; more are dropped
  KvEventFormat format = KvEventFormat::kMap;
};

// A JSON object as `--kv-events-config` has it, in vLLM's names; "format": map or array is ours.
// Empty: disabled. kInvalidArgument names member and value.
Expected<KvEventsOptions> parse_kv_events_config(const std::string& json);

class KvEventPublisher : public KvEventSink {
 public:
  // kUnavailable names the endpoint that cannot be had.
  static Expected<std::unique_ptr<KvEventPublisher>> create(const KvEventsOptions& options,
                                                            int32_t block_size,
                                                            std::vector<KvGroupSpec> groups);

  // Engine thread. What changed since the last call becomes one message.
  virtual void end_step() = 0;

  // Any thread. While `watcher` lives it gets each batch: those from number `first` on that are
  // still kept for replay, then what comes. 0: from the first of this process if that is kept, else
  // what comes alone.
  virtual void watch(std::weak_ptr<KvEventWatcher> watcher, int64_t first) = 0;
};

}  // namespace sluice
