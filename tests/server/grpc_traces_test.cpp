// SPDX-License-Identifier: Apache-2.0
// Spans of gRPC calls: of what is answered and of what is not let in.
#include <gtest/gtest.h>

#include <string>

#include "tests/server/grpc_client.h"
#include "tests/support/captured_log.h"
#include "tests/support/span_collector.h"

namespace sluice {
namespace {

grpc::StatusCode chat(GrpcClient& client, const v1::ChatRequest& request) {
  grpc::ClientContext context;
  context.AddMetadata("traceparent", kTraceparent);
  v1::GenerationResponse response;
  return client.sluice->Chat(&context, request, &response).error_code();
}

TEST(GrpcTraces, CallsHaveSpansAlsoWhenTheyAreRefused) {
  SpanCollector collector;
  FakeEngine engine;
  Config config = grpc_config();
  config.otlp_traces_endpoint = collector.url();
  config.enable_log_requests = true;
  const std::string log = logged_by([&] {
    RunningServer server(engine, config);
    GrpcClient client(server->grpc_port());
    v1::ChatRequest request = chat_request();
    EXPECT_EQ(chat(client, request), grpc::StatusCode::OK);
    request.mutable_sampling()->set_temperature(-1);
    EXPECT_EQ(chat(client, request), grpc::StatusCode::INVALID_ARGUMENT);
    ASSERT_TRUE(eventually([&] { return collector.spans().size() == 2; }));
  });
  const auto spans = collector.spans();
  ASSERT_EQ(spans.size(), 2U);
  for (const auto& span : spans) {
    expect_below_traceparent(span);
    EXPECT_NE(log.find("span_id=" + span["spanId"].get<std::string>()), std::string::npos) << log;
  }
  EXPECT_EQ(spans[0]["name"], "chat fake");
  EXPECT_EQ(spans[1]["name"], "sluice.v1.Sluice/Chat");
  EXPECT_EQ(spans[1]["status"]["code"], 2);
  EXPECT_EQ(attribute_of(spans[1], "rpc.system"), "grpc");
  EXPECT_EQ(attribute_of(spans[1], "rpc.grpc.status_code"), "3");
  EXPECT_EQ(attribute_of(spans[1], "error.type"), "invalid_argument");
}

}  // namespace
}  // namespace sluice
