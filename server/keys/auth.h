// SPDX-License-Identifier: Apache-2.0
// API keys: compared by digest over all keys, so that the time taken tells nothing about them.
//
// A key file has a line for each key: its name, the key (or sha256: and the 64 hex digits of its
// digest), and limits of its own where they differ from the configured ones; # begins a comment:
//   team-a  sk-2f9c...          tokens-per-minute=100000
//   team-b  sha256:9f86d08...   concurrency=4 requests-per-minute=600
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "server/http/http_message.h"
#include "server/keys/digest.h"
#include "server/keys/tenant.h"

namespace sluice {

struct Config;

class Authenticator {
 public:
  // Takes --api-key, --api-key-file and the limits of keys; load() reads the file.
  explicit Authenticator(const Config& config);

  // Reads the key file, at start and again later; a file whose last line has no end is read again
  // until it has not changed for half a second. On error the old keys stay. Tenants are known by
  // their names: with a new key they keep what they owe. Any thread.
  Expected<void> load();
  // Loads the keys of `text`, the contents of a key file.
  Expected<void> load_text(std::string_view text);

  // Reads "Authorization: Bearer KEY" or "x-api-key: KEY". Null: the client is refused. Any thread.
  [[nodiscard]] std::shared_ptr<Tenant> find_tenant(const HttpRequest& request) const;

  // Tells whether there are several clients, which should not see each other's requests. Any
  // thread.
  [[nodiscard]] bool has_several_keys() const;

 private:
  struct Key {
    Digest digest;
    std::shared_ptr<Tenant> tenant;
    TenantLimits limits;
  };

  using Keys = std::vector<Key>;

  [[nodiscard]] Expected<std::string> read_file() const;
  Expected<void> add_line(std::string_view line, Keys& keys) const;
  Expected<void> add_key(const std::string& name,
                         const Digest& digest,
                         const TenantLimits& limits,
                         Keys& keys) const;
  [[nodiscard]] std::shared_ptr<const Keys> keys() const;

  const std::vector<std::string> given_keys_;
  const std::string file_;
  const TenantLimits limits_;
  const std::shared_ptr<Tenant> everybody_;  // the tenant of all requests without keys
  mutable std::mutex mutex_;
  std::shared_ptr<const Keys> keys_;  // guarded by mutex_
};

}  // namespace sluice
