// SPDX-License-Identifier: Apache-2.0
// Routers' calls about the prefix cache in vllm.grpc.engine.VllmEngine: they hear of its changes or
// make it forget.
#pragma once

#include <grpcpp/support/server_callback.h>
#include <smg_common.pb.h>

namespace sluice {

class RpcContext;

// Called on gRPC's threads. A tenant with a key hears only of its own prefixes. UNIMPLEMENTED: the
// server runs without --kv-events-config; RESOURCE_EXHAUSTED: the subscriber did not read.
grpc::ServerWriteReactor<smg::grpc::common::KvEventBatch>* subscribe_kv_events(
    RpcContext& rpc,
    grpc::CallbackServerContext& context,
    const smg::grpc::common::SubscribeKvEventsRequest& request);

// Called on gRPC's threads. Succeeds when nothing runs, before `timeout_s` has passed; tiers below
// the cache keep their blocks.
grpc::ServerUnaryReactor* flush_cache(RpcContext& rpc,
                                      grpc::CallbackServerContext& context,
                                      const smg::grpc::common::FlushCacheRequest& request,
                                      smg::grpc::common::FlushCacheResponse& response);

}  // namespace sluice
