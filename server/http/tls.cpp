// SPDX-License-Identifier: Apache-2.0
#include "server/http/tls.h"

#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <limits>
#include <utility>

#include "engine/core/config.h"
#include "engine/core/log.h"

namespace sluice {
namespace {

std::string openssl_reason() {
  const unsigned long code = ERR_peek_last_error();
  ERR_clear_error();
  const char* reason = ERR_reason_error_string(code);
  return reason != nullptr ? reason : "unknown reason";
}

tl::unexpected<Error> file_error(const char* flag,
                                 const std::string& path,
                                 const std::string& what) {
  return make_error(ErrorCode::kInvalidArgument,
                    "--" + std::string(flag) + ": '" + path + "' " + what + ".",
                    flag);
}

Expected<void> check_readable(const char* flag, const std::string& path) {
  std::FILE* file = std::fopen(path.c_str(), "re");
  if (file == nullptr) {
    return file_error(flag, path, std::string("cannot be read: ") + std::strerror(errno));
  }
  std::fclose(file);
  return {};
}

// Refuses keys with a passphrase, for which OpenSSL would ask at the terminal.
int refuse_passphrase(char*, int, int, void*) { return 0; }

void warn_if_expired(const std::string& path, const SSL_CTX* context) {
  const X509* certificate = SSL_CTX_get0_certificate(context);
  if (certificate == nullptr || X509_cmp_current_time(X509_get0_notAfter(certificate)) > 0) return;
  log_event(LogLevel::kWarning, "certificate_expired", "file", path);
}

}  // namespace

TlsSession::~TlsSession() { SSL_free(ssl_); }

bool TlsSession::is_established() const { return SSL_is_init_finished(ssl_) == 1; }

void TlsSession::take_output(std::string& out) {
  BIO* const written = SSL_get_wbio(ssl_);
  const size_t waiting = BIO_ctrl_pending(written);
  if (waiting == 0) return;
  const size_t begin = out.size();
  out.resize(begin + waiting);
  const int taken = BIO_read(written, out.data() + begin, static_cast<int>(waiting));
  out.resize(begin + static_cast<size_t>(std::max(taken, 0)));
}

bool TlsSession::receive(std::string_view cipher, std::string& plain, std::string& reply) {
  ERR_clear_error();
  CHECK_LE(cipher.size(), static_cast<size_t>(std::numeric_limits<int>::max()));
  const int length = static_cast<int>(cipher.size());
  if (BIO_write(SSL_get_rbio(ssl_), cipher.data(), length) != length) return false;
  std::array<char, 16384> buffer;  // one record
  int count = 0;
  while ((count = SSL_read(ssl_, buffer.data(), static_cast<int>(buffer.size()))) > 0) {
    plain.append(buffer.data(), static_cast<size_t>(count));
  }
  const int error = SSL_get_error(ssl_, count);
  take_output(reply);
  if (error == SSL_ERROR_WANT_READ) return true;
  if (error != SSL_ERROR_ZERO_RETURN) {
    log_event(LogLevel::kDebug, "tls_failed", "reason", openssl_reason());
  }
  ERR_clear_error();
  return false;
}

void TlsSession::send(std::string_view plain, std::string& cipher) {
  ERR_clear_error();
  constexpr size_t kPiece = size_t{1} << 20;
  while (!plain.empty()) {
    const std::string_view piece = plain.substr(0, kPiece);
    // Memory buffers take everything; an error means that the session has failed before.
    if (SSL_write(ssl_, piece.data(), static_cast<int>(piece.size())) <= 0) break;
    plain.remove_prefix(piece.size());
    take_output(cipher);
  }
  ERR_clear_error();
}

void TlsSession::close(std::string& cipher) {
  ERR_clear_error();
  if (is_established()) SSL_shutdown(ssl_);
  take_output(cipher);
  ERR_clear_error();
}

Expected<TlsContext::Context> TlsContext::load(const Files& files) {
  const std::string& key = files.key.empty() ? files.certificate : files.key;
  const char* const key_flag = files.key.empty() ? "ssl-certfile" : "ssl-keyfile";
  SLUICE_TRY_VOID(check_readable("ssl-certfile", files.certificate));
  SLUICE_TRY_VOID(check_readable(key_flag, key));
  ERR_clear_error();
  Context context(SSL_CTX_new(TLS_server_method()), SSL_CTX_free);
  if (context == nullptr) {
    return make_error(ErrorCode::kInternal, "TLS cannot be set up: " + openssl_reason() + ".");
  }
  SSL_CTX* const raw = context.get();
  SSL_CTX_set_min_proto_version(raw, TLS1_2_VERSION);
  SSL_CTX_set_options(raw, SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION);
  SSL_CTX_set_mode(raw, SSL_MODE_RELEASE_BUFFERS);
  SSL_CTX_set_session_cache_mode(raw, SSL_SESS_CACHE_OFF);
  SSL_CTX_set_default_passwd_cb(raw, refuse_passphrase);
  if (SSL_CTX_use_certificate_chain_file(raw, files.certificate.c_str()) != 1) {
    return file_error(
        "ssl-certfile", files.certificate, "holds no PEM certificate (" + openssl_reason() + ")");
  }
  if (SSL_CTX_use_PrivateKey_file(raw, key.c_str(), SSL_FILETYPE_PEM) != 1) {
    const bool is_other = ERR_GET_REASON(ERR_peek_last_error()) == X509_R_KEY_VALUES_MISMATCH;
    const std::string reason = openssl_reason();
    return is_other
               ? file_error(
                     key_flag, key, "is not the key of certificate '" + files.certificate + "'")
               : file_error(key_flag,
                            key,
                            "holds no PEM private key without a passphrase (" + reason + ")");
  }
  if (SSL_CTX_check_private_key(raw) != 1) {
    ERR_clear_error();
    return file_error(key_flag, key, "is not the key of certificate '" + files.certificate + "'");
  }
  if (files.client_certificates > 0) {
    SLUICE_TRY_VOID(check_readable("ssl-ca-certs", files.authorities));
    STACK_OF(X509_NAME)* const names = SSL_load_client_CA_file(files.authorities.c_str());
    if (names == nullptr || SSL_CTX_load_verify_file(raw, files.authorities.c_str()) != 1) {
      sk_X509_NAME_pop_free(names, X509_NAME_free);
      return file_error("ssl-ca-certs",
                        files.authorities,
                        "holds no PEM certificates (" + openssl_reason() + ")");
    }
    SSL_CTX_set_client_CA_list(raw, names);
    SSL_CTX_set_verify(raw,
                       files.client_certificates > 1
                           ? SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT
                           : SSL_VERIFY_PEER,
                       nullptr);
    constexpr unsigned char kSessions[] = "sluice";
    SSL_CTX_set_session_id_context(raw, kSessions, sizeof kSessions - 1);
  }
  warn_if_expired(files.certificate, raw);
  return context;
}

Expected<std::unique_ptr<TlsContext>> TlsContext::create(const Config& config) {
  if (config.ssl_certfile.empty()) {
    for (const auto& [flag, value] : {std::pair{"ssl-keyfile", &config.ssl_keyfile},
                                      std::pair{"ssl-ca-certs", &config.ssl_ca_certs}}) {
      if (value->empty()) continue;
      return make_error(
          ErrorCode::kInvalidArgument, "--" + std::string(flag) + " needs --ssl-certfile.", flag);
    }
    if (config.ssl_cert_reqs > 0) {
      return make_error(
          ErrorCode::kInvalidArgument, "--ssl-cert-reqs needs --ssl-certfile.", "ssl-cert-reqs");
    }
    return std::unique_ptr<TlsContext>();
  }
  if ((config.ssl_cert_reqs > 0) != !config.ssl_ca_certs.empty()) {
    return make_error(ErrorCode::kInvalidArgument,
                      "--ssl-ca-certs and --ssl-cert-reqs 1 or 2 need each other.",
                      "ssl-ca-certs");
  }
  std::unique_ptr<TlsContext> made(new TlsContext({.certificate = config.ssl_certfile,
                                                   .key = config.ssl_keyfile,
                                                   .authorities = config.ssl_ca_certs,
                                                   .client_certificates = config.ssl_cert_reqs}));
  SLUICE_TRY_VOID(made->reload());
  return made;
}

Expected<void> TlsContext::reload() {
  SLUICE_TRY(Context loaded, load(files_));
  const std::scoped_lock lock(mutex_);
  context_ = std::move(loaded);
  return {};
}

int64_t TlsContext::certificate_expiry_s() {
  const std::scoped_lock lock(mutex_);
  const X509* const certificate = SSL_CTX_get0_certificate(context_.get());
  std::tm end{};
  const bool is_known = certificate != nullptr &&
                        ASN1_TIME_to_tm(X509_get0_notAfter(certificate), &end) == 1;
  return is_known ? timegm(&end) : -1;
}

std::unique_ptr<TlsSession> TlsContext::create_session() {
  Context context;
  {
    const std::scoped_lock lock(mutex_);
    context = context_;
  }
  SSL* const ssl = SSL_new(context.get());  // holds a reference to the context
  BIO* const input = BIO_new(BIO_s_mem());
  BIO* const output = BIO_new(BIO_s_mem());
  if (ssl == nullptr || input == nullptr || output == nullptr) {
    SSL_free(ssl);
    BIO_free(input);
    BIO_free(output);
    return nullptr;
  }
  SSL_set_bio(ssl, input, output);
  SSL_set_accept_state(ssl);
  return std::make_unique<TlsSession>(ssl);
}

}  // namespace sluice
