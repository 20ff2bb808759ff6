// SPDX-License-Identifier: Apache-2.0
// Routers' calls about the prefix cache in vllm.grpc.engine.VllmEngine: they subscribe to its
// changes or clear it.
#pragma once

#include <smg_common.pb.h>

#include "server/grpc/metadata_first.h"

namespace sluice {

class RpcContext;

// Called on gRPC's threads. A tenant with a key receives only changes of its own prefixes.
// UNIMPLEMENTED: the server runs without --kv-events-config; RESOURCE_EXHAUSTED: the subscriber did
// not read.
OneRequestWire<smg::grpc::common::KvEventBatch>* subscribe_kv_events(
    RpcContext& rpc, grpc::CallbackServerContext& context);

// Called on gRPC's threads. Succeeds when nothing runs, before `timeout_s` has passed; tiers below
// the cache keep their blocks.
OneRequestWire<smg::grpc::common::FlushCacheResponse>* flush_cache(
    RpcContext& rpc, grpc::CallbackServerContext& context);

}  // namespace sluice
