// SPDX-License-Identifier: Apache-2.0
// Certificates made in memory, self-signed or signed by one another.
#pragma once

#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>

#include <cstdio>
#include <memory>
#include <string>

namespace sluice {

inline constexpr long kDay = 24L * 3600;

struct FreeOpenSsl {
  void operator()(EVP_PKEY* key) const { EVP_PKEY_free(key); }

  void operator()(X509* certificate) const { X509_free(certificate); }

  void operator()(SSL_CTX* context) const { SSL_CTX_free(context); }

  void operator()(SSL* ssl) const { SSL_free(ssl); }
};

struct Certificate {
  std::unique_ptr<EVP_PKEY, FreeOpenSsl> key;
  std::unique_ptr<X509, FreeOpenSsl> x509;
};

// Without an issuer the certificate is self-signed: trusting it is trusting its issuer.
inline Certificate make_certificate(const char* alternative_name,
                                    long valid_from,
                                    long valid_to,
                                    const Certificate* issuer = nullptr) {
  Certificate made{std::unique_ptr<EVP_PKEY, FreeOpenSsl>(EVP_EC_gen("P-256")),
                   std::unique_ptr<X509, FreeOpenSsl>(X509_new())};
  X509* x509 = made.x509.get();
  X509_set_version(x509, X509_VERSION_3);
  ASN1_INTEGER_set(X509_get_serialNumber(x509), issuer == nullptr ? 1 : 2);
  X509_gmtime_adj(X509_getm_notBefore(x509), valid_from);
  X509_gmtime_adj(X509_getm_notAfter(x509), valid_to);
  X509_set_pubkey(x509, made.key.get());
  X509_NAME* name = X509_get_subject_name(x509);
  const char* const subject = issuer == nullptr ? "test" : "signed";
  X509_NAME_add_entry_by_txt(
      name, "CN", MBSTRING_ASC, reinterpret_cast<const unsigned char*>(subject), -1, -1, 0);
  const Certificate& signer = issuer == nullptr ? made : *issuer;
  X509_set_issuer_name(x509, X509_get_subject_name(signer.x509.get()));
  const auto extend = [x509](int kind, const char* value) {
    X509_EXTENSION* const extension = X509V3_EXT_conf_nid(nullptr, nullptr, kind, value);
    X509_add_ext(x509, extension, -1);
    X509_EXTENSION_free(extension);
  };
  extend(NID_subject_alt_name, alternative_name);
  if (issuer == nullptr) extend(NID_basic_constraints, "CA:TRUE");
  X509_sign(x509, signer.key.get(), EVP_sha256());
  return made;
}

// Writes the certificate and its key as PEM files.
inline void write_certificate(const Certificate& certificate, const std::string& path) {
  std::FILE* file = std::fopen(path.c_str(), "w");
  PEM_write_X509(file, certificate.x509.get());
  std::fclose(file);
}

inline void write_key(const Certificate& certificate,
                      const std::string& path,
                      const char* passphrase = nullptr) {
  std::FILE* file = std::fopen(path.c_str(), "w");
  PEM_write_PrivateKey(file,
                       certificate.key.get(),
                       passphrase == nullptr ? nullptr : EVP_aes_128_cbc(),
                       nullptr,
                       0,
                       nullptr,
                       const_cast<char*>(passphrase));
  std::fclose(file);
}

}  // namespace sluice
