// SPDX-License-Identifier: Apache-2.0
// vllm.grpc.engine.VllmEngine/Embed: the vector of one text, whose ids the client has.
#pragma once

#include <vllm_engine.pb.h>

#include "server/grpc/metadata_first.h"

namespace sluice {

class RpcContext;

// Called on gRPC's threads. INVALID_ARGUMENT: no ids, too many, or ones that the vocabulary lacks;
// or the model makes no vectors. The text is aborted if the client disconnects or its deadline
// passes.
OneRequestWire<vllm::grpc::engine::EmbedResponse>* embed(RpcContext& rpc,
                                                         grpc::CallbackServerContext& context);

}  // namespace sluice
