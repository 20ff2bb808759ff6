// SPDX-License-Identifier: Apache-2.0
// The page for people, as far as it goes without a browser: where it is, what its headers forbid,
// and that it is one file which asks for nothing elsewhere.
#include <gtest/gtest.h>
#include <openssl/evp.h>

#include <array>
#include <nlohmann/json.hpp>
#include <regex>
#include <string>

#include "tests/server/running_server.h"

namespace sluice {
namespace {

HttpReply ask(RunningServer& server, const std::string& path, const std::string& method = "GET") {
  HttpClient client(server.port());
  client.request(method, path, {}, "Connection: close\r\n");
  return client.read_reply(/*has_body=*/method != "HEAD");
}

// 'sha256-...' of the text between a tag and its end.
std::string hash_of_block(const std::string& html, const std::string& tag) {
  const size_t begin = html.find("<" + tag + ">") + tag.size() + 2;
  const std::string text = html.substr(begin, html.find("</" + tag + ">") - begin);
  std::array<unsigned char, 32> digest{};
  EVP_Digest(text.data(), text.size(), digest.data(), nullptr, EVP_sha256(), nullptr);
  std::array<unsigned char, 64> encoded{};
  EVP_EncodeBlock(encoded.data(), digest.data(), digest.size());
  return "'sha256-" + std::string(reinterpret_cast<const char*>(encoded.data())) + "'";
}

size_t count_of(const std::string& text, const std::string& what) {
  size_t count = 0;
  for (size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) ++count;
  return count;
}

TEST(Page, IsOneSmallFileThatNeedsNoKey) {
  FakeEngine engine;
  Config config;
  config.api_key = {"secret"};
  RunningServer server(engine, config);
  const HttpReply page = ask(server, "/");
  EXPECT_EQ(page.status, 200);
  EXPECT_EQ(page.header("Content-Type"), "text/html; charset=utf-8");
  EXPECT_TRUE(page.body.starts_with("<!doctype html>"));
  EXPECT_TRUE(page.body.ends_with("</html>\n"));
  EXPECT_LT(page.body.size(), 150'000U);
  EXPECT_EQ(ask(server, "/docs").body, page.body);
  EXPECT_EQ(ask(server, "/docs/").body, page.body);
  EXPECT_EQ(ask(server, "/?a=b").body, page.body);
  const HttpReply head = ask(server, "/", "HEAD");
  EXPECT_EQ(head.status, 200);
  EXPECT_EQ(head.header("Content-Length"), std::to_string(page.body.size()));
  EXPECT_EQ(ask(server, "/", "PUT").status, 405);
}

TEST(Page, DocsHaveASentenceForEachOperation) {
  FakeEngine engine;
  RunningServer server(engine);
  const std::string page = ask(server, "/docs").body;
  const auto document = nlohmann::json::parse(ask(server, "/openapi.json").body);
  ASSERT_GT(document["paths"].size(), 20U);
  for (const auto& [path, methods] : document["paths"].items()) {
    for (const auto& [method, operation] : methods.items()) {
      const std::string name = method + " " + path;
      EXPECT_NE(page.find("\"" + name + "\": ["), std::string::npos) << name;
    }
  }
}

TEST(Page, ItsPolicyAllowsItsOwnScriptAndStyleAlone) {
  FakeEngine engine;
  RunningServer server(engine);
  const HttpReply page = ask(server, "/");
  const std::string policy = page.header("Content-Security-Policy");
  EXPECT_NE(policy.find("script-src " + hash_of_block(page.body, "script") + ";"),
            std::string::npos)
      << policy;
  EXPECT_NE(policy.find("style-src " + hash_of_block(page.body, "style") + ";"), std::string::npos)
      << policy;
  for (const char* rule : {"default-src 'none'",
                           "connect-src 'self'",
                           "base-uri 'none'",
                           "form-action 'none'",
                           "frame-ancestors 'none'",
                           "require-trusted-types-for 'script'"}) {
    EXPECT_NE(policy.find(rule), std::string::npos) << rule;
  }
  EXPECT_EQ(policy.find("unsafe"), std::string::npos);
  EXPECT_EQ(page.header("X-Content-Type-Options"), "nosniff");
  EXPECT_EQ(page.header("X-Frame-Options"), "DENY");
  EXPECT_EQ(page.header("Referrer-Policy"), "no-referrer");
}

// What the policy would break silently, or what would be loaded from elsewhere.
TEST(Page, HasNoInlineHandlerNoMarkupFromTextAndNoAddressOfOthers) {
  FakeEngine engine;
  RunningServer server(engine);
  const std::string html = ask(server, "/").body;
  for (const char* tag : {"<script", "</script", "<style", "</style"}) {
    EXPECT_EQ(count_of(html, tag), 1U) << tag;
  }
  for (const char* banned : {"<!--", "innerHTML", "outerHTML", "insertAdjacentHTML", "document.write",
                             "eval(", "new Function", "srcdoc", "<link rel=\"stylesheet", "@import",
                             "<iframe", "<img", " style=\""}) {
    EXPECT_EQ(count_of(html, banned), 0U) << banned;
  }
  EXPECT_FALSE(std::regex_search(html, std::regex(R"(<[a-z][^>]*\son[a-z]+=)")));
  const std::regex address(R"(https?://[A-Za-z0-9][^\s"'`)]*)");
  for (std::sregex_iterator it(html.begin(), html.end(), address), end; it != end; ++it) {
    EXPECT_TRUE(it->str().starts_with("http://www.w3.org/2000/svg") ||
                it->str().starts_with("http://www.w3.org/1998/Math/MathML")) << it->str();
  }
}

TEST(Page, IsNowhereWithoutIt) {
  FakeEngine engine;
  Config config;
  config.webui = false;
  RunningServer server(engine, config);
  for (const char* path : {"/", "/docs"}) {
    const HttpReply reply = ask(server, path);
    EXPECT_EQ(reply.status, 404) << path;
    EXPECT_EQ(reply.header("Content-Type"), "application/json");
  }
  EXPECT_EQ(ask(server, "/openapi.json").status, 200);
}

}  // namespace
}  // namespace sluice
