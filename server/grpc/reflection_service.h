// SPDX-License-Identifier: Apache-2.0
// grpc.reflection: clients such as grpcurl learn the services and their messages. gRPC's own
// service reads what any client sends; this one asks for the key first, like the others.
#pragma once

#include "server/grpc/metadata_first.h"

namespace sluice {

class RpcContext;

class ReflectionService final : public MetadataFirstService {
 public:
  // `rpc` outlives the calls.
  explicit ReflectionService(const RpcContext& rpc);
};

}  // namespace sluice
