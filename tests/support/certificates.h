// SPDX-License-Identifier: Apache-2.0
// Certificates for tests, made when they run: an authority, and what it signs.
#pragma once

#include <openssl/pem.h>
#include <openssl/x509v3.h>

#include <memory>
#include <string>

namespace sluice {

struct FreeOpenSsl {
  void operator()(EVP_PKEY* key) const { EVP_PKEY_free(key); }

  void operator()(X509* certificate) const { X509_free(certificate); }

  void operator()(BIO* memory) const { BIO_free(memory); }
};

// P-256, valid for a day, of localhost.
class Certificate {
 public:
  // Signed by itself where there is no issuer.
  explicit Certificate(const std::string& name, const Certificate* issuer = nullptr)
      : key_(EVP_EC_gen("P-256")), x509_(X509_new()) {
    X509* x509 = x509_.get();
    X509_set_version(x509, X509_VERSION_3);
    ASN1_INTEGER_set(X509_get_serialNumber(x509), issuer == nullptr ? 1 : 2);
    X509_gmtime_adj(X509_getm_notBefore(x509), -60);
    X509_gmtime_adj(X509_getm_notAfter(x509), 24L * 3600);
    X509_set_pubkey(x509, key_.get());
    X509_NAME_add_entry_by_txt(X509_get_subject_name(x509),
                               "CN",
                               MBSTRING_ASC,
                               reinterpret_cast<const unsigned char*>(name.c_str()),
                               -1,
                               -1,
                               0);
    const Certificate& signer = issuer == nullptr ? *this : *issuer;
    X509_set_issuer_name(x509, X509_get_subject_name(signer.x509_.get()));
    add(NID_basic_constraints, issuer == nullptr ? "critical,CA:TRUE" : "CA:FALSE");
    add(NID_subject_alt_name, "DNS:localhost,IP:127.0.0.1");
    X509_sign(x509, signer.key_.get(), EVP_sha256());
  }

  [[nodiscard]] std::string pem() const {
    return text_of([this](BIO* out) { PEM_write_bio_X509(out, x509_.get()); });
  }

  [[nodiscard]] std::string key_pem() const {
    return text_of([this](BIO* out) {
      PEM_write_bio_PrivateKey(out, key_.get(), nullptr, nullptr, 0, nullptr, nullptr);
    });
  }

 private:
  void add(int nid, const char* value) {
    X509_EXTENSION* extension = X509V3_EXT_conf_nid(nullptr, nullptr, nid, value);
    X509_add_ext(x509_.get(), extension, -1);
    X509_EXTENSION_free(extension);
  }

  template <typename Write>
  static std::string text_of(Write&& write) {
    const std::unique_ptr<BIO, FreeOpenSsl> memory(BIO_new(BIO_s_mem()));
    write(memory.get());
    char* data = nullptr;
    const long size = BIO_get_mem_data(memory.get(), &data);
    return {data, static_cast<size_t>(size)};
  }

  std::unique_ptr<EVP_PKEY, FreeOpenSsl> key_;
  std::unique_ptr<X509, FreeOpenSsl> x509_;
};

}  // namespace sluice
