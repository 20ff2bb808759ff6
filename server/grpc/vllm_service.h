// SPDX-License-Identifier: Apache-2.0
// The service vllm.grpc.engine.VllmEngine, which routers for vLLM call: token ids in, token ids
// out.
#pragma once

#include <grpcpp/impl/service_type.h>

#include <memory>

namespace sluice {

class RpcContext;

std::unique_ptr<grpc::Service> make_vllm_service(RpcContext& context);

}  // namespace sluice
