// SPDX-License-Identifier: Apache-2.0
// A router's engine over workers of this process: real gRPC, engines without a model.
#include "server/router/remote_engine.h"

#include <grpcpp/client_context.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>
#include <gtest/gtest.h>
#include <worker.grpc.pb.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <memory>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "tests/server/idle_sockets.h"
#include "tests/server/router/router_bed.h"
#include "tests/support/fault_proxy.h"
#include "tests/support/span_collector.h"

namespace sluice {
namespace {

using testing::Collected;
using testing::CollectingSink;
using testing::kHelloAndEnd;
using testing::kSecret;
using testing::request_of;
using testing::Router;
using testing::step_until;
using testing::TestWorker;
using testing::text_of;

TEST(RemoteEngine, TokensAndTheEndComeThrough) {
  TestWorker worker(FakeEngine::Stepping::kAutomatic);
  CollectingSink sink;
  Router router({&worker});
  EXPECT_EQ(router->model().system_fingerprint, "fp_fake");
  ValidRequest request = request_of();
  request.sampling.seed = 1234;
  request.sampling.num_logprobs = 2;
  const Collected answer = sink.wait(router.submit(sink, request));
  EXPECT_EQ(text_of(answer), kHelloAndEnd);
  EXPECT_EQ(answer.finish_reason, FinishReason::kStop);
  EXPECT_EQ(answer.top_logprobs.size(), 2 * answer.tokens.size());
  ASSERT_EQ(worker->submitted().size(), 1U);
  EXPECT_EQ(worker->submitted()[0].sampling.seed, 1234U);
  EXPECT_EQ(worker->submitted()[0].prompt, request.prompt);
}

TEST(RemoteEngine, StrangersAtAWorkersPortAreBoundedAndKeepNoRouterOut) {
  constexpr int kMost = 8;
  constexpr int kReserved = 2;
  Config config;
  config.max_connections = kMost;
  config.reserved_connections = kReserved;
  TestWorker worker(FakeEngine::Stepping::kAutomatic, config);
  CollectingSink sink;
  const testing::IdleSockets before(worker.port(), 100);
  EXPECT_TRUE(eventually([&] { return before.num_open() <= kMost + kReserved; }));
  Router router({&worker});
  const testing::IdleSockets after(worker.port(), 100);
  EXPECT_TRUE(eventually([&] { return after.num_open() < kMost + kReserved; }));
  EXPECT_EQ(text_of(sink.wait(router.submit(sink, request_of()))), kHelloAndEnd);
  EXPECT_EQ(router.stats().num_continuations, 0U) << "its connection was never cut";
}

TEST(RemoteEngine, AWorkersSpanIsBelowItsRouters) {
  SpanCollector collector;
  Config config;
  config.otlp_traces_endpoint = collector.url();
  TestWorker worker(FakeEngine::Stepping::kAutomatic, config);
  CollectingSink sink;
  Router router({&worker});
  ValidRequest request = request_of();
  request.trace = parse_trace_context(kTraceparent, "vendor=1");
  EXPECT_EQ(text_of(sink.wait(router.submit(sink, request))), kHelloAndEnd);
  // Not sampled there, not recorded here.
  request.trace.is_sampled = false;
  EXPECT_EQ(text_of(sink.wait(router.submit(sink, request))), kHelloAndEnd);
  request.trace.is_sampled = true;
  EXPECT_EQ(text_of(sink.wait(router.submit(sink, request))), kHelloAndEnd);
  ASSERT_TRUE(eventually([&] { return collector.spans().size() >= 2; }));
  const auto spans = collector.spans();
  ASSERT_EQ(spans.size(), 2U);
  for (const auto& span : spans) {
    expect_below_traceparent(span);
    EXPECT_EQ(span["traceState"], "vendor=1");
    EXPECT_EQ(span["name"], "generate");
    EXPECT_EQ(attribute_of(span, "gen_ai.usage.input_tokens"), "2");
  }
  EXPECT_NE(spans[0]["spanId"], spans[1]["spanId"]);
}

TEST(RemoteEngine, AStreamGoesOnWhereItsWorkerHasEnded) {
  TestWorker first;
  TestWorker second;
  CollectingSink sink;
  Router router({&first, &second});
  const RequestId id = router.submit(sink, request_of());
  step_until({&first, &second}, sink, id, 3);
  TestWorker& lost = first->num_running() > 0 ? first : second;
  TestWorker& other = &lost == &first ? second : first;
  lost.stop();
  ASSERT_TRUE(eventually([&] { return other->num_running() == 1; }));
  EXPECT_EQ(other->submitted().back().generated, (std::vector<TokenId>{'H', 'e', 'l'}));
  for (int i = 0; i < 3; ++i) other->step();
  const Collected answer = sink.wait(id);
  EXPECT_EQ(text_of(answer), kHelloAndEnd);
  EXPECT_EQ(answer.num_ends, 1);
  EXPECT_EQ(router.stats().num_continuations, 1U);
}

TEST(RemoteEngine, ALostStreamWaitsForItsWorkerToComeBack) {
  TestWorker worker;
  CollectingSink sink;
  Router router({&worker});
  const RequestId id = router.submit(sink, request_of());
  step_until({&worker}, sink, id, 2);
  worker.stop();
  ASSERT_TRUE(eventually([&] { return router.stats().num_parked == 1; }));
  EXPECT_EQ(router.num_usable(), 0);
  const auto refused = router->submit(request_of(), sink);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kUnavailable);
  EXPECT_GE(refused.error().retry_after_s, 1);
  worker.start_again();
  ASSERT_TRUE(eventually([&] { return worker->num_running() == 1; }));
  for (int i = 0; i < 4; ++i) worker->step();
  EXPECT_EQ(text_of(sink.wait(id)), kHelloAndEnd);
}

TEST(RemoteEngine, WhatAWorkerLosesIsSharedByAllOthersEvenOneThatHasJustComeBack) {
  TestWorker first;
  TestWorker second;
  TestWorker third;
  CollectingSink sink;
  Router router({&first, &second, &third});
  first.stop();
  ASSERT_TRUE(eventually([&] { return router.num_usable() == 2; }));
  constexpr size_t kRequests = 32;
  for (size_t i = 0; i < kRequests; ++i) router.submit(sink, request_of());
  first.start_again();
  ASSERT_TRUE(eventually([&] { return router.num_usable() == 3; }));
  ASSERT_TRUE(
      eventually([&] { return second->num_running() + third->num_running() == kRequests; }));
  const size_t num_lost = second->num_running();
  EXPECT_GT(num_lost, kRequests / 4);
  second.stop();
  ASSERT_TRUE(eventually([&] { return first->num_running() + third->num_running() == kRequests; }));
  EXPECT_GT(first->num_running(), num_lost / 2) << "it had less to do than the third";
}

// The first connection breaks, and the next ones stay mute: the breaker's second ends before the
// router can know which process is there, so it does not send the request there.
TEST(RemoteEngine, AfterALossAWorkerIsUsedOnceItHasAnswered) {
  TestWorker worker;
  std::atomic<bool> is_down = false;
  const test::FaultProxy proxy(
      worker.address(),
      [](size_t) { return test::Fault{}; },
      [&](size_t connection, bool is_answer, std::vector<std::byte>& bytes) {
        if (!is_down || !is_answer) return;
        if (connection > 0) bytes.clear();
        std::ranges::fill(bytes, std::byte{0xFF});  // no frame of HTTP/2
      });
  Config config;
  config.workers = {proxy.address()};
  CollectingSink sink;
  Router router({}, config);
  const RequestId id = router.submit(sink, request_of());
  ASSERT_TRUE(eventually([&] { return worker->num_running() == 1; }));
  is_down = true;
  worker->step();
  ASSERT_TRUE(eventually([&] { return router.stats().workers[0].num_requests == 0; }));
  const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(2500);
  while (std::chrono::steady_clock::now() < end) {
    ASSERT_EQ(router.stats().workers[0].num_requests, 0);
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  is_down = false;
  EXPECT_TRUE(eventually([&] { return router.stats().workers[0].num_requests == 1; }));
  router->abort(id);
  EXPECT_EQ(sink.wait(id).finish_reason, FinishReason::kAbort);
}

TEST(RemoteEngine, WithoutAnotherWorkerAStreamEndsWithAnErrorInTime) {
  TestWorker worker;
  Config config;
  config.worker_wait_s = 1;
  CollectingSink sink;
  Router router({&worker}, config);
  const RequestId id = router.submit(sink, request_of());
  step_until({&worker}, sink, id, 2);
  worker.stop();
  const Collected answer = sink.wait(id);
  EXPECT_EQ(answer.finish_reason, FinishReason::kError);
  EXPECT_EQ(answer.error_code, ErrorCode::kUnavailable);
  EXPECT_EQ(answer.tokens.size(), 2U);
}

TEST(RemoteEngine, ARequestOfWhichItsWorkerSaysNothingEndsInTime) {
  TestWorker worker;
  Config config;
  config.worker_silence_s = 1;
  CollectingSink sink;
  Router router({&worker}, config);
  const Collected answer = sink.wait(router.submit(sink, request_of()));
  EXPECT_EQ(answer.finish_reason, FinishReason::kError);
  EXPECT_EQ(answer.error_code, ErrorCode::kUnavailable);
  EXPECT_EQ(worker->submitted().size(), 3U) << "it is tried again like after other errors";
}

TEST(RemoteEngine, AnEndThatComesWithThePromptsScoresEndsTheAnswer) {
  TestWorker worker(FakeEngine::Stepping::kAutomatic);
  worker->set_scores_come_with_tokens(true);
  CollectingSink unused;
  Router router({&worker});
  RunningServer server(*router);
  HttpClient client(server.port());
  client.post(kCompletionPath, R"({"prompt":"abc","max_tokens":1,"prompt_logprobs":1})");
  const HttpReply reply = client.read_reply();
  EXPECT_EQ(reply.status, 200) << "it hangs";
  EXPECT_NE(reply.body.find(R"("text":"H")"), std::string::npos) << reply.body;
  EXPECT_NE(reply.body.find(R"("finish_reason":"length")"), std::string::npos) << reply.body;
  EXPECT_EQ(worker->submitted().size(), 1U);
}

TEST(RemoteEngine, AnErrorOfAWorkerIsTriedElsewhere) {
  TestWorker bad(FakeEngine::Stepping::kAutomatic);
  TestWorker good(FakeEngine::Stepping::kAutomatic);
  good.load(500);  // so that the other one is chosen
  bad->fail_at(0);
  CollectingSink sink;
  Router router({&bad, &good});
  EXPECT_EQ(text_of(sink.wait(router.submit(sink, request_of()))), kHelloAndEnd);
  EXPECT_EQ(bad->submitted().size(), 1U);
  EXPECT_EQ(router.stats().num_retries, 1U);
}

TEST(RemoteEngine, AnErrorThatAllWorkersGiveReachesTheClientAfterTwoRetries) {
  TestWorker worker(FakeEngine::Stepping::kAutomatic);
  worker->fail_at(2);
  CollectingSink sink;
  Router router({&worker});
  const Collected answer = sink.wait(router.submit(sink, request_of()));
  EXPECT_EQ(answer.finish_reason, FinishReason::kError);
  EXPECT_EQ(answer.error_code, ErrorCode::kInternal);
  EXPECT_EQ(answer.error, "The logits of this request are not finite.");
  EXPECT_EQ(worker->submitted().size(), 3U);
}

TEST(RemoteEngine, AFullQueuePassesOnWithItsTime) {
  TestWorker worker(FakeEngine::Stepping::kAutomatic);
  worker->fail_as(ErrorCode::kDeadlineExceeded, 7);
  worker->fail_at(0);
  CollectingSink sink;
  Router router({&worker});
  const Collected expired = sink.wait(router.submit(sink, request_of()));
  EXPECT_EQ(expired.error_code, ErrorCode::kDeadlineExceeded);
  EXPECT_EQ(expired.retry_after_s, 7);
  worker->set_queue_limit(0);
  const Collected full = sink.wait(router.submit(sink, request_of()));
  EXPECT_EQ(full.error_code, ErrorCode::kResourceExhausted);
  EXPECT_EQ(worker->submitted().size(), 1U) << "not tried again";
  EXPECT_EQ(router.stats().num_retries, 0U);
}

TEST(RemoteEngine, AWorkerWithRoomTakesWhatOthersRefuse) {
  TestWorker full(FakeEngine::Stepping::kAutomatic);
  TestWorker another(FakeEngine::Stepping::kAutomatic);
  TestWorker idle(FakeEngine::Stepping::kAutomatic);
  full->set_queue_limit(0);
  another->set_queue_limit(0);
  CollectingSink sink;
  Router router({&full, &another, &idle});
  constexpr size_t kRequests = 40;
  for (size_t i = 0; i < kRequests; ++i) {
    EXPECT_EQ(text_of(sink.wait(router.submit(sink, request_of()))), kHelloAndEnd) << i;
  }
  EXPECT_EQ(idle->submitted().size(), kRequests);
  EXPECT_EQ(router.stats().num_retries, 0U) << "a full queue is no failure";
  EXPECT_EQ(router.num_usable(), 3);
  idle->set_queue_limit(0);
  const Collected refused = sink.wait(router.submit(sink, request_of()));
  EXPECT_EQ(refused.error_code, ErrorCode::kResourceExhausted);
}

TEST(RemoteEngine, AWorkerThatWasFullTakesOverFromOneThatIsLost) {
  TestWorker was_full;
  TestWorker lost;
  TestWorker always_full;
  was_full->set_queue_limit(0);
  always_full->set_queue_limit(0);
  lost.load(5);
  always_full.load(50);
  CollectingSink sink;
  Router router({&was_full, &lost, &always_full});
  const RequestId id = router.submit(sink, request_of());
  ASSERT_TRUE(eventually([&] { return lost->num_running() == 1; }));
  step_until({&lost}, sink, id, 1);
  was_full->set_queue_limit(100);
  lost.stop();
  ASSERT_TRUE(eventually([&] { return was_full->num_running() == 1; }));
  step_until({&was_full}, sink, id, kHelloAndEnd.size());
  EXPECT_EQ(text_of(sink.wait(id)), kHelloAndEnd);
}

TEST(RemoteEngine, ARequestThatTheWorkerCannotTakeIsTheClientsError) {
  TestWorker worker(FakeEngine::Stepping::kAutomatic);
  CollectingSink sink;
  Router router({&worker});
  ValidRequest request = request_of();
  request.sampling.max_tokens = 100'000;
  const Collected answer = sink.wait(router.submit(sink, std::move(request)));
  EXPECT_EQ(answer.error_code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(router.num_usable(), 1);
}

TEST(RemoteEngine, AnAbortedRequestEndsHereAndAtTheWorker) {
  TestWorker worker;
  CollectingSink sink;
  Router router({&worker});
  const RequestId id = router.submit(sink, request_of());
  step_until({&worker}, sink, id, 1);
  router->abort(id);
  EXPECT_EQ(sink.wait(id).finish_reason, FinishReason::kAbort);
  EXPECT_TRUE(eventually([&] { return worker->num_aborted() == 1; }));
  worker->step();
  router->abort(id);  // has ended
  router->abort(RequestId(999));
  EXPECT_EQ(router.stats().num_continuations, 0U);
}

TEST(RemoteEngine, StopEndsEverything) {
  TestWorker worker;
  CollectingSink sink;
  Router router({&worker});
  std::vector<RequestId> ids;
  for (int i = 0; i < 5; ++i) ids.push_back(router.submit(sink, request_of()));
  ASSERT_TRUE(eventually([&] { return worker->num_running() == 5; }));
  router->stop();
  for (const RequestId id : ids) EXPECT_EQ(sink.wait(id).finish_reason, FinishReason::kAbort);
  EXPECT_FALSE(router->submit(request_of(), sink));
  bool is_reported = false;
  router->report_state(1, [&](const EngineState&) { is_reported = true; });
  EXPECT_TRUE(is_reported);
  EXPECT_TRUE(eventually([&] { return worker->num_aborted() == 5; }));
  worker->step();
}

TEST(RemoteEngine, ADrainingWorkerGetsNoMoreRequestsAndItsStreamsGoOn) {
  TestWorker first;
  TestWorker second;
  CollectingSink sink;
  Router router({&first, &second});
  const RequestId id = router.submit(sink, request_of());
  step_until({&first, &second}, sink, id, 2);
  TestWorker& leaving = first->num_running() > 0 ? first : second;
  TestWorker& other = &leaving == &first ? second : first;
  leaving.drain();
  const RequestId next = router.submit(sink, request_of());
  ASSERT_TRUE(eventually([&] { return other->num_running() >= 1; }));
  for (int i = 0; i < 600 && sink.ends().size() < 2; ++i) {
    other->step();
    std::this_thread::sleep_for(std::chrono::milliseconds(10));  // it is cut after a second
  }
  EXPECT_EQ(text_of(sink.wait(id)), kHelloAndEnd);
  EXPECT_EQ(text_of(sink.wait(next)), kHelloAndEnd);
}

// Returns the value of a sample without other labels than those given; -1: there is none.
double scraped(const TestWorker& worker, const std::string& name, const std::string& label = {}) {
  HttpClient client(worker.http_port());
  client.get("/metrics");
  std::istringstream text(client.read_reply().body);
  for (std::string line; std::getline(text, line);) {
    const bool is_it = line.starts_with(name + "{") || line.starts_with(name + " ");
    if (!is_it || line.find(label) == std::string::npos) continue;
    return std::stod(line.substr(line.rfind(' ')));
  }
  return -1;
}

TEST(RemoteEngine, AWorkerCountsWhatRoutersAskAsWhatClientsDo) {
  TestWorker worker(FakeEngine::Stepping::kAutomatic);
  CollectingSink sink;
  Router router({&worker});
  for (int i = 0; i < 3; ++i) sink.wait(router.submit(sink, request_of()));
  for (const char* name : {"vllm:request_params_max_tokens_count",
                           "vllm:request_params_n_count",
                           "vllm:request_max_num_generation_tokens_count",
                           "vllm:request_inference_time_seconds_count",
                           "vllm:request_time_per_output_token_seconds_count"}) {
    EXPECT_TRUE(eventually([&] { return scraped(worker, name) == 3; }))
        << name << " " << scraped(worker, name);
  }
  EXPECT_EQ(scraped(worker, "vllm:request_params_max_tokens_sum"), 3 * 20);
  EXPECT_EQ(scraped(worker, "vllm:request_max_num_generation_tokens_sum"), 3 * 6);
  EXPECT_EQ(scraped(worker, "vllm:request_success_total", "finished_reason=\"stop\""), 3);
}

TEST(RemoteEngine, EqualPromptsGoWhereTheyAreCached) {
  TestWorker first(FakeEngine::Stepping::kAutomatic);
  TestWorker second(FakeEngine::Stepping::kAutomatic);
  CollectingSink sink;
  Router router({&first, &second});
  const std::vector<TokenId> prompt(128, 'x');
  for (int i = 0; i < 10; ++i) sink.wait(router.submit(sink, request_of(prompt)));
  const size_t most = std::max(first->submitted().size(), second->submitted().size());
  EXPECT_EQ(most, 10U);
  EXPECT_GT(router.stats().prefix_hits, 0U);
}

TEST(RemoteEngine, ManyRequestsOverWorkersThatComeAndGo) {
  TestWorker first(FakeEngine::Stepping::kAutomatic);
  TestWorker second(FakeEngine::Stepping::kAutomatic);
  first->set_step_delay(std::chrono::microseconds(300));
  second->set_step_delay(std::chrono::microseconds(300));
  Config config;
  config.max_worker_losses = 100;
  CollectingSink sink;
  Router router({&first, &second}, config);
  std::vector<RequestId> ids;
  for (int round = 0; round < 4; ++round) {
    for (int i = 0; i < 20; ++i) {
      if (const auto id = router->submit(request_of(), sink)) ids.push_back(*id);
    }
    TestWorker& leaving = round % 2 == 0 ? first : second;
    leaving.stop();
    for (int i = 0; i < 20; ++i) {
      if (const auto id = router->submit(request_of(), sink)) ids.push_back(*id);
    }
    leaving.start_again();
    ASSERT_TRUE(eventually([&] { return router.num_usable() == 2; }));
  }
  EXPECT_GT(ids.size(), 80U);
  for (const RequestId id : ids) {
    const Collected answer = sink.wait(id);
    EXPECT_EQ(text_of(answer), kHelloAndEnd) << answer.error;
    EXPECT_EQ(answer.num_ends, 1);
  }
}

// The service by itself.
class WorkerServiceTest : public ::testing::Test {
 protected:
  WorkerServiceTest()
      : worker_(FakeEngine::Stepping::kAutomatic),
        stub_(worker::v1::Worker::NewStub(
            grpc::CreateChannel(worker_.address(), grpc::InsecureChannelCredentials()))) {}

  static void show(grpc::ClientContext& context, const std::string& secret) {
    if (!secret.empty()) context.AddMetadata("authorization", "Bearer " + secret);
  }

  grpc::Status generate(const worker::v1::GenerateRequest& request, const std::string& secret) {
    grpc::ClientContext context;
    show(context, secret);
    const auto reader = stub_->Generate(&context, request);
    for (worker::v1::GenerateResponse response; reader->Read(&response);) {
    }
    return reader->Finish();
  }

  TestWorker worker_;
  std::unique_ptr<worker::v1::Worker::Stub> stub_;
};

TEST_F(WorkerServiceTest, WhoeverLacksTheSecretGetsNothing) {
  using grpc::StatusCode;
  for (const std::string secret : {"", "other", "a secret of worker", "a secret of workers "}) {
    grpc::ClientContext contexts[3];
    for (auto& context : contexts) show(context, secret);
    worker::v1::Description description;
    EXPECT_EQ(stub_->Describe(&contexts[0], {}, &description).error_code(),
              StatusCode::UNAUTHENTICATED);
    EXPECT_EQ(description.ByteSizeLong(), 0U);
    worker::v1::State state;
    EXPECT_EQ(stub_->GetState(&contexts[1], {}, &state).error_code(), StatusCode::UNAUTHENTICATED);
    const auto reader = stub_->GetTokenizer(&contexts[2], {});
    worker::v1::FilePiece piece;
    EXPECT_FALSE(reader->Read(&piece));
    EXPECT_EQ(reader->Finish().error_code(), StatusCode::UNAUTHENTICATED);
    EXPECT_EQ(generate({}, secret).error_code(), StatusCode::UNAUTHENTICATED);
  }
  EXPECT_EQ(worker_->submitted().size(), 0U);
}

TEST_F(WorkerServiceTest, WhatIsNoRequestOrForAnotherModelIsRefused) {
  worker::v1::GenerateRequest request;
  EXPECT_EQ(generate(request, kSecret).error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  request.set_fingerprint("fp_fake");
  EXPECT_EQ(generate(request, kSecret).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(worker_->submitted().size(), 0U);
}

TEST_F(WorkerServiceTest, FilesOfTheTokenizerComeInPieces) {
  grpc::ClientContext context;
  show(context, kSecret);
  const auto reader = stub_->GetTokenizer(&context, {});
  std::map<std::string, std::string> files;
  for (worker::v1::FilePiece piece; reader->Read(&piece);) files[piece.name()] += piece.content();
  EXPECT_TRUE(reader->Finish().ok());
  EXPECT_EQ(files.size(), 2U);
  EXPECT_EQ(files["tokenizer.json"].size(), 200'000U);
  EXPECT_EQ(files["additional_chat_templates/tool_use.jinja"], "b");
}

TEST(WorkerServer, AnAddressThatOthersReachNeedsASecretOrCertificates) {
  FakeEngine engine;
  const auto create = [&](const std::string& listen, const std::string& secret) {
    Config config;
    config.port = 0;
    config.worker_listen = listen;
    config.worker_secret = secret;
    const auto made = HttpServer::create(config, engine);
    return made ? std::string() : made.error().param;
  };
  EXPECT_EQ(create("0.0.0.0:0", ""), "worker-listen");
  EXPECT_EQ(create("nonsense", ""), "worker-listen");
  EXPECT_EQ(create("0.0.0.0:0", kSecret), "");
  EXPECT_EQ(create("127.0.0.1:0", ""), "");
  EXPECT_EQ(create("0.0.0.0:0", "fifteen letters"), "worker-secret");
  EXPECT_EQ(create("127.0.0.1:0", "short"), "worker-secret");
  EXPECT_EQ(create("127.0.0.1:0", "sixteen letters!"), "");
}

}  // namespace
}  // namespace sluice
