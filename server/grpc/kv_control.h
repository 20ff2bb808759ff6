// SPDX-License-Identifier: Apache-2.0
// The control channel of KV transfers over gRPC (sluice.kv.v1), on a listener of its own that
// serves nothing else.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "engine/core/config.h"
#include "engine/core/status.h"
#include "engine/handoff/kv_peer.h"

namespace sluice {

struct KvControlOptions {
  std::string listen;              // "host:port"; port 0: a free one
  std::vector<std::string> peers;  // "host" or "host:port" allowed for connect()
  std::string secret;              // shared by all workers; empty: only loopback, in and out
  int32_t ping_ms = 1000;
  int32_t dead_ms = 5000;
};

// Reads --kv-listen, --kv-peers and --worker-secret. kInvalidArgument: the secret is too short.
Expected<KvControlOptions> kv_control_options(const Config& config);

// Tells whether a request may have this worker connect to `address`, "host:port". Without a list
// only this machine is allowed, because the address comes from clients. "*" in it: any address.
bool is_kv_peer_allowed(const std::vector<std::string>& peers, std::string_view address);

// An OpenKvPeers. kInvalidArgument: an address beyond loopback without a secret, or one that cannot
// be listened at.
Expected<std::unique_ptr<KvPeerChannel>> open_kv_control(const KvControlOptions& options,
                                                         const KvHello& own,
                                                         KvPeerSink& sink);

Expected<std::unique_ptr<KvPeerChannel>> open_kv_peers(const Config& config,
                                                       const KvHello& own,
                                                       KvPeerSink& sink);

}  // namespace sluice
