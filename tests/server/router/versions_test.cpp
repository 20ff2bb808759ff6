// SPDX-License-Identifier: Apache-2.0
// A router over workers of several fingerprints, as they are during an update.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "server/router/remote_engine.h"
#include "tests/server/grpc_client.h"
#include "tests/server/router/router_bed.h"

namespace sluice {
namespace {

using testing::Collected;
using testing::CollectingSink;
using testing::kHelloAndEnd;
using testing::num_lost;
using testing::request_of;
using testing::Router;
using testing::step_until;
using testing::TestWorker;
using testing::text_of;
using Json = nlohmann::json;

constexpr auto kAutomatic = FakeEngine::Stepping::kAutomatic;

// Ends the worker and starts another version of it at its address.
void update(TestWorker& worker, const std::string& fingerprint) {
  worker.stop();
  worker->editable_model().system_fingerprint = fingerprint;
  worker.start_again();
}

double share_of(const Router& router, const std::string& fingerprint) {
  for (const FingerprintStats& version : router.stats().fingerprints) {
    if (version.fingerprint == fingerprint) return version.share;
  }
  return -1;
}

bool differs(const Router& router, const TestWorker& worker) {
  for (const WorkerStats& stats : router.stats().workers) {
    if (stats.address == worker.address()) return stats.differs;
  }
  ADD_FAILURE() << "not known";
  return false;
}

TEST(Versions, WhenTheLastOldWorkerHasGoneTheNewVersionIsServed) {
  TestWorker worker(kAutomatic);
  CollectingSink sink;
  Router router({&worker});
  EXPECT_EQ(text_of(sink.wait(router.submit(sink, request_of()))), kHelloAndEnd);
  update(worker, "fp_new");
  ASSERT_TRUE(eventually([&] { return share_of(router, "fp_new") == 1; }));
  EXPECT_EQ(text_of(sink.wait(router.submit(sink, request_of()))), kHelloAndEnd);
  const auto versions = router->versions();
  ASSERT_EQ(versions.size(), 1U);
  EXPECT_EQ(versions[0]->model().system_fingerprint, "fp_new");
  EXPECT_EQ(&versions[0]->tokenizer(), &router->tokenizer()) << "equal files make one tokenizer";
}

TEST(Versions, NewRequestsGoToTheNewVersionOnceEnoughOfItIsReadyAndStreamsStayWithTheirs) {
  TestWorker first;
  TestWorker second;
  TestWorker third;
  CollectingSink sink;
  Config config;
  config.worker_wait_s = 1;
  Router router({&first, &second, &third}, config);
  const RequestId stream = router.submit(sink, request_of());
  step_until({&first, &second, &third}, sink, stream, 2);
  std::vector<TestWorker*> others = {&first, &second, &third};
  std::erase_if(others, [](TestWorker* worker) { return (*worker)->num_running() > 0; });
  ASSERT_EQ(others.size(), 2U);
  TestWorker& old = first->num_running() > 0 ? first : second->num_running() > 0 ? second : third;

  std::this_thread::sleep_for(std::chrono::milliseconds(1100));  // `created` counts seconds
  update(*others[0], "fp_new");
  ASSERT_TRUE(eventually([&] { return differs(router, *others[0]); }));
  ASSERT_TRUE(eventually([&] { return router.num_usable() == 3; }));
  EXPECT_EQ(share_of(router, "fp_fake"), 1) << "one of three is too few";
  update(*others[1], "fp_new");
  ASSERT_TRUE(eventually([&] { return share_of(router, "fp_new") == 1; }));
  EXPECT_EQ(share_of(router, "fp_fake"), 0);
  EXPECT_TRUE(differs(router, old));
  EXPECT_FALSE(differs(router, *others[0]));

  std::vector<RequestId> later;
  for (int i = 0; i < 6; ++i) later.push_back(router.submit(sink, request_of()));
  ASSERT_TRUE(
      eventually([&] { return (*others[0])->num_running() + (*others[1])->num_running() == 6; }));
  EXPECT_EQ(old->num_running(), 1U);
  old->step();
  EXPECT_EQ(text_of(sink.wait_tokens(stream, 3)), "Hel");

  // Without a worker of its fingerprint the stream ends with an error, and never elsewhere.
  old.stop();
  const Collected cut = sink.wait(stream);
  EXPECT_EQ(cut.finish_reason, FinishReason::kError);
  EXPECT_EQ(cut.error_code, ErrorCode::kUnavailable);
  EXPECT_EQ(cut.tokens.size(), 3U);
  for (int i = 0; i < 6; ++i) {
    for (TestWorker* worker : others) (*worker)->step();
  }
  for (const RequestId id : later) EXPECT_EQ(text_of(sink.wait(id)), kHelloAndEnd);
}

TEST(Versions, AStreamGoesOnAtAnotherWorkerOfItsOwnVersionOnly) {
  TestWorker first;
  TestWorker second;
  TestWorker other;
  other->editable_model().system_fingerprint = "fp_other";
  CollectingSink sink;
  Config config;
  config.route_shares = {"fp_other=0"};
  Router router({&first, &second, &other}, config);
  const RequestId stream = router.submit(sink, request_of());
  step_until({&first, &second, &other}, sink, stream, 2);
  TestWorker& lost = first->num_running() > 0 ? first : second;
  TestWorker& left = &lost == &first ? second : first;
  lost.stop();
  ASSERT_TRUE(eventually([&] { return left->num_running() == 1; }));
  for (int i = 0; i < 4; ++i) left->step();
  EXPECT_EQ(text_of(sink.wait(stream)), kHelloAndEnd);
  EXPECT_EQ(other->submitted().size(), 0U);
}

TEST(Versions, ACanaryGetsItsShare) {
  TestWorker usual(kAutomatic);
  TestWorker canary(kAutomatic);
  canary->editable_model().system_fingerprint = "fp_canary";
  CollectingSink sink;
  Config config;
  config.route_shares = {"fp_canary=0.25"};
  Router router({&usual, &canary}, config);
  ASSERT_TRUE(eventually([&] { return share_of(router, "fp_canary") == 0.25; }));
  for (int i = 0; i < 40; ++i) {
    EXPECT_EQ(text_of(sink.wait(router.submit(sink, request_of()))), kHelloAndEnd);
  }
  EXPECT_NEAR(static_cast<double>(canary->submitted().size()), 10, 3);
  EXPECT_FALSE(differs(router, canary)) << "it is meant to be another";
}

TEST(Versions, PrefillWorkersServeDecodeWorkersOfTheirOwnVersionOnly) {
  TestWorker prefill(kAutomatic);
  TestWorker decode(kAutomatic);
  prefill->editable_model().handoff =
      HandoffInfo{.epoch = 77, .host = "127.0.0.1", .port = 7001, .offers = true, .fetches = false};
  decode->editable_model().handoff =
      HandoffInfo{.epoch = 78, .host = "127.0.0.1", .port = 7002, .offers = false, .fetches = true};
  prefill->editable_model().system_fingerprint = "fp_new";
  CollectingSink sink;
  Config config;
  config.handoff_min_tokens = 1;
  Router router({&prefill, &decode}, config);
  ASSERT_TRUE(eventually([&] { return share_of(router, "fp_fake") == 1; }))
      << "a version that has prefill workers alone waits for those that answer";
  EXPECT_EQ(text_of(sink.wait(router.submit(sink, request_of()))), kHelloAndEnd);
  EXPECT_EQ(router.stats().num_handoffs, 0U);
  EXPECT_EQ(prefill->submitted().size(), 0U);
  ASSERT_EQ(decode->submitted().size(), 1U);
  EXPECT_FALSE(decode->submitted()[0].handoff.has_value());
}

TEST(Versions, ATokenizerThatDoesNotFitIsOneVersionsFault) {
  TestWorker worker(kAutomatic);
  TestWorker broken(kAutomatic);
  CollectingSink sink;
  Router router({&worker, &broken});
  broken->editable_model().vocab_size = 10;
  update(broken, "fp_broken");
  ASSERT_TRUE(eventually([&] { return differs(router, broken); }));
  EXPECT_EQ(share_of(router, "fp_broken"), -1);
  for (int i = 0; i < 8; ++i) {
    EXPECT_EQ(text_of(sink.wait(router.submit(sink, request_of()))), kHelloAndEnd);
  }
  EXPECT_EQ(broken->submitted().size(), 0U);
}

// Two models behind one router, over HTTP.
TEST(Versions, EachModelIsServedUnderItsOwnNameTemplateAndFingerprint) {
  TestWorker first(kAutomatic);
  TestWorker second(kAutomatic);
  second->editable_model().system_fingerprint = "fp_second";
  second->editable_model().path = "/models/second.gguf";
  second->editable_model().max_model_len = 256;
  second->editable_model().chat_template = "second{{ messages[0].content }}";
  Config config;
  config.route_shares = {"fp_second=0.4"};
  CollectingSink unused;
  Router router({&first, &second}, config);
  ASSERT_TRUE(eventually([&] { return share_of(router, "fp_second") == 0.4; }));
  RunningServer server(*router, {}, RunningServer::Names::kOfConfig);
  HttpClient client(server.port());
  client.get("/v1/models");
  const Json models = Json::parse(client.read_reply().body);
  ASSERT_EQ(models["data"].size(), 2U);
  EXPECT_EQ(models["data"][0]["id"], "fake");
  EXPECT_EQ(models["data"][1]["id"], "second");
  EXPECT_EQ(models["data"][1]["max_model_len"], 256);
  const auto ask = [&](const std::string& name) {
    client.post(kChatPath, chat_body(",\"model\":\"" + name + "\""));
    const HttpReply reply = client.read_reply();
    return reply.status == 200 ? Json::parse(reply.body)["system_fingerprint"].get<std::string>()
                               : std::to_string(reply.status);
  };
  for (int i = 0; i < 10; ++i) {
    EXPECT_EQ(ask("fake"), "fp_fake");
    EXPECT_EQ(ask("second"), "fp_second");
  }
  EXPECT_EQ(ask("third"), "404");
  const std::vector<TokenId> prompt = second->submitted().back().prompt;
  EXPECT_EQ(std::string(prompt.begin(), prompt.end()), "secondHi");
}

// Two workers of one version and one of another, which gets no requests while the two are there.
struct Leaving {
  Leaving() {
    next->editable_model().system_fingerprint = "fp_next";
    config.route_min_ready = "2";
    config.worker_wait_s = 30;  // longer than any request waits
  }

