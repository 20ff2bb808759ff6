// SPDX-License-Identifier: Apache-2.0
#include "engine/core/incoming_memory.h"

#include "engine/core/config.h"

namespace sluice {
namespace {

constexpr int64_t kLargest = 4;  // bodies or messages of the largest size
constexpr int64_t kForConnections = int64_t{32} << 20;  // of a gRPC port, a little for each

}  // namespace

int64_t incoming_body_bytes(const Config& config) { return kLargest * config.max_body_bytes; }

int64_t incoming_message_bytes(const Config& config) {
  return kLargest * config.max_body_bytes + kForConnections;
}

int64_t incoming_kv_bytes() {
  return static_cast<int64_t>(kMaxKvMessageBytes * (kMostKvPeers + kMostKvPending)) +
         kForConnections;
}

int64_t incoming_bytes(const Config& config) {
  return incoming_body_bytes(config) +
         (config.grpc_port < 0 ? 0 : incoming_message_bytes(config)) +
         (config.worker_listen.empty() ? 0 : incoming_message_bytes(config)) +
         (config.kv_listen.empty() ? 0 : incoming_kv_bytes());
}

}  // namespace sluice
