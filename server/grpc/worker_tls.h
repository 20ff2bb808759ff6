// SPDX-License-Identifier: Apache-2.0
// Certificates between workers and routers: the authorities that each trusts, and the certificate
// that it presents. Files that change later are read again.
#pragma once

#include <grpcpp/security/credentials.h>
#include <grpcpp/security/server_credentials.h>

#include <memory>
#include <string>

#include "engine/core/config.h"
#include "engine/core/status.h"

namespace sluice {

// Paths of PEM files.
struct WorkerTls {
  std::string authorities;  // they sign the others' certificates; empty: no TLS
  std::string certificate;  // its own; empty: none
  std::string key;          // the certificate's

  [[nodiscard]] bool is_on() const { return !authorities.empty(); }
};

// Returns a router's files towards workers, from --worker-ssl-*.
WorkerTls router_tls(const Config& config);

// Returns a worker's files towards other workers: without --worker-ssl-certfile it presents that of
// --ssl-certfile. kInvalidArgument: there is none, or a file is invalid; says which.
Expected<WorkerTls> worker_tls(const Config& config);

// Returns a caller's credentials: without TLS, or trusting `tls.authorities`, checking host names
// and presenting its own certificate.
std::shared_ptr<grpc::ChannelCredentials> channel_credentials(const WorkerTls& tls);

// Returns a listener's credentials: without TLS, or serving only callers with a certificate.
std::shared_ptr<grpc::ServerCredentials> mutual_server_credentials(const WorkerTls& tls);

}  // namespace sluice
