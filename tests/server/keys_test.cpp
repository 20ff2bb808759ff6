// SPDX-License-Identifier: Apache-2.0
// Keys from a file, and what each may take.
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "server/keys/auth.h"
#include "server/keys/file_watch.h"
#include "tests/server/running_server.h"
#include "tests/support/temporary_folder.h"

namespace sluice {
namespace {

using std::chrono::seconds;

const Tenant::Clock::time_point kStart = Tenant::Clock::time_point(seconds(1000));

TEST(Tenant, RequestsPerMinuteRefillAndTheRetryTimeHolds) {
  Tenant tenant("a", 1, {.requests_per_minute = 2});
  EXPECT_TRUE(tenant.admit(10, kStart));
  EXPECT_TRUE(tenant.admit(10, kStart));
  const auto refused = tenant.admit(10, kStart + seconds(1));
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, ErrorCode::kResourceExhausted);
  EXPECT_EQ(refused.error().retry_after_s, 29);
  EXPECT_EQ(refused.error().message,
            "Rate limit reached for API key 'a': 2 requests per minute. Try again in 29 s.");
  EXPECT_FALSE(tenant.admit(10, kStart + seconds(29)));
  EXPECT_TRUE(tenant.admit(10, kStart + seconds(30)));
  // Not more than a minute's worth is saved up.
  EXPECT_TRUE(tenant.admit(1, kStart + seconds(10'000)));
  EXPECT_TRUE(tenant.admit(1, kStart + seconds(10'000)));
  EXPECT_FALSE(tenant.admit(1, kStart + seconds(10'000)));
}

TEST(Tenant, TokensAreOwedAndPaidBack) {
  Tenant tenant("a", 1, {.tokens_per_minute = 60});
  EXPECT_TRUE(tenant.admit(100, kStart));  // 40 owed
  tenant.finish(19);                       // 59
  const auto refused = tenant.admit(1, kStart);
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().retry_after_s, 60);
  EXPECT_FALSE(tenant.admit(1, kStart + seconds(59)));
  EXPECT_TRUE(tenant.admit(1, kStart + seconds(60)));
}

TEST(Tenant, ConcurrencyEndsWithTheRequest) {
  const auto tenant = std::make_shared<Tenant>("a", 1, TenantLimits{.concurrency = 1});
  ASSERT_TRUE(tenant->admit(1, kStart));
  {
    const TenantLease lease(tenant);
    EXPECT_EQ(tenant->admit(1, kStart).error().retry_after_s, 1);
  }
  EXPECT_TRUE(tenant->admit(1, kStart));
}

class KeyFile : public ::testing::Test {
 protected:
  KeyFile() { config_.api_key_file = path_; }

  void write(const std::string& text) const { std::ofstream(path_) << text; }

  std::string error(const std::string& text) {
    write(text);
    Authenticator authenticator(config_);
    const auto loaded = authenticator.load();
    return loaded ? std::string() : loaded.error().message;
  }

  static HttpRequest with_key(const std::string& key) {
    HttpRequest request;
    request.authorization = "Bearer " + key;
    return request;
  }

  const testing::TemporaryFolder folder_;
  const std::string path_ = folder_.at("keys");
  Config config_;
};

TEST_F(KeyFile, NamesKeysPlainAndHashed) {
  config_.api_key = {"given"};
  write(
      "# who may come in\n\nteam-a  sk-one  # plain\n"
      // printf sk-two | sha256sum
      "team-b\tsha256:5e31278545505db1d65bf1dd696e8eaa1edfb00ba455e21c83200c04ef643c91\r\n");
  Authenticator authenticator(config_);
  ASSERT_TRUE(authenticator.load().has_value());
  EXPECT_EQ(authenticator.find_tenant(with_key("sk-one"))->name(), "team-a");
  EXPECT_EQ(authenticator.find_tenant(with_key("given"))->name(), "key-1");
  EXPECT_EQ(authenticator.find_tenant(with_key("sk-two"))->name(), "team-b");
  EXPECT_EQ(authenticator.find_tenant(with_key("sk-none")), nullptr);
  EXPECT_EQ(authenticator.find_tenant(HttpRequest()), nullptr);
  HttpRequest other_header;
  other_header.api_key = "sk-one";
  EXPECT_EQ(authenticator.find_tenant(other_header)->name(), "team-a");
}

TEST_F(KeyFile, TheDigestOfNothingLetsNobodyIn) {
  // printf '' | sha256sum
  write("a sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855\n");
  Authenticator authenticator(config_);
  ASSERT_TRUE(authenticator.load().has_value());
  EXPECT_EQ(authenticator.find_tenant(HttpRequest()), nullptr);
  EXPECT_EQ(authenticator.find_tenant(with_key("")), nullptr);
}

TEST_F(KeyFile, AByteOrderMarkAndCrAreNoPartOfIt) {
  write(
      "\xEF\xBB\xBF"
      "a k1\r\nb k2 concurrency=2\r\n");
  Authenticator authenticator(config_);
  const auto loaded = authenticator.load();
  ASSERT_TRUE(loaded.has_value()) << loaded.error().message;
  ASSERT_NE(authenticator.find_tenant(with_key("k1")), nullptr);
  EXPECT_EQ(authenticator.find_tenant(with_key("k1"))->name(), "a");
  EXPECT_NE(authenticator.find_tenant(with_key("k2")), nullptr);
}

TEST_F(KeyFile, MistakesNameTheLineAndNeverTheKey) {
  const std::string at = "--api-key-file: '" + path_ + "' line ";
  EXPECT_EQ(error("a k1\nb\n"), at + "2: 'b' has no key.");
  EXPECT_EQ(error("a k1\na k2\n"), at + "2: the name 'a' again.");
  EXPECT_EQ(error("a k1\nb k1\n"), at + "2: the key of 'a' again.");
  EXPECT_EQ(error("a k1 concurrency=-1\n"), at + "1: concurrency must be an integer from 0.");
  EXPECT_NE(error("a k1 rate=5").find(at + "1: after name and key come"), std::string::npos);
  EXPECT_NE(error("a/b k1").find(at + "1: a name has"), std::string::npos);
  EXPECT_NE(error("a sha256:zz").find("64 hex digits"), std::string::npos);
  EXPECT_EQ(error("# nobody\n"), "--api-key-file: '" + path_ + "' has no key.");
  config_.api_key_file = "/nonexistent/keys";
  EXPECT_EQ(error(""),
            "--api-key-file: '/nonexistent/keys' cannot be read: No such file or directory.");
}

TEST_F(KeyFile, LimitsHoldPerKeyAndReloadKeepsWhatIsOwed) {
  config_.requests_per_minute_per_key = 1;
  write("a k1\nb k2 requests-per-minute=2\n");
  FakeEngine engine;
  RunningServer server(engine, config_);
  const auto ask = [&](const std::string& key) {
    HttpClient client(server.port());
    client.post(kChatPath, chat_body(), "Authorization: Bearer " + key + "\r\n");
    return client.read_reply();
  };
  EXPECT_EQ(ask("k1").status, 200);
  const HttpReply refused = ask("k1");
  EXPECT_EQ(refused.status, 429);
  EXPECT_EQ(refused.header("Retry-After"), "60");
  EXPECT_NE(refused.body.find("rate_limit_exceeded"), std::string::npos);
  EXPECT_EQ(ask("k2").status, 200);
  EXPECT_EQ(ask("k2").status, 200);
  EXPECT_EQ(ask("k2").status, 429);
  // Another key and the same name: the same tenant.
  write("a k3\nb k2 requests-per-minute=3\n");
  server->reload();
  EXPECT_EQ(ask("k1").status, 401);
  EXPECT_EQ(ask("k3").status, 429);
  EXPECT_EQ(ask("k2").status, 200);
  write("nonsense\n");
  server->reload();
  EXPECT_EQ(ask("k3").status, 429);
}

// A Secret in a pod: names are links to a folder's link, which the kubelet replaces in one step.
class KeySecret : public KeyFile {
 protected:
  KeySecret() : secret_(folder_.at("secret")) {
    std::filesystem::create_directory(secret_);
    publish("first", "a k1\n");
    std::filesystem::create_symlink("..data/keys", secret_ / "keys");
    config_.api_key_file = secret_ / "keys";
  }

  void publish(const std::string& version, const std::string& text) const {
    std::filesystem::create_directory(secret_ / version);
    std::ofstream(secret_ / version / "keys") << text;
    std::filesystem::create_symlink(version, secret_ / "..data_tmp");
    std::filesystem::rename(secret_ / "..data_tmp", secret_ / "..data");
  }

  const std::filesystem::path secret_;
};

int status_with(uint16_t port, const std::string& key) {
  HttpClient client(port);
  client.post(kChatPath, chat_body(), "Authorization: Bearer " + key + "\r\n");
  return client.read_reply().status;
}

TEST_F(KeySecret, ANewVersionIsReadWithoutASignal) {
  FakeEngine engine;
  RunningServer server(engine, config_);
  EXPECT_EQ(status_with(server.port(), "k1"), 200);
  publish("second", "a k2\n");
  server->reload_changed();  // may be half written
  EXPECT_EQ(status_with(server.port(), "k1"), 200);
  server->reload_changed();
  EXPECT_EQ(status_with(server.port(), "k1"), 401);
  EXPECT_EQ(status_with(server.port(), "k2"), 200);
  publish("third", "nonsense\n");
  server->reload_changed();
  server->reload_changed();
  EXPECT_EQ(status_with(server.port(), "k2"), 200);
  publish("fourth", "a k4\n");
  server->reload_changed();
  server->reload_changed();
  EXPECT_EQ(status_with(server.port(), "k4"), 200);
}

TEST_F(KeyFile, AChangeIsToldOnceWhenItHasSettled) {
  write("a k1\n");
  FileWatch watch({"", path_});
  EXPECT_FALSE(watch.has_changed());
  write("a k1\nb");
  EXPECT_FALSE(watch.has_changed());
  write("a k1\nb k2\n");
  EXPECT_FALSE(watch.has_changed());  // another change than the last look has seen
  EXPECT_TRUE(watch.has_changed());
  EXPECT_FALSE(watch.has_changed());
  std::filesystem::remove(path_);
  EXPECT_FALSE(watch.has_changed());
  EXPECT_TRUE(watch.has_changed());
  EXPECT_FALSE(watch.has_changed());
  write("a k1\n");
  EXPECT_FALSE(watch.has_changed());
  EXPECT_TRUE(watch.has_changed());
}

TEST_F(KeyFile, EachNameHasAShareOfTheEngineWhateverItsKey) {
  write("a k1\nb k2\n");
  FakeEngine engine;
  RunningServer server(engine, config_);
  const auto tenant_of = [&](const std::string& key) {
    HttpClient client(server.port());
    client.post(kChatPath, chat_body(), "Authorization: Bearer " + key + "\r\n");
    EXPECT_EQ(client.read_reply().status, 200);
    return engine.submitted().back().tenant;
  };
  const TenantId first = tenant_of("k1");
  EXPECT_NE(first, TenantId(0));
  EXPECT_NE(tenant_of("k2"), first);
  write("a k3\nb k2\n");
  server->reload();
  EXPECT_EQ(tenant_of("k3"), first);
}

TEST_F(KeyFile, ConcurrencyIsFreeAgainWhenTheAnswerHasCome) {
  write("a k1 concurrency=1\n");
  FakeEngine engine(FakeEngine::Stepping::kManual);
  RunningServer server(engine, config_);
  const std::string key = "Authorization: Bearer k1\r\n";
  HttpClient first(server.port());
  first.post(kChatPath, chat_body(R"(,"max_tokens":1)"), key);
  ASSERT_TRUE(eventually([&] { return engine.num_running() == 1; }));
  HttpClient second(server.port());
  second.post(kChatPath, chat_body(), key);
  EXPECT_EQ(second.read_reply().status, 429);
  engine.step();
  EXPECT_EQ(first.read_reply().status, 200);
  first.post(kChatPath, chat_body(R"(,"max_tokens":1)"), key);
  ASSERT_TRUE(eventually([&] { return engine.num_running() == 1; }));
  first.close();  // a client that leaves frees its place too
  ASSERT_TRUE(eventually([&] { return engine.num_aborted() == 1; }));
  HttpClient third(server.port());
  third.post(kChatPath, chat_body(R"(,"max_tokens":1)"), key);
  ASSERT_TRUE(eventually([&] { return engine.num_running() == 2; }));
  engine.step();
  EXPECT_EQ(third.read_reply().status, 200);
}

}  // namespace
}  // namespace sluice
