// SPDX-License-Identifier: Apache-2.0
// What pages of other servers can do with this one in a user's browser.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "server/http/cors.h"
#include "server/http/host_name.h"
#include "tests/server/running_server.h"

namespace sluice {
namespace {

struct Sent {
  std::string method;
  std::string path;
  std::string lines;  // of the header, each with its end
};

// Sends what a browser may send without a preflight.
HttpReply answer(RunningServer& server, const Sent& sent) {
  HttpClient client(server.port());
  const std::string body = sent.method == "POST" ? R"({"prompt":"x","max_tokens":1})" : "";
  client.send(sent.method + " " + sent.path + " HTTP/1.1\r\n" + sent.lines +
              "Content-Type: text/plain\r\nContent-Length: " + std::to_string(body.size()) +
              "\r\n\r\n" + body);
  return client.read_reply();
}

std::string host(const std::string& name) { return "Host: " + name + "\r\n"; }

std::string origin(const std::string& text) { return "Origin: " + text + "\r\n"; }

Config on(const std::string& address) {
  Config config;
  config.host = address;
  return config;
}

size_t num_run(const FakeEngine& engine) { return engine.submitted().size(); }

TEST(Origins, APageOfAnotherServerRunsNothing) {
  FakeEngine engine;
  RunningServer server(engine);
  for (const char* page : {"https://evil.example",
                           "http://evil.example:8000",
                           "null",
                           "file://",
                           "http://localhost.evil.example",
                           "http://127.0.0.1.evil.example",
                           "http://localhost@evil.example",
                           "http://[2001:db8::1]",
                           "http://10.0.0.1:3000",
                           "garbage"}) {
    for (const char* method : {"POST", "DELETE"}) {
      const bool posts = std::string(method) == "POST";
      const HttpReply reply = answer(server,
                                     {method,
                                      posts ? kCompletionPath : "/v1/responses/resp_1",
                                      host("localhost:8000") + origin(page)});
      EXPECT_EQ(reply.status, 403) << method << " " << page;
      EXPECT_NE(reply.body.find("--allowed-origins"), std::string::npos) << reply.body;
      EXPECT_EQ(reply.header("Access-Control-Allow-Origin"), "") << page;
    }
    const HttpReply preflight = answer(
        server,
        {"OPTIONS",
         kChatPath,
         host("localhost") + origin(page) + "Access-Control-Request-Method: POST\r\n"});
    EXPECT_EQ(preflight.header("Access-Control-Allow-Origin"), "") << page;
    EXPECT_EQ(preflight.header("Access-Control-Allow-Methods"), "") << page;
    const HttpReply read =
        answer(server, {"GET", "/debug/state", host("127.0.0.1") + origin(page)});
    EXPECT_EQ(read.header("Access-Control-Allow-Origin"), "") << "the browser keeps it: " << page;
  }
  EXPECT_EQ(num_run(engine), 0U);
}

TEST(Origins, PagesOfThisMachineAndOfTheServerAskAsTheyLike) {
  FakeEngine engine;
  RunningServer server(engine);
  for (const char* page : {"http://localhost:3000",
                           "http://LOCALHOST:3000",
                           "http://localhost.:3000",
                           "https://app.localhost",
                           "http://127.0.0.1:5173",
                           "http://127.8.8.8",
                           "http://[::1]:3000",
                           "http://[::ffff:127.0.0.1]",
                           "tauri://localhost"}) {
    const HttpReply reply =
        answer(server, {"POST", kCompletionPath, host("127.0.0.1:8000") + origin(page)});
    EXPECT_EQ(reply.status, 200) << page;
    EXPECT_EQ(reply.header("Access-Control-Allow-Origin"), page);
    const HttpReply preflight = answer(server,
                                       {"OPTIONS",
                                        kChatPath,
                                        host("127.0.0.1:8000") + origin(page) +
                                            "Access-Control-Request-Headers: content-type\r\n"});
    EXPECT_EQ(preflight.header("Access-Control-Allow-Headers"), "content-type") << page;
  }
  // The page at /, by each name that may be in the bar of the browser.
  for (const char* name : {"192.168.1.7:8000", "[fe80::1]:8000", "my-laptop:8000", "box.local"}) {
    const std::string both = host(name) + origin("http://" + std::string(name));
    EXPECT_EQ(answer(server, {"GET", "/", host(name)}).status, 200) << name;
    EXPECT_EQ(answer(server, {"POST", kCompletionPath, both}).status, 200) << name;
  }
}

TEST(Origins, ANameThatWasTurnedToThisMachineIsNoNameOfIt) {
  FakeEngine engine;
  for (const char* bound : {"127.0.0.1", "localhost"}) {
    RunningServer server(engine, on(bound));
    const size_t before = num_run(engine);
    for (const char* name : {"evil.example",
                             "evil.example:8000",
                             "EVIL.example.",
                             "localhost.evil.example",
                             "127.0.0.1.evil.example:80",
                             "evil.example@localhost",
                             "localhost:80:evil.example"}) {
      for (const char* path : {"/v1/models", "/debug/state", "/v1/responses/resp_1"}) {
        const HttpReply reply = answer(server, {"GET", path, host(name)});
        EXPECT_EQ(reply.status, 403) << name << path;
        EXPECT_NE(reply.body.find("--allowed-hosts"), std::string::npos) << reply.body;
      }
      const std::string page = host(name) + origin("http://" + std::string(name));
      EXPECT_EQ(answer(server, {"POST", kCompletionPath, page}).status, 403) << name;
      EXPECT_EQ(answer(server, {"DELETE", "/v1/responses/resp_1", page}).status, 403) << name;
    }
    EXPECT_EQ(num_run(engine), before);
  }
}

TEST(Origins, ProgramsAreServedUnderEveryNameThatTheyUse) {
  FakeEngine engine;
  const std::vector<std::string> usual = {"localhost",
                                          "LocalHost:8000",
                                          "localhost.:8000",
                                          "127.0.0.1:1",
                                          "[::1]:8000",
                                          "[fe80::1%25eth0]:8000",
                                          "0.0.0.0:8000",
                                          "10.1.2.3",
                                          "sluice:8000",
                                          "sluice_1",
                                          "host.docker.internal:8000",
                                          "sluice.default.svc:8000",
                                          "sluice.default.svc.cluster.local.",
                                          ""};
  RunningServer local(engine);
  for (const std::string& name : usual) {
    EXPECT_EQ(answer(local, {"GET", "/v1/models", host(name)}).status, 200) << name;
  }
  // A proxy on the same machine hands on what is said outside; no page sends a POST so.
  EXPECT_EQ(answer(local, {"POST", kCompletionPath, host("llm.example.com")}).status, 200);
  for (const char* open : {"/health", "/metrics", "/version", "/"}) {
    EXPECT_EQ(answer(local, {"GET", open, host("llm.example.com")}).status, 200) << open;
  }
  RunningServer cluster(engine, on("0.0.0.0"));
  for (const char* name : {"sluice.default.svc:8000", "sluice.default", "llm.example.com"}) {
    EXPECT_EQ(answer(cluster, {"GET", "/v1/models", host(name)}).status, 200) << name;
    EXPECT_EQ(answer(cluster, {"POST", kCompletionPath, host(name)}).status, 200) << name;
    const std::string page = host(name) + origin("http://" + std::string(name));
    EXPECT_EQ(answer(cluster, {"POST", kCompletionPath, page}).status, 200) << "its page: " << name;
  }
  // Behind a proxy that ends TLS, with and without a Host of the proxy's own.
  const std::string page = origin("https://llm.example.com");
  EXPECT_EQ(answer(cluster, {"POST", kCompletionPath, host("llm.example.com") + page}).status, 200);
  const std::string renamed = host("10.0.0.2") + page + "Sec-Fetch-Site: ";
  EXPECT_EQ(answer(cluster, {"POST", kCompletionPath, renamed + "same-origin\r\n"}).status, 200);
  EXPECT_EQ(answer(cluster, {"POST", kCompletionPath, renamed + "cross-site\r\n"}).status, 403);
}

TEST(Origins, NamesThatAreListedAreTakenAndOthersAreNotWhereverItListens) {
  FakeEngine engine;
  for (const char* bound : {"127.0.0.1", "0.0.0.0"}) {
    Config config = on(bound);
    config.allowed_hosts = {"LLM.example.com", "*.apps.example.com"};
    RunningServer server(engine, config);
    for (const char* name : {"llm.example.com", "Llm.Example.Com:443", "a.b.apps.example.com"}) {
      EXPECT_EQ(answer(server, {"GET", "/v1/models", host(name)}).status, 200) << name;
      const std::string page = host(name) + origin("https://evil.example");
      EXPECT_EQ(answer(server, {"POST", kCompletionPath, page}).status, 403) << name;
    }
    for (const char* name : {"evil.example", "apps.example.com", "llm.example.com.evil.example"}) {
      EXPECT_EQ(answer(server, {"GET", "/v1/models", host(name)}).status, 403) << name;
    }
  }
  Config config;
  config.allowed_hosts = {"*"};
  RunningServer server(engine, config);
  EXPECT_EQ(answer(server, {"GET", "/v1/models", host("any.example")}).status, 200);
}

TEST(Origins, OnesThatAreListedAreTheOnlyOthers) {
  FakeEngine engine;
  Config config;
  config.allowed_origins = {"https://App.example/", "null"};
  RunningServer server(engine, config);
  const auto status = [&](const std::string& page, const std::string& name = "127.0.0.1") {
    return answer(server, {"POST", kCompletionPath, host(name) + origin(page)}).status;
  };
  EXPECT_EQ(status("https://app.example"), 200);
  EXPECT_EQ(status("https://app.example", "llm.example.com"), 200) << "through a proxy";
  EXPECT_EQ(status("null"), 200) << "somebody wants files to ask";
  EXPECT_EQ(status("http://app.example"), 403) << "another scheme";
  EXPECT_EQ(status("https://app.example:8443"), 403) << "another port";
  EXPECT_EQ(status("http://localhost:3000"), 403) << "a list is the whole list";
  EXPECT_EQ(status("http://127.0.0.1"), 200) << "its own page";
}

TEST(Origins, AnyMayWhereThatIsAskedForOrAKeyKeepsThemOut) {
  FakeEngine engine;
  Config open;
  open.allowed_origins = {"*"};
  RunningServer server(engine, open);
  const std::string page = host("evil.example") + origin("http://evil.example");
  EXPECT_EQ(answer(server, {"POST", kCompletionPath, page}).status, 200);
  EXPECT_EQ(answer(server, {"GET", "/v1/models", host("evil.example")}).status, 200);
  Config keyed;
  keyed.api_key = {"secret"};
  RunningServer guarded(engine, keyed);
  EXPECT_EQ(answer(guarded, {"POST", kCompletionPath, page}).status, 401);
  const HttpReply reply =
      answer(guarded, {"POST", kCompletionPath, page + "Authorization: Bearer secret\r\n"});
  EXPECT_EQ(reply.status, 200);
  EXPECT_EQ(reply.header("Access-Control-Allow-Origin"), "*");
  keyed.allowed_origins = {"https://app.example"};
  RunningServer listed(engine, keyed);
  EXPECT_EQ(answer(listed, {"POST", kCompletionPath, page + "Authorization: Bearer secret\r\n"})
                .status,
            200)
      << "its own page by that name";
  EXPECT_EQ(answer(listed,
                   {"POST",
                    kCompletionPath,
                    host("llm.example") + origin("http://evil.example") +
                        "Authorization: Bearer secret\r\n"})
                .status,
            403);
}

TEST(Origins, CredentialsGoToNoneThatNobodyNamed) {
  Config config;
  config.allow_credentials = true;
  const std::string lines = CorsPolicy(config).header_lines("http://localhost:3000");
  EXPECT_NE(lines.find("Access-Control-Allow-Origin: http://localhost:3000\r\n"), std::string::npos);
  EXPECT_EQ(lines.find("Credentials"), std::string::npos) << lines;
}

TEST(Origins, ARefusalSaysNothingThatIsNoText) {
  FakeEngine engine;
  RunningServer server(engine);
  const std::string bytes = host("localhost") + origin("http://\xff\xfe");
  const HttpReply reply = answer(server, {"POST", kCompletionPath, bytes});
  EXPECT_EQ(reply.status, 403);
  EXPECT_NE(reply.body.find("that is not text"), std::string::npos) << reply.body;
}

TEST(HostName, PartsAreAsABrowserMeansThem) {
  EXPECT_EQ(parse_authority("A.b.:80"), (Authority{"a.b", "80"}));
  EXPECT_EQ(parse_authority("[::1]:8000"), (Authority{"::1", "8000"}));
  EXPECT_EQ(parse_authority("[FE80::1%25eth0]"), (Authority{"fe80::1", ""}));
  EXPECT_EQ(authority_of_origin("https://a:443"), (Authority{"a", ""}));
  EXPECT_EQ(authority_of_origin("http://a:443"), (Authority{"a", "443"}));
  for (const char* text : {"null", "", "file://", "a.example"}) {
    EXPECT_FALSE(authority_of_origin(text)) << text;
  }
}

}  // namespace
}  // namespace sluice
