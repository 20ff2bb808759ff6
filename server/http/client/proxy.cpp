// SPDX-License-Identifier: Apache-2.0
#include "server/http/client/proxy.h"

#include <algorithm>
#include <boost/asio/ip/address.hpp>
#include <boost/asio/ip/network_v4.hpp>
#include <boost/asio/ip/network_v6.hpp>
#include <cstdint>
#include <string_view>

#include "engine/core/hex.h"

namespace sluice::client {
namespace {

namespace ip = boost::asio::ip;
using boost::system::error_code;

char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

std::string lowered(std::string_view text) {
  std::string result(text);
  std::transform(result.begin(), result.end(), result.begin(), lower);
  return result;
}

struct Variable {
  std::string name;
  std::string value;
};

// The first spelling that is set.
std::optional<Variable> look_up(const Environment& environment, const std::string& name) {
  std::string upper(name);
  for (char& c : upper) c = c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c;
  for (const std::string& spelling : {name, upper}) {
    std::string value = environment(spelling.c_str());
    if (!value.empty()) return Variable{spelling, std::move(value)};
  }
  return std::nullopt;
}

std::string base64_of(std::string_view bytes) {
  static constexpr std::string_view kAlphabet =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  for (size_t i = 0; i < bytes.size(); i += 3) {
    uint32_t group = 0;
    for (size_t j = 0; j < 3; ++j) {
      group = group << 8 | (i + j < bytes.size() ? static_cast<unsigned char>(bytes[i + j]) : 0U);
    }
    const size_t num_bytes = std::min<size_t>(3, bytes.size() - i);
    for (size_t j = 0; j < 4; ++j) {
      text += j <= num_bytes ? kAlphabet[group >> (18 - 6 * j) & 63] : '=';
    }
  }
  return text;
}

// [scheme://][user:password@]host[:port][/...]
Expected<Proxy> parse_proxy(const Variable& variable) {
  std::string_view rest = variable.value;
  const size_t scheme_end = rest.find("://");
  const std::string scheme =
      scheme_end == std::string_view::npos ? "http" : lowered(rest.substr(0, scheme_end));
  if (scheme_end != std::string_view::npos) rest.remove_prefix(scheme_end + 3);
  rest = rest.substr(0, rest.find_first_of("/?#"));
  Proxy proxy;
  if (const size_t at = rest.rfind('@'); at != std::string_view::npos) {
    const std::string user = percent_decoded(rest.substr(0, at));
    proxy.authorization =
        "Basic " + base64_of(user.find(':') == std::string::npos ? user + ":" : user);
    rest.remove_prefix(at + 1);
  }
  const std::string place(rest);
  const auto address = parse_base_url("http://" + place);
  if (scheme != "http" || !address || place.find_first_of(" \r\n\t") != std::string::npos) {
    return make_error(ErrorCode::kInvalidArgument,
                      variable.name + ": found \"" + scheme + "://" + place +
                          "\", expected a proxy as http://host:port");
  }
  proxy.host = address->host;
  proxy.port = address->port;
  return proxy;
}

bool in_network(const std::string& host, const std::string& network) {
  error_code error;
  const ip::address address = ip::make_address(host, error);
  if (error) return false;
  if (address.is_v4()) {
    const ip::network_v4 range = ip::make_network_v4(network, error);
    return !error &&
           ip::network_v4(address.to_v4(), range.prefix_length()).canonical() == range.canonical();
  }
  const ip::network_v6 range = ip::make_network_v6(network, error);
  return !error &&
         ip::network_v6(address.to_v6(), range.prefix_length()).canonical() == range.canonical();
}

bool same_address(const std::string& a, const std::string& b) {
  error_code bad_a;
  error_code bad_b;
  const ip::address address = ip::make_address(a, bad_a);
  return address == ip::make_address(b, bad_b) && !bad_a && !bad_b;
}

// One entry of no_proxy.
bool is_named(const ServerAddress& server, std::string entry) {
  if (entry == "*") return true;
  const std::string host = lowered(server.host);
  if (entry.find('/') != std::string::npos) return in_network(host, entry);
  if (entry.starts_with('[')) {
    const size_t end = std::min(entry.find(']'), entry.size());
    const std::string after = entry.substr(std::min(end + 1, entry.size()));
    if (!after.empty() && after != ":" + server.port) return false;
    entry = entry.substr(1, end - 1);
  } else if (const size_t colon = entry.find(':');
             colon != std::string::npos && colon == entry.rfind(':')) {
    if (entry.substr(colon + 1) != server.port) return false;
    entry.resize(colon);
  }
  if (entry.starts_with('*')) entry.erase(0, 1);
  if (entry.starts_with('.')) entry.erase(0, 1);
  if (entry.empty()) return false;
  return host == entry || host.ends_with("." + entry) || same_address(host, entry);
}

bool goes_directly(const ServerAddress& server, const std::string& no_proxy) {
  const std::string list = lowered(no_proxy);
  for (size_t begin = 0; begin < list.size();) {
    const size_t end = std::min(list.find_first_of(", \t", begin), list.size());
    if (end > begin && is_named(server, list.substr(begin, end - begin))) return true;
    begin = end + 1;
  }
  return false;
}

}  // namespace

Expected<std::optional<Proxy>> proxy_for(const ServerAddress& server,
                                         const Environment& environment) {
  std::optional<Variable> proxy = look_up(environment, server.tls ? "https_proxy" : "http_proxy");
  if (!proxy) proxy = look_up(environment, "all_proxy");
  if (!proxy) return std::nullopt;
  const std::optional<Variable> direct = look_up(environment, "no_proxy");
  if (direct && goes_directly(server, direct->value)) return std::nullopt;
  SLUICE_TRY(Proxy parsed, parse_proxy(*proxy));
  return parsed;
}

}  // namespace sluice::client
