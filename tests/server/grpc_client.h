// SPDX-License-Identifier: Apache-2.0
// A gRPC client's side of the tests: stubs on a server's port, and calls that give everything back.
#pragma once

#include <grpcpp/create_channel.h>
#include <sluice.grpc.pb.h>
#include <vllm_engine.grpc.pb.h>

#include <memory>
#include <string>
#include <vector>

#include "tests/server/running_server.h"

namespace sluice {

namespace engine = vllm::grpc::engine;

inline Config grpc_config(Config config = {}) {
  config.grpc_port = 0;
  return config;
}

class GrpcClient {
 public:
  explicit GrpcClient(uint16_t port,
                      const std::shared_ptr<grpc::ChannelCredentials>& credentials =
                          grpc::InsecureChannelCredentials())
      : channel(grpc::CreateCustomChannel(
            "127.0.0.1:" + std::to_string(port), credentials, arguments())),
        vllm(engine::VllmEngine::NewStub(channel)),
        sluice(v1::Sluice::NewStub(channel)) {}

  struct Reply {
    grpc::Status status;
    std::string param;
    std::string retry_ms;
    std::string seed;
    std::string ignored;  // x-sluice-ignored-arguments
    std::string request_id;
  };

  struct VllmReply : Reply {
    std::vector<engine::GenerateStreamChunk> chunks;
    std::vector<engine::GenerateComplete> completes;

    [[nodiscard]] std::vector<uint32_t> tokens(uint32_t index = 0) const {
      std::vector<uint32_t> ids;
      for (const auto& chunk : chunks) {
        if (chunk.index() == index)
          ids.insert(ids.end(), chunk.token_ids().begin(), chunk.token_ids().end());
      }
      return ids;
    }
  };

  struct SluiceReply : Reply {
    std::vector<v1::GenerationResponse> messages;

    [[nodiscard]] std::string text() const {
      std::string all;
      for (const auto& message : messages) {
        for (const auto& choice : message.choices()) all += choice.text();
      }
      return all;
    }
  };

  VllmReply generate(const engine::GenerateRequest& request,
                     const std::string& key = {},
                     const std::string& request_id = {}) {
    grpc::ClientContext context;
    if (!key.empty()) context.AddMetadata("authorization", "Bearer " + key);
    if (!request_id.empty()) context.AddMetadata("x-request-id", request_id);
    VllmReply reply;
    auto reader = vllm->Generate(&context, request);
    for (engine::GenerateResponse response; reader->Read(&response);) {
      if (response.has_chunk()) reply.chunks.push_back(response.chunk());
      if (response.has_complete()) reply.completes.push_back(response.complete());
    }
    finish(reply, reader->Finish(), context);
    return reply;
  }

  SluiceReply chat(const v1::ChatRequest& request) {
    return ask(
        [&](auto* context, auto* response) { return sluice->Chat(context, request, response); });
  }

  SluiceReply stream_chat(const v1::ChatRequest& request) {
    grpc::ClientContext context;
    return drain(*sluice->StreamChat(&context, request), context);
  }

  SluiceReply complete(const v1::CompletionRequest& request) {
    return ask([&](auto* context, auto* response) {
      return sluice->Complete(context, request, response);
    });
  }

  SluiceReply stream_complete(const v1::CompletionRequest& request) {
    grpc::ClientContext context;
    return drain(*sluice->StreamComplete(&context, request), context);
  }

  std::shared_ptr<grpc::Channel> channel;
  std::unique_ptr<engine::VllmEngine::Stub> vllm;
  std::unique_ptr<v1::Sluice::Stub> sluice;

 private:
  // Every client has a connection of its own.
  static grpc::ChannelArguments arguments() {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    arguments.SetMaxReceiveMessageSize(-1);
    // Who looks the name up leaks it: c-ares, in LeakSanitizer's eyes.
    arguments.SetString(GRPC_SSL_TARGET_NAME_OVERRIDE_ARG, "localhost");
    return arguments;
  }

  static std::string value(const std::multimap<grpc::string_ref, grpc::string_ref>& metadata,
                           const char* key) {
    const auto found = metadata.find(key);
    if (found == metadata.end()) return {};
    return {found->second.data(), found->second.size()};
  }

  static void finish(Reply& reply, const grpc::Status& status, grpc::ClientContext& context) {
    reply.status = status;
    reply.seed = value(context.GetServerInitialMetadata(), "x-sluice-seed");
    reply.ignored = value(context.GetServerInitialMetadata(), "x-sluice-ignored-arguments");
    reply.request_id = value(context.GetServerInitialMetadata(), "x-request-id");
    reply.param = value(context.GetServerTrailingMetadata(), "x-sluice-param");
    reply.retry_ms = value(context.GetServerTrailingMetadata(), "grpc-retry-pushback-ms");
  }

  // One message for one.
  template <typename Call>
  static SluiceReply ask(const Call& call) {
    grpc::ClientContext context;
    SluiceReply reply;
    const grpc::Status status = call(&context, &reply.messages.emplace_back());
    finish(reply, status, context);
    return reply;
  }

  static SluiceReply drain(grpc::ClientReader<v1::GenerationResponse>& reader,
                           grpc::ClientContext& context) {
    SluiceReply reply;
    for (v1::GenerationResponse message; reader.Read(&message);) reply.messages.push_back(message);
    finish(reply, reader.Finish(), context);
    return reply;
  }
};

inline engine::GenerateRequest token_request(bool stream = true) {
  engine::GenerateRequest request;
  for (const uint32_t id : {72U, 105U}) request.mutable_tokenized()->add_input_ids(id);
  request.mutable_sampling_params()->set_max_tokens(20);
  request.set_stream(stream);
  return request;
}

inline engine::GenerateRequest endless_request() {
  engine::GenerateRequest request = token_request();
  request.mutable_sampling_params()->set_ignore_eos(true);
  request.mutable_sampling_params()->set_max_tokens(500'000);
  return request;
}

inline v1::ChatRequest chat_request() {
  v1::ChatRequest request;
  v1::Message& message = *request.add_messages();
  message.set_role("user");
  message.set_content("Hi");
  return request;
}

}  // namespace sluice
