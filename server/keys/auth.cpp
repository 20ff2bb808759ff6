// SPDX-License-Identifier: Apache-2.0
#include "server/keys/auth.h"

#include <openssl/crypto.h>
#include <strings.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstring>
#include <ctime>
#include <fstream>
#include <sstream>
#include <utility>

#include "engine/core/config.h"
#include "engine/core/hex.h"
#include "server/http/client/fetch.h"

namespace sluice {
namespace {

constexpr size_t kMaxFileBytes = size_t{8} << 20;
constexpr std::string_view kHashed = "sha256:";

tl::unexpected<Error> faulty(const std::string& message) {
  return make_error(ErrorCode::kInvalidArgument, message, "api-key-file");
}

// How long nothing is added to a file that is complete.
constexpr std::chrono::milliseconds kWritten{500};

bool is_being_written(const std::string& path) {
  struct stat found = {};
  timespec now = {};
  if (::stat(path.c_str(), &found) != 0 || ::clock_gettime(CLOCK_REALTIME, &now) != 0) return false;
  const auto ms = [](const timespec& at) { return at.tv_sec * 1000 + at.tv_nsec / 1'000'000; };
  const int64_t age = ms(now) - ms(found.st_mtim);
  return age >= 0 && age < kWritten.count();
}

bool is_name(std::string_view text) {
  return !text.empty() && text.size() <= 64 && std::ranges::all_of(text, [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '_' || c == '.';
  });
}

Expected<Digest> read_digest(std::string_view key) {
  if (!key.starts_with(kHashed)) return digest_of(key);
  key.remove_prefix(kHashed.size());
  Digest digest{};
  if (!from_hex(key, digest)) return faulty("a digest has 64 hex digits");
  return digest;
}

Expected<void> read_limit(std::string_view text, TenantLimits& limits) {
  const size_t equals = text.find('=');
  const std::string name(text.substr(0, equals));
  const std::string_view value = equals == std::string_view::npos ? "" : text.substr(equals + 1);
  int32_t* const limit = name == "concurrency"           ? &limits.concurrency
                         : name == "requests-per-minute" ? &limits.requests_per_minute
                         : name == "tokens-per-minute"   ? &limits.tokens_per_minute
                                                         : nullptr;
  if (limit == nullptr) {
    return faulty("after name and key come concurrency=, requests-per-minute= and " +
                   std::string("tokens-per-minute="));
  }
  const auto end = value.data() + value.size();
  const auto parsed = std::from_chars(value.data(), end, *limit);
  if (value.empty() || parsed.ec != std::errc() || parsed.ptr != end || *limit < 0) {
    return faulty(name + " must be an integer from 0");
  }
  return {};
}

}  // namespace

Authenticator::Authenticator(const Config& config)
    : given_keys_(config.api_key),
      file_(config.api_key_file),
      limits_{.concurrency = config.max_requests_per_key,
              .requests_per_minute = config.requests_per_minute_per_key,
              .tokens_per_minute = config.tokens_per_minute_per_key},
      everybody_(std::make_shared<Tenant>("none", 0, limits_)) {
  Keys keys;
  for (const std::string& key : given_keys_) {
    const Digest digest = digest_of(key);
    // A repeated key is one tenant.
    (void)add_key("key-" + std::to_string(keys.size() + 1), digest, limits_, keys);
  }
  keys_ = std::make_shared<const Keys>(std::move(keys));
}

std::shared_ptr<const Authenticator::Keys> Authenticator::keys() const {
  const std::scoped_lock lock(mutex_);
  return keys_;
}

Expected<void> Authenticator::add_key(const std::string& name,
                                      const Digest& digest,
                                      const TenantLimits& limits,
                                      Keys& keys) const {
  for (const Key& key : keys) {
    if (key.digest == digest) return faulty("the key of '" + key.tenant->name() + "' again");
    if (key.tenant->name() == name) return faulty("the name '" + name + "' again");
  }
  const auto known = this->keys();
  if (known != nullptr) {
    const auto same =
        std::ranges::find_if(*known, [&](const Key& key) { return key.tenant->name() == name; });
    if (same != known->end()) {
      keys.push_back({digest, same->tenant, limits});
      return {};
    }
  }
  keys.push_back({digest, std::make_shared<Tenant>(name, salt_of(digest), limits), limits});
  return {};
}

Expected<void> Authenticator::add_line(std::string_view line, Keys& keys) const {
  std::istringstream words{std::string(line.substr(0, line.find('#')))};
  std::string name;
  std::string key;
  if (!(words >> name)) return {};
  if (!is_name(name)) {
    return faulty("a name has up to 64 letters, digits, dots, dashes and underscores");
  }
  if (!(words >> key)) return faulty("'" + name + "' has no key");
  SLUICE_TRY(const Digest digest, read_digest(key));
  TenantLimits limits = limits_;
  for (std::string word; words >> word;) SLUICE_TRY_VOID(read_limit(word, limits));
  return add_key(name, digest, limits, keys);
}

Expected<void> Authenticator::load() {
  if (file_.empty()) return {};
  SLUICE_TRY(std::string text, read_file());
  // Half of a line that is being written would be a shorter key.
  for (int i = 0; i < 3 && !text.ends_with('\n') && is_being_written(file_); ++i) {
    client::pause_for(kWritten);
    SLUICE_TRY(text, read_file());
  }
  return load_text(text);
}

Expected<std::string> Authenticator::read_file() const {
  errno = 0;  // streams do not set an error when they fail
  std::ifstream in(file_, std::ios::binary);
  std::string text(kMaxFileBytes + 1, '\0');
  in.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (!in.is_open() || in.bad()) {
    return faulty("--api-key-file: '" + file_ + "' cannot be read: " + std::strerror(errno) + ".");
  }
  text.resize(static_cast<size_t>(in.gcount()));
  if (text.size() > kMaxFileBytes) {
    return faulty("--api-key-file: '" + file_ + "' is larger than 8 MiB.");
  }
  return text;
}

bool Authenticator::has_several_keys() const { return keys()->size() > 1; }

Expected<void> Authenticator::load_text(std::string_view text) {
  Keys fresh;
  for (const Key& key : *keys()) {
    const bool is_given = std::ranges::any_of(
        given_keys_, [&](const std::string& given) { return digest_of(given) == key.digest; });
    if (is_given) fresh.push_back(key);
  }
  const size_t num_given = fresh.size();
  constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";  // written by editors of Windows
  if (text.starts_with(kByteOrderMark)) text.remove_prefix(kByteOrderMark.size());
  size_t line_number = 0;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    ++line_number;
    const auto added = add_line(text.substr(at, end - at), fresh);
    if (!added) {
      // The line's text is left out, because it may hold a key.
      return faulty("--api-key-file: '" + file_ + "' line " + std::to_string(line_number) + ": " +
                     added.error().message + ".");
    }
    at = end + 1;
  }
  if (fresh.size() == num_given) return faulty("--api-key-file: '" + file_ + "' has no key.");
  for (const Key& key : fresh) key.tenant->set_limits(key.limits);
  const std::scoped_lock lock(mutex_);
  keys_ = std::make_shared<const Keys>(std::move(fresh));
  return {};
}

std::shared_ptr<Tenant> Authenticator::find_tenant(const HttpRequest& request) const {
  const std::shared_ptr<const Keys> known = keys();
  if (known->empty()) return everybody_;
  constexpr size_t kSchemeLength = 7;
  std::string key = request.api_key;
  if (strncasecmp(request.authorization.c_str(), "Bearer ", kSchemeLength) == 0) {
    key = request.authorization.substr(kSchemeLength);
  }
  // The empty key belongs to no tenant, though a file may hold its digest: the hash of an unset
  // variable.
  if (key.empty()) return nullptr;
  const Digest given = digest_of(key);
  const Key* found = nullptr;
  for (const Key& candidate : *known) {  // no early exit: the time tells nothing
    if (CRYPTO_memcmp(given.data(), candidate.digest.data(), given.size()) == 0) {
      found = &candidate;
    }
  }
  return found == nullptr ? nullptr : found->tenant;
}

}  // namespace sluice
