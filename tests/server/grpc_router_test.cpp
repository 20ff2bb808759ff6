// SPDX-License-Identifier: Apache-2.0
// What routers with a newer protocol send and ask for.
#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "engine/core/hex.h"
#include "server/grpc/tokenizer_bundle.h"
#include "server/keys/digest.h"
#include "tests/server/grpc_client.h"
#include "tests/support/temporary_folder.h"

namespace sluice {
namespace {

using grpc::StatusCode;

TEST(VllmEngine, FieldsWithoutANameHereAreLeftOutAndNamedByNumber) {
  FakeEngine engine;
  const auto request = [] {
    engine::GenerateRequest newer = token_request();
    newer.mutable_sampling_params()->set_grammar_from_first_token(true);  // there is no grammar
    newer.set_kv_transfer_params_json(R"({"do_remote_prefill":false,"remote_host":null})");
    newer.GetReflection()->MutableUnknownFields(&newer)->AddVarint(99, 1);
    engine::SamplingParams& params = *newer.mutable_sampling_params();
    params.GetReflection()->MutableUnknownFields(&params)->AddVarint(77, 1);
    return newer;
  }();
  {
    RunningServer server(engine, grpc_config());
    GrpcClient client(server->grpc_port());
    const auto reply = client.generate(request);
    EXPECT_TRUE(reply.status.ok()) << reply.status.error_message();
    EXPECT_EQ(reply.ignored, "GenerateRequest.99, SamplingParams.77");
    EXPECT_EQ(client.generate(token_request()).ignored, "");
  }
  Config config;
  config.unknown_arguments = "refuse";
  RunningServer server(engine, grpc_config(config));
  GrpcClient client(server->grpc_port());
  const auto reply = client.generate(request);
  EXPECT_EQ(reply.status.error_code(), StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(reply.param, "GenerateRequest.99");
}

engine::GenerateRequest offer_half() {
  engine::GenerateRequest request = token_request();
  request.mutable_sampling_params()->set_max_tokens(1);
  request.set_kv_transfer_params_json(R"({"do_remote_decode":true,"do_remote_prefill":false})");
  return request;
}

TEST(VllmEngine, AnOfferComesWithTheCompleteAndGoesToTheDecodeHalfAsItIs) {
  FakeEngine engine;
  engine.editable_model().handoff = HandoffInfo{.epoch = 1, .host = "10.1.2.3", .port = 77};
  RunningServer server(engine, grpc_config());
  GrpcClient client(server->grpc_port());
  const auto reply = client.generate(offer_half());
  ASSERT_EQ(reply.completes.size(), 1U) << reply.status.error_message();
  const auto& complete = reply.completes[0];
  EXPECT_NE(complete.kv_transfer_params_json().find("\"addr\":\"10.1.2.3:77\""), std::string::npos);
  EXPECT_EQ(complete.kv_transfer_params().remote_host(), "10.1.2.3");
  EXPECT_EQ(complete.kv_transfer_params().remote_port(), 77U);
  engine::GenerateRequest decode = token_request();
  decode.set_kv_transfer_params_json(complete.kv_transfer_params_json());
  EXPECT_TRUE(client.generate(decode).status.ok());
  const auto requests = engine.submitted();
  ASSERT_TRUE(requests.back().handoff.has_value());
  EXPECT_EQ(requests.back().handoff->peer, "10.1.2.3:77");
}

TEST(VllmEngine, HandoffsThatCannotBeAreOrdinaryRequests) {
  FakeEngine engine;
  RunningServer server(engine, grpc_config());
  GrpcClient client(server->grpc_port());
  const auto offered = client.generate(offer_half());
  ASSERT_EQ(offered.completes.size(), 1U);
  EXPECT_FALSE(offered.completes[0].has_kv_transfer_params_json());
  EXPECT_FALSE(offered.completes[0].has_kv_transfer_params());
  engine::GenerateRequest typed = token_request();
  typed.mutable_kv_transfer_params()->set_remote_host("h");
  typed.mutable_kv_transfer_params()->set_remote_port(5600);
  EXPECT_TRUE(client.generate(typed).status.ok());
  for (const ValidRequest& request : engine.submitted()) EXPECT_FALSE(request.handoff.has_value());
}

TEST(VllmEngine, TellsWhichHalfOfHandoffsItTakes) {
  const auto info = [](const Config& config) {
    FakeEngine engine;
    RunningServer server(engine, grpc_config(config));
    GrpcClient client(server->grpc_port());
    grpc::ClientContext context;
    engine::GetServerInfoResponse response;
    EXPECT_TRUE(client.vllm->GetServerInfo(&context, {}, &response).ok());
    return response;
  };
  EXPECT_EQ(info({}).kv_connector(), "");
  EXPECT_EQ(info({}).kv_role(), "");
  Config config;
  config.role = "prefill";
  EXPECT_EQ(info(config).kv_connector(), "NixlConnector");
  EXPECT_EQ(info(config).kv_role(), "kv_producer");
  EXPECT_NE(info(config).kv_engine_id(), "");
  config.role = "both";
  config.kv_transfer_config =
      R"({"kv_connector":"MooncakeConnector","kv_role":"kv_consumer","engine_id":"abc"})";
  EXPECT_EQ(info(config).kv_connector(), "MooncakeConnector");
  EXPECT_EQ(info(config).kv_role(), "kv_consumer");
  EXPECT_EQ(info(config).kv_engine_id(), "abc");
}

TEST(VllmEngine, SendsTheFilesOfItsTokenizerAsOneArchive) {
  FakeEngine engine;
  const testing::TemporaryFolder folder;
  const std::string path = folder.at("template.jinja");
  std::ofstream(path) << "{{ messages[0].content }}";
  Config config;
  config.api_key = {"secret"};
  config.chat_template = path;
  RunningServer server(engine, grpc_config(config));
  GrpcClient client(server->grpc_port());
  const auto fetch = [&](const std::string& key) {
    grpc::ClientContext context;
    if (!key.empty()) context.AddMetadata("authorization", "Bearer " + key);
    std::vector<smg::grpc::common::GetTokenizerChunk> chunks;
    auto reader = client.vllm->GetTokenizer(&context, {});
    for (smg::grpc::common::GetTokenizerChunk chunk; reader->Read(&chunk);) chunks.push_back(chunk);
    return std::pair(chunks, reader->Finish());
  };
  EXPECT_EQ(fetch("").second.error_code(), StatusCode::UNAUTHENTICATED);
  const auto [chunks, status] = fetch("secret");
  ASSERT_TRUE(status.ok()) << status.error_message();
  std::string archive;
  for (const auto& chunk : chunks) archive += chunk.data();
  for (size_t i = 0; i + 1 < chunks.size(); ++i) EXPECT_EQ(chunks[i].sha256(), "");
  EXPECT_EQ(chunks.back().sha256(), to_hex(digest_of(archive)));
  EXPECT_TRUE(archive.starts_with("PK\x03\x04"));
  EXPECT_NE(archive.find("tokenizer.json"), std::string::npos);
  EXPECT_NE(archive.find("chat_template.jinja"), std::string::npos);
  EXPECT_EQ(archive.find("additional_chat_templates"), std::string::npos);  // one is given for all
  std::remove(path.c_str());
  EXPECT_LT(archive.size(), 10'000U);  // 200,000 bytes of one letter
  EXPECT_EQ(fetch("secret").first.back().sha256(), chunks.back().sha256());
  TokenizerBundleSource own{""};
  const auto bundle = own.get(engine);
  ASSERT_TRUE(bundle.has_value());
  EXPECT_NE((*bundle)->archive.find("additional_chat_templates/tool_use.jinja"), std::string::npos);
}

}  // namespace
}  // namespace sluice
