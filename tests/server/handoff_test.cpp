// SPDX-License-Identifier: Apache-2.0
// Handoffs over HTTP: what routers ask before the first request, the answer of a prefill worker,
// and that a request is answered all the same where nothing is handed over.
#include <gtest/gtest.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "server/front/kv_params.h"
#include "tests/server/running_server.h"
#include "tests/support/captured_log.h"

namespace sluice {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kOfferHalf =
    R"(,"max_tokens":1,"min_tokens":1,"kv_transfer_params":{"do_remote_decode":true,)"
    R"("do_remote_prefill":false,"remote_engine_id":null,"remote_block_ids":null})";

class HandoffServer : public ::testing::Test {
 protected:
  HttpReply ask(const std::string& method,
                const std::string& path,
                const std::string& body = {},
                const std::string& headers = {}) {
    if (server_ == nullptr) server_ = std::make_unique<RunningServer>(engine_, config_);
    HttpClient client(server_->port());
    client.request(method, path, body, headers);
    return client.read_reply();
  }

  Json ok(const std::string& path, const std::string& body) {
    const HttpReply reply = ask(body.empty() ? "GET" : "POST", path, body);
    EXPECT_EQ(reply.status, 200) << path << body << reply.body;
    return reply.status == 200 ? Json::parse(reply.body) : Json::object();
  }

  double fallbacks(const std::string& reason) {
    const std::string text = ask("GET", "/metrics").body;
    const size_t at = text.find("sluice_handoff_fallbacks_total{", 0);
    const size_t label = text.find("reason=\"" + reason + "\"} ", at);
    EXPECT_NE(label, std::string::npos) << reason;
    return label == std::string::npos ? -1 : std::stod(text.substr(text.find("} ", label) + 2));
  }

  void give_peers() {
    engine_.editable_model().handoff = HandoffInfo{.epoch = 0x11, .host = "10.1.2.3", .port = 77};
  }

