// SPDX-License-Identifier: Apache-2.0
// TLS as a filter between bytes: a session turns received bytes into plain text and plain text into
// bytes to send, and touches no socket. OpenSSL over memory buffers, TLS 1.2 and 1.3.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>

#include "engine/core/status.h"

struct ssl_ctx_st;
struct ssl_st;

namespace sluice {

struct Config;

// The TLS state of one connection; used on its I/O thread.
class TlsSession {
 public:
  explicit TlsSession(ssl_st* ssl) : ssl_(ssl) {}

  ~TlsSession();
  TlsSession(const TlsSession&) = delete;
  TlsSession& operator=(const TlsSession&) = delete;

  // Decrypts `cipher` onto `plain` and appends the bytes to send back (handshake, alerts) to
  // `reply`. False: the peer has closed, or does not speak TLS; nothing more can be received.
  [[nodiscard]] bool receive(std::string_view cipher, std::string& plain, std::string& reply);
  // Appends `plain` in encrypted form. Called once the handshake is done.
  void send(std::string_view plain, std::string& cipher);
  // Appends the notice that no more will be sent.
  void close(std::string& cipher);

  [[nodiscard]] bool is_established() const;

 private:
  void take_output(std::string& out);

  ssl_st* ssl_;
};

// The certificate, its key and the authorities of client certificates.
class TlsContext {
 public:
  // Returns null without --ssl-certfile. The error is one line with the flag and the file.
  static Expected<std::unique_ptr<TlsContext>> create(const Config& config);

  // Reads the files again. On error the old ones stay in use. Any thread.
  Expected<void> reload();

  // When the certificate in use ends, in seconds since the Unix epoch; -1: not known. Any thread.
  [[nodiscard]] int64_t certificate_expiry_s();

  // Returns null if memory is exhausted. Any thread.
  [[nodiscard]] std::unique_ptr<TlsSession> create_session();

 private:
  struct Files {
    std::string certificate;
    std::string key;  // empty: the certificate's file holds it
    std::string authorities;
    int client_certificates;  // 0: not asked for; 1: checked when given; 2: required
  };

  using Context = std::shared_ptr<ssl_ctx_st>;

  explicit TlsContext(Files files) : files_(std::move(files)) {}

  static Expected<Context> load(const Files& files);

  const Files files_;
  std::mutex mutex_;
  Context context_;  // guarded by mutex_
};

}  // namespace sluice
