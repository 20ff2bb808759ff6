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
#include "server/grpc/worker_tls.h"

namespace sluice {

struct KvControlOptions {
  std::string listen;              // "host:port"; port 0: a free one
  std::vector<std::string> peers;  // "host" or "host:port" that connect() may reach
  // Shared by all workers. Without it and without TLS: loopback alone, in and out.
  std::string secret;
  WorkerTls tls;  // both ends know each other by certificates, if it is on
  int32_t ping_ms = 1000;
  int32_t dead_ms = 5000;
};

// Reads --kv-listen, --kv-peers, --worker-secret and worker_tls(). kInvalidArgument: the secret is
// too short, or worker_tls() fails.
Expected<KvControlOptions> kv_control_options(const Config& config);

// Tells whether a request may have this worker connect to `address`, "host:port". Without a list
// only this machine is allowed, because the address comes from clients. "*" in it: any address.
bool is_kv_peer_allowed(const std::vector<std::string>& peers, std::string_view address);

// Opens the channel like OpenKvPeers. kInvalidArgument: an address beyond loopback with neither
// secret nor TLS, or one that cannot be listened at.
Expected<std::unique_ptr<KvPeerChannel>> open_kv_control(const KvControlOptions& options,
                                                         const KvHello& own,
                                                         KvPeerSink& sink);

Expected<std::unique_ptr<KvPeerChannel>> open_kv_peers(const Config& config,
                                                       const KvHello& own,
                                                       KvPeerSink& sink);

}  // namespace sluice
