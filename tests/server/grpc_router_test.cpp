// SPDX-License-Identifier: Apache-2.0
// What routers with a newer protocol send and ask for.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "engine/core/hex.h"
#include "server/keys/digest.h"
#include "tests/server/grpc_client.h"

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

TEST(VllmEngine, SendsTheFilesOfItsTokenizerAsOneArchive) {
  FakeEngine engine;
  const std::string path = ::testing::TempDir() + "sluice-" + std::to_string(::getpid()) + ".jinja";
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
  std::remove(path.c_str());
  EXPECT_LT(archive.size(), 10'000U);  // 200,000 bytes of one letter
  EXPECT_EQ(fetch("secret").first.back().sha256(), chunks.back().sha256());
}

}  // namespace
}  // namespace sluice