  TestWorker first{kAutomatic};
  TestWorker second{kAutomatic};
  TestWorker next{kAutomatic};
  Config config;
  CollectingSink unused;
};

constexpr std::chrono::seconds kAtOnce{10};  // far from --worker-wait-s, also on a busy machine

// Requests that were read for a version come until it takes none; its workers end meanwhile.
TEST(Versions, RequestsThatComeJustWhenTheirVersionLeavesDoNotWaitForIt) {
  TestWorker first;
  TestWorker second;
  TestWorker next(kAutomatic);
  next->editable_model().system_fingerprint = "fp_next";
  CollectingSink sink;
  Config config;
  config.route_min_ready = "2";
  config.worker_wait_s = 30;
  Router router({&first, &second, &next}, config);
  ASSERT_TRUE(eventually([&] { return share_of(router, "fp_fake") == 1; }));
  const auto old = router->versions().front();
  ASSERT_EQ(old->model().system_fingerprint, "fp_fake");
  std::thread leaving([&] {
    first.stop();
    second.stop();
  });
  std::vector<RequestId> ids;
  Expected<RequestId> id = old->submit(request_of(), sink);
  for (; id && ids.size() < 10'000; id = old->submit(request_of(), sink)) {
    ids.push_back(*id);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  leaving.join();
  ASSERT_FALSE(id) << "it goes on to take requests";
  EXPECT_EQ(id.error().code, ErrorCode::kUnavailable);
  const auto start = std::chrono::steady_clock::now();
  for (const RequestId one : ids) {
    const Collected ended = sink.wait(one);
    EXPECT_EQ(ended.finish_reason, FinishReason::kError);
    EXPECT_EQ(ended.error_code, ErrorCode::kUnavailable) << "the front end reads it again";
  }
  EXPECT_LT(std::chrono::steady_clock::now() - start, kAtOnce);
}

TEST(Versions, ARequestThatMovesCountsOnceInItsKeysLimitsAndIsNotLost) {
  for (const bool is_call : {false, true}) {
    Leaving cluster;
    Router router({&cluster.first, &cluster.second, &cluster.next}, cluster.config);
    ASSERT_TRUE(eventually([&] { return share_of(router, "fp_fake") == 1; }));
    Config config = grpc_config();
    config.api_key = {"secret"};
    config.max_requests_per_key = 1;
    config.requests_per_minute_per_key = 2;
    RunningServer server(*router, config);
    const auto status_of_next = [&] {
      if (is_call) {
        GrpcClient client(server->grpc_port());
        grpc::ClientContext context;
        context.AddMetadata("authorization", "Bearer secret");
        v1::GenerationResponse response;
        return int{client.sluice->Chat(&context, chat_request(), &response).error_code()};
      }
      HttpClient client(server.port());
      client.post(kChatPath, chat_body(), "Authorization: Bearer secret\r\n");
      return client.read_reply().status;
    };
    cluster.first->drain();
    cluster.second->drain();
    const auto start = std::chrono::steady_clock::now();
    const int done = is_call ? int{grpc::StatusCode::OK} : 200;
    const int refused = is_call ? int{grpc::StatusCode::RESOURCE_EXHAUSTED} : 429;
    EXPECT_EQ(status_of_next(), done) << "it moves";
    EXPECT_LT(std::chrono::steady_clock::now() - start, kAtOnce);
    EXPECT_EQ(status_of_next(), done) << "the minute has another one";
    EXPECT_EQ(status_of_next(), refused);
    EXPECT_EQ(cluster.next->submitted().size(), 2U);
    EXPECT_EQ(num_lost(server), 0);
  }
}

// The router learns that its workers drain from their refusals.
TEST(Versions, ARequestWhoseVersionIsLeavingIsReadAgainForTheNextOne) {
  Leaving cluster;
  Router router({&cluster.first, &cluster.second, &cluster.next}, cluster.config);
  ASSERT_TRUE(eventually([&] { return router.num_usable() == 3; }));
  ASSERT_TRUE(eventually([&] { return share_of(router, "fp_fake") == 1; }));
  RunningServer server(*router);
  HttpClient client(server.port());
  cluster.first->drain();
  cluster.second->drain();
  for (const char* more : {"", R"(,"stream":true)", R"(,"n":3)"}) {
    client.post(kChatPath, chat_body(more));
    const HttpReply reply = client.read_reply();
    EXPECT_EQ(reply.status, 200) << reply.body;
    EXPECT_NE(reply.body.find("fp_next"), std::string::npos) << reply.body;
    EXPECT_EQ(reply.body.find("fp_fake"), std::string::npos) << reply.body;
  }
  EXPECT_EQ(cluster.first->submitted().size() + cluster.second->submitted().size(), 0U);
}

TEST(Versions, ACallWhoseVersionIsLeavingIsReadAgainForTheNextOne) {
  Leaving cluster;
  Router router({&cluster.first, &cluster.second, &cluster.next}, cluster.config);
  ASSERT_TRUE(eventually([&] { return share_of(router, "fp_fake") == 1; }));
  RunningServer server(*router, grpc_config());
  GrpcClient client(server->grpc_port());
  cluster.first->drain();
  cluster.second->drain();
  for (const bool is_stream : {false, true}) {
    const auto reply = is_stream ? client.stream_chat(chat_request()) : client.chat(chat_request());
    ASSERT_TRUE(reply.status.ok()) << reply.status.error_message();
    ASSERT_FALSE(reply.messages.empty());
    EXPECT_EQ(reply.messages[0].system_fingerprint(), "fp_next");
    EXPECT_EQ(reply.seed, std::to_string(reply.messages[0].seed()));
  }
}

// What has a token waits for a worker of its version.
struct SlowlyLeaving : Leaving {
  SlowlyLeaving() {
    config.worker_wait_s = 1;
    for (TestWorker* worker : {&first, &second}) {
      (*worker)->set_step_delay(std::chrono::milliseconds(100));
    }
  }

  void stop() {
    first.stop();
    second.stop();
  }
};

// The engine has given tokens, but the client has not seen one: the next version gives them all.
TEST(Versions, AWholeAnswerMovesThoughItHasTokensAndIsNotLost) {
  for (const bool is_call : {false, true}) {
    SlowlyLeaving cluster;
    Router router({&cluster.first, &cluster.second, &cluster.next}, cluster.config);
    ASSERT_TRUE(eventually([&] { return share_of(router, "fp_fake") == 1; }));
    RunningServer server(*router, grpc_config());
    std::thread leaving([&] {
      EXPECT_TRUE(eventually([&] { return router->stats().generation_tokens > 0; }));
      cluster.stop();
    });
    if (is_call) {
      const auto reply = GrpcClient(server->grpc_port()).chat(chat_request());
      EXPECT_TRUE(reply.status.ok()) << reply.status.error_message();
      ASSERT_FALSE(reply.messages.empty());
      EXPECT_EQ(reply.messages[0].system_fingerprint(), "fp_next");
    } else {
      HttpClient client(server.port());
      client.post(kChatPath, chat_body(R"(,"max_tokens":50)"));
      const HttpReply reply = client.read_reply();
      EXPECT_EQ(reply.status, 200) << reply.body;
      EXPECT_NE(reply.body.find("fp_next"), std::string::npos) << reply.body;
    }
    leaving.join();
    EXPECT_EQ(num_lost(server), 0);
  }
}

TEST(Versions, AWholeAnswerThatHasNoVersionToMoveToIsLostOnce) {
  SlowlyLeaving cluster;
  Router router({&cluster.first, &cluster.second}, cluster.config);
  RunningServer server(*router);
  HttpClient client(server.port());
  client.post(kChatPath, chat_body(R"(,"max_tokens":50,"n":2)"));
  ASSERT_TRUE(eventually([&] { return router->stats().generation_tokens > 1; }));
  cluster.stop();
  EXPECT_EQ(client.read_reply().status, 503);
  EXPECT_EQ(num_lost(server), 1);
}

TEST(Versions, AStreamThatHasBegunNeverMovesToAnotherVersion) {
  SlowlyLeaving cluster;
  Router router({&cluster.first, &cluster.second, &cluster.next}, cluster.config);
  ASSERT_TRUE(eventually([&] { return share_of(router, "fp_fake") == 1; }));
  RunningServer server(*router);
  HttpClient client(server.port());
  client.post(kChatPath, chat_body(R"(,"stream":true,"max_tokens":50)"));
  ASSERT_TRUE(eventually([&] { return router.stats().workers.size() == 3; }));
  ASSERT_TRUE(eventually([&] { return router->stats().generation_tokens > 0; }));
  cluster.stop();
  const HttpReply reply = client.read_reply();
  EXPECT_EQ(reply.status, 200);
  EXPECT_NE(reply.body.find("\"error\""), std::string::npos) << reply.body;
  EXPECT_EQ(num_lost(server), 1);
  EXPECT_EQ(reply.body.find("fp_next"), std::string::npos) << reply.body;
  EXPECT_EQ(cluster.next->submitted().size(), 0U);
}

}  // namespace
}  // namespace sluice
