// SPDX-License-Identifier: Apache-2.0
#include "server/http/client/proxy.h"

#include <gtest/gtest.h>

#include <map>

namespace sluice::client {
namespace {

using Variables = std::map<std::string, std::string>;

// "host:port", with " and authorization"; "": none; "error: ..." where refused.
std::string route(const std::string& url, const Variables& variables) {
  const auto address = parse_base_url(url);
  const auto proxy = proxy_for(*address, [&](const char* name) {
    const auto found = variables.find(name);
    return found == variables.end() ? std::string() : found->second;
  });
  if (!proxy) return "error: " + proxy.error().message;
  if (!*proxy) return "";
  const std::string& authorization = (*proxy)->authorization;
  return (*proxy)->host + ":" + (*proxy)->port +
         (authorization.empty() ? "" : " and " + authorization);
}

TEST(Proxy, IsNamedByTheSchemeOfTheRequest) {
  const Variables both = {{"http_proxy", "http://a:1"}, {"HTTPS_PROXY", "http://b:2"}};
  EXPECT_EQ(route("http://host", both), "a:1");
  EXPECT_EQ(route("https://host", both), "b:2");
  EXPECT_EQ(route("https://host", {{"http_proxy", "http://a:1"}}), "");
  EXPECT_EQ(route("https://host", {{"all_proxy", "http://c:3"}}), "c:3");
  EXPECT_EQ(route("https://host", {{"ALL_PROXY", "c:3"}, {"https_proxy", "b:2"}}), "b:2");
  EXPECT_EQ(route("http://host", {{"HTTP_PROXY", "up:1"}, {"http_proxy", "low:1"}}), "low:1");
  EXPECT_EQ(route("http://host", {}), "");
}

TEST(Proxy, HasAnAddressAndPerhapsCredentials) {
  const auto by = [](const char* value) { return route("http://host", {{"http_proxy", value}}); };
  EXPECT_EQ(by("proxy.local"), "proxy.local:80");
  EXPECT_EQ(by("HTTP://proxy.local:3128/ignored"), "proxy.local:3128");
  EXPECT_EQ(by("http://[::1]:3128"), "::1:3128");
  EXPECT_EQ(by("http://user:pass@p:1"), "p:1 and Basic dXNlcjpwYXNz");
  EXPECT_EQ(by("user@p:1"), "p:1 and Basic dXNlcjo=");
  EXPECT_EQ(by("http://a%40b:%3a%zz@p:1"), "p:1 and Basic YUBiOjoleno=");
}

TEST(Proxy, OfAnotherKindIsRefusedWithoutItsPassword) {
  for (const char* value : {"socks5://u:hidden@p:1",
                            "https://u:hidden@p:1",
                            "http://u:hidden@",
                            "http://u:hidden@p q",
                            "http://u:hidden@[::1"}) {
    const std::string error = route("https://host", {{"HTTPS_PROXY", value}});
    EXPECT_TRUE(error.starts_with("error: HTTPS_PROXY: found \"")) << error;
    EXPECT_NE(error.find("expected a proxy as http://host:port"), std::string::npos) << error;
    EXPECT_EQ(error.find("hidden"), std::string::npos) << error;
  }
}

TEST(NoProxy, NamesHostsDomainsAddressesNetworksAndPorts) {
  struct Row {
    const char* no_proxy;
    const char* url;
    bool direct;
  };

  for (const Row& row : {Row{"*", "http://any", true},
                         {"host", "http://host:99", true},
                         {"HOST", "http://Host", true},
                         {"host", "http://myhost", false},
                         {"example.org", "http://a.b.example.org", true},
                         {".example.org", "http://a.example.org", true},
                         {".example.org", "http://example.org", true},
                         {"*.example.org", "http://a.example.org", true},
                         {"example.org", "http://badexample.org", false},
                         {"example.org", "http://example.org.evil", false},
                         {"host:80", "http://host", true},
                         {"host:8080", "http://host", false},
                         {"x, host ,y", "http://host", true},
                         {"x host", "http://host", true},
                         {"10.0.0.0/8", "http://10.1.2.3", true},
                         {"10.0.0.0/8", "http://11.1.2.3", false},
                         {"10.0.0.0/8", "http://ten", false},
                         {"10.0.0.0/99", "http://10.0.0.1", false},
                         {"fd00::/8", "http://[fd12::1]", true},
                         {"fd00::/8", "http://[fe12::1]", false},
                         {"127.0.0.1", "http://127.0.0.1:8000", true},
                         {"127.0.0.1", "http://127.0.0.11", false},
                         {"::1", "http://[0:0::1]", true},
                         {"[::1]:80", "http://[::1]", true},
                         {"[::1]:81", "http://[::1]", false},
                         {"[::1", "http://[::1]", true},
                         {",,", "http://host", false},
                         {".", "http://host", false},
                         {"/", "http://host", false}}) {
    for (const char* name : {"no_proxy", "NO_PROXY"}) {
      const std::string found = route(row.url, {{"http_proxy", "p:1"}, {name, row.no_proxy}});
      EXPECT_EQ(found, row.direct ? "" : "p:1") << row.no_proxy << " for " << row.url;
    }
  }
}

}  // namespace
}  // namespace sluice::client
