// SPDX-License-Identifier: Apache-2.0
// The file of API keys: whatever it holds, the keys of a file that is taken are let in under their
// names, and one that is refused changes nothing.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <sstream>
#include <string>
#include <string_view>

#include "engine/core/config.h"
#include "engine/core/status.h"
#include "server/keys/auth.h"
#include "tests/fuzz/target.h"

using namespace sluice;

namespace {

std::shared_ptr<Tenant> holder(const Authenticator& keys, const std::string& key) {
  HttpRequest request;
  request.api_key = key;
  return keys.find_tenant(request);
}

// The name in an accepted line has a key, unless the line holds the key's digest.
void check_line(const Authenticator& keys, const std::string& line) {
  std::istringstream words(line.substr(0, line.find('#')));
  std::string name;
  std::string key;
  if (!(words >> name >> key) || key.starts_with("sha256:")) return;
  const auto tenant = holder(keys, key);
  CHECK(tenant != nullptr && tenant->name() == name);
}

}  // namespace

static int key_file_input(const uint8_t* data, size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  Config config;
  config.api_key = {"given"};
  config.api_key_file = "keys";
  Authenticator keys(config);
  CHECK(keys.load_text("team-a first"));
  const bool taken = keys.load_text(text).has_value();
  CHECK(holder(keys, "given") != nullptr);
  CHECK(holder(keys, "") == nullptr);
  if (!taken) {
    CHECK(holder(keys, "first") != nullptr);
    return 0;
  }
  std::istringstream lines(text.starts_with("\xEF\xBB\xBF") ? text.substr(3) : text);
  for (std::string line; std::getline(lines, line);) check_line(keys, line);
  CHECK(keys.load_text(text));
  return 0;
}

const sluice::fuzz::Target key_file_target("key_file_fuzz", key_file_input);
