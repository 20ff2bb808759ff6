// SPDX-License-Identifier: Apache-2.0
// Settings of the gRPC library, and credentials and bounds of the listeners to clients and routers.
#pragma once

#include <grpcpp/security/server_credentials.h>

#include <cstdint>
#include <memory>
#include <string>

namespace grpc {
class ServerBuilder;
}

namespace sluice {

struct Config;

// Sets up the library before the process's first server or channel. Any thread.
void set_up_grpc();

// Returns credentials by the settings of HTTP's TLS, which has refused bad files before this call;
// insecure ones without --ssl-certfile. Files that change later are read again.
std::shared_ptr<grpc::ServerCredentials> server_credentials(const Config& config);

// Bounds what all connections of a port buffer, with or without a key.
void set_memory_limit(grpc::ServerBuilder& builder, int64_t bytes);

void set_limits(grpc::ServerBuilder& builder, const Config& config);

// Tells whether a socket that does not share its port can be bound there.
bool is_port_free(const std::string& host, int32_t port);

}  // namespace sluice
