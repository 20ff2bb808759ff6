// SPDX-License-Identifier: Apache-2.0
// vllm.grpc.engine.VllmEngine: token ids in, token ids out, as routers in front of vLLM speak it.
#pragma once

#include <grpcpp/impl/service_type.h>

#include <memory>

namespace sluice {

class RpcContext;

std::unique_ptr<grpc::Service> make_vllm_service(RpcContext& context);

}  // namespace sluice
