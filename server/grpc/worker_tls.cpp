// SPDX-License-Identifier: Apache-2.0
#include "server/grpc/worker_tls.h"

#include <grpcpp/security/tls_certificate_provider.h>
#include <grpcpp/security/tls_credentials_options.h>

#include "server/http/tls.h"

namespace sluice {
namespace {

std::shared_ptr<grpc::experimental::FileWatcherCertificateProvider> files_of(const WorkerTls& tls) {
  constexpr unsigned kRefreshSeconds = 1;
  return std::make_shared<grpc::experimental::FileWatcherCertificateProvider>(
      tls.key, tls.certificate, tls.authorities, kRefreshSeconds);
}

}  // namespace

WorkerTls router_tls(const Config& config) {
  const std::string& certificate = config.worker_ssl_certfile;
  return {.authorities = config.worker_ssl_ca_certs,
          .certificate = certificate,
          .key = config.worker_ssl_keyfile.empty() ? certificate : config.worker_ssl_keyfile};
}

Expected<WorkerTls> worker_tls(const Config& config) {
  WorkerTls tls = router_tls(config);
  if (!tls.is_on()) return tls;
  if (tls.certificate.empty()) {
    tls.certificate = config.ssl_certfile;
    tls.key = config.ssl_keyfile.empty() ? tls.certificate : config.ssl_keyfile;
  }
  if (tls.certificate.empty()) {
    return make_error(ErrorCode::kInvalidArgument,
                      "--worker-ssl-ca-certs needs --worker-ssl-certfile or --ssl-certfile, which "
                      "a worker shows to others.",
                      "worker-ssl-ca-certs");
  }
  Config as_server;  // whose files are looked at as those of a server are
  as_server.ssl_certfile = tls.certificate;
  as_server.ssl_keyfile = tls.key;
  as_server.ssl_ca_certs = tls.authorities;
  as_server.ssl_cert_reqs = 2;
  if (const auto checked = TlsContext::create(as_server); !checked) {
    return make_error(ErrorCode::kInvalidArgument,
                      "TLS between workers (--worker-ssl-*): " + checked.error().message,
                      "worker-ssl-ca-certs");
  }
  return tls;
}

std::shared_ptr<grpc::ChannelCredentials> channel_credentials(const WorkerTls& tls) {
  if (!tls.is_on()) return grpc::InsecureChannelCredentials();
  grpc::experimental::TlsChannelCredentialsOptions options;
  options.set_certificate_provider(files_of(tls));
  options.watch_root_certs();
  if (!tls.certificate.empty()) options.watch_identity_key_cert_pairs();
  return grpc::experimental::TlsCredentials(options);
}

std::shared_ptr<grpc::ServerCredentials> mutual_server_credentials(const WorkerTls& tls) {
  if (!tls.is_on()) return grpc::InsecureServerCredentials();
  grpc::experimental::TlsServerCredentialsOptions options(files_of(tls));
  options.watch_identity_key_cert_pairs();
  options.watch_root_certs();
  options.set_cert_request_type(GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
  return grpc::experimental::TlsServerCredentials(options);
}

}  // namespace sluice