  FakeEngine engine_;
  Config config_;
  std::unique_ptr<RunningServer> server_;
};

TEST_F(HandoffServer, WithoutPeersAnOfferIsAnOrdinaryAnswerAndCounted) {
  const Json chat = ok(kChatPath, chat_body(kOfferHalf));
  EXPECT_FALSE(chat.contains("kv_transfer_params"));
  EXPECT_EQ(chat["usage"]["completion_tokens"], 1);
  EXPECT_EQ(chat["usage"]["prompt_tokens_details"]["cached_tokens"], 3);
  EXPECT_EQ(fallbacks("no_handoff"), 1);
  EXPECT_FALSE(engine_.submitted().front().handoff.has_value());
  // What another engine's worker answered with changes nothing either.
  ok(kChatPath,
     chat_body(R"(,"kv_transfer_params":{"do_remote_prefill":true,"remote_host":"h",)"
               R"("remote_port":5600,"remote_engine_id":"e","remote_block_ids":[[1,2]]})"));
  EXPECT_EQ(fallbacks("foreign_blob"), 1);
  EXPECT_EQ(fallbacks("no_handoff"), 1);
}

TEST_F(HandoffServer, AReasonIsLoggedOnceAMinute) {
  const std::string log = logged_by([&] {
    for (int i = 0; i < 3; ++i) ok(kChatPath, chat_body(kOfferHalf));
  });
  const size_t first = log.find("handoff_fallback reason=no_handoff so_far=1");
  ASSERT_NE(first, std::string::npos) << log;
  EXPECT_EQ(log.find("handoff_fallback", first + 1), std::string::npos) << log;
  EXPECT_EQ(fallbacks("no_handoff"), 3);
}

TEST_F(HandoffServer, RenderingCountsNothing) {
  ok("/v1/chat/completions/render", chat_body(kOfferHalf));
  EXPECT_EQ(fallbacks("no_handoff"), 0);
}

TEST_F(HandoffServer, AnOfferIsInTheAnswerOfEachApi) {
  give_peers();
  const std::string offer = kOfferHalf;
  const Json answers[] = {
      ok(kChatPath, chat_body(offer)),
      ok(kCompletionPath, R"({"prompt":"Hello")" + offer + "}"),
      ok("/v1/responses",
         R"({"input":"Hi","max_output_tokens":1)" + offer.substr(offer.find(",\"kv_")) + "}")};
  const auto requests = engine_.submitted();
  for (size_t i = 0; i < std::size(answers); ++i) {
    const Json& params = answers[i]["kv_transfer_params"];
    ASSERT_TRUE(params.is_object()) << answers[i];
    EXPECT_EQ(params["remote_host"], "10.1.2.3");
    const Json& own = params["sluice"];
    EXPECT_EQ(own["addr"], "10.1.2.3:77");
    EXPECT_EQ(own["fingerprint"], "fp_fake");
    EXPECT_EQ(own["tokens"], requests[i].prompt.size());
    EXPECT_EQ(own["prompt_digest"], prompt_digest(requests[i].prompt));
    EXPECT_EQ(own["first_token"], 'H');
  }
  EXPECT_EQ(fallbacks("no_handoff"), 0);
}

TEST_F(HandoffServer, TheDecodeHalfGetsThatOfferWithTheRequest) {
  give_peers();
  const Json answer = ok(kCompletionPath, R"({"prompt":"Hello")" + std::string(kOfferHalf) + "}");
  const std::string blob = answer["kv_transfer_params"].dump();
  ok(kCompletionPath, R"({"prompt":"Hello","kv_transfer_params":)" + blob + "}");
  const auto requests = engine_.submitted();
  ASSERT_EQ(requests.size(), 2U);
  ASSERT_TRUE(requests[1].handoff.has_value());
  EXPECT_EQ(requests[1].handoff->kind, HandoffKind::kFetch);
  EXPECT_EQ(requests[1].handoff->peer, "10.1.2.3:77");
  EXPECT_EQ(requests[1].handoff->result->first_token, 'H');
  EXPECT_EQ(requests[1].sampling.seed, requests[0].sampling.seed);
  ok(kCompletionPath, R"({"prompt":"Jello","kv_transfer_params":)" + blob + "}");
  EXPECT_EQ(fallbacks("wrong_prompt"), 1);
  ok(kCompletionPath,
     R"({"prompt":"Hello","prompt_logprobs":1,"kv_transfer_params":)" + blob + "}");
  EXPECT_EQ(fallbacks("scores_prompt"), 1);
}

TEST_F(HandoffServer, StreamsEndWithoutAnOffer) {
  give_peers();
  const HttpReply reply =
      ask("POST", kChatPath, chat_body(R"(,"stream":true)" + std::string(kOfferHalf)));
  EXPECT_EQ(reply.status, 200);
  EXPECT_EQ(reply.body.find("kv_transfer_params"), std::string::npos);
  EXPECT_NE(reply.body.find("data: [DONE]"), std::string::npos);
}

TEST_F(HandoffServer, ARoomIsTakenByBothHalves) {
  config_.role = "prefill";
  const Json answer =
      ok(kChatPath,
         chat_body(
             R"(,"bootstrap_host":"p","bootstrap_port":8998,"bootstrap_room":17,"max_tokens":9)"));
  EXPECT_EQ(answer["usage"]["completion_tokens"], 1);
  EXPECT_EQ(fallbacks("no_handoff"), 1);
}

TEST_F(HandoffServer, TellsRoutersItsRoleAndItsName) {
  config_.kv_transfer_config =
      R"({"kv_connector":"MooncakeConnector","kv_role":"kv_consumer","engine_id":"abc"})";
  EXPECT_EQ(ok("/query", "")["0"]["engine_id"], "abc");
  for (const char* path : {"/server_info", "/get_server_info"}) {
    const Json info = ok(path, "");
    EXPECT_EQ(info["disaggregation_mode"], "decode");
    EXPECT_EQ(info["served_model_name"], "fake");
    EXPECT_EQ(info["tp_size"], 1);
  }
  for (const char* path : {"/model_info", "/get_model_info"}) {
    EXPECT_EQ(ok(path, "")["model_path"], "fake");
    EXPECT_EQ(ok(path, "")["is_generation"], true);
  }
}

TEST_F(HandoffServer, TheNameHasThePlaceWherePeersReachIt) {
  give_peers();
  const std::string name = ok("/query", "")["0"]["engine_id"];
  EXPECT_TRUE(name.ends_with("@10.1.2.3:77")) << name;
  EXPECT_EQ(ok("/server_info", "")["disaggregation_mode"], "null");
  EXPECT_EQ(ok("/server_info", "")["disaggregation_bootstrap_port"], 77);
}

TEST_F(HandoffServer, AnotherRoleThanItsJsonIsRefusedAtStart) {
  config_.role = "prefill";
  config_.kv_transfer_config = R"({"kv_connector":"NixlConnector","kv_role":"kv_consumer"})";
  const auto server = HttpServer::create(config_, engine_);
  ASSERT_FALSE(server.has_value());
  EXPECT_NE(server.error().message.find("kv_role is kv_consumer"), std::string::npos);
}

// Sidecars put a name of their own behind the client's, in a line of its own or in the same.
TEST_F(HandoffServer, OfSeveralNamesOfARequestTheFirstCounts) {
  const auto name = [&](const std::string& headers) {
    return ask("POST", kChatPath, chat_body(), headers).header("X-Request-Id");
  };
  EXPECT_EQ(name("x-request-id: mine\r\nx-request-id: 8d1f\r\n"), "mine");
  EXPECT_EQ(name("x-request-id: mine, 8d1f\r\n"), "mine");
  const std::string routed = "___prefill_addr_" + std::string(100, 'p') +
                             ".svc:8000___decode_addr_" + std::string(100, 'd') + ".svc:8000_" +
                             std::string(32, '0');
  EXPECT_EQ(name("x-request-id: " + routed + "\r\n"), routed);
}

}  // namespace
}  // namespace sluice
