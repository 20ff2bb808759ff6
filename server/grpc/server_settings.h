// SPDX-License-Identifier: Apache-2.0
// What the listeners of gRPC share: the library's own settings, their credentials and their bounds.
#pragma once

#include <grpcpp/security/server_credentials.h>

#include <memory>

namespace grpc {
class ServerBuilder;
}

namespace sluice {

struct Config;

// Settings of the process, before its first server or channel. Any thread.
void set_up_grpc();

// The same settings as HTTP's TLS, which has refused files that are not good by the time that this
// looks at them. Files that change later are read again.
std::shared_ptr<grpc::ServerCredentials> server_credentials(const Config& config);

void set_limits(grpc::ServerBuilder& builder, const Config& config);

}  // namespace sluice
