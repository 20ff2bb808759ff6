// SPDX-License-Identifier: Apache-2.0
// sluice.v1.Sluice: text and chat over gRPC, with the HTTP API's parameters.
#pragma once

#include <grpcpp/impl/service_type.h>

#include <memory>

namespace sluice {

class RpcContext;

std::unique_ptr<grpc::Service> make_sluice_service(RpcContext& context);

}  // namespace sluice
