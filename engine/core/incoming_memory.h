// SPDX-License-Identifier: Apache-2.0
// Memory for received data that is not complete yet: bodies of clients and messages of other
// workers. The listeners enforce these bounds, and the memory plan counts them.
#pragma once

#include <cstddef>
#include <cstdint>

namespace sluice {

struct Config;

// All incomplete bodies over HTTP.
int64_t incoming_body_bytes(const Config& config);

// All that one gRPC port to clients or routers has buffered.
int64_t incoming_message_bytes(const Config& config);

// All that the port of KV transfers has buffered, with so many peers.
int64_t incoming_kv_bytes();
inline constexpr size_t kMaxKvMessageBytes = size_t{64} << 10;
inline constexpr size_t kMostKvPeers = 64;  // in each direction, that have proven themselves
// Peers that have not yet; one more replaces the oldest. A worker with the secret authenticates
// within a millisecond, so a client that holds these open excludes no worker.
inline constexpr size_t kMostKvPending = 64;

// All of them, of the ports that the configuration opens.
int64_t incoming_bytes(const Config& config);

}  // namespace sluice
