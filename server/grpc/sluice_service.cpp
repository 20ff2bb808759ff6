// SPDX-License-Identifier: Apache-2.0
#include "server/grpc/sluice_service.h"

#include <sluice.grpc.pb.h>

#include <ctime>
#include <string>
#include <utility>
#include <vector>

#include "engine/tokenizer/tokenizer.h"
#include "server/api/answer_id.h"
#include "server/api/call_id.h"
#include "server/api/generation.h"
#include "server/grpc/reactors.h"
#include "server/grpc/request_decoder.h"
#include "server/grpc/rpc_context.h"

namespace sluice {
namespace {

void fill_logprob(const Tokenizer& tokenizer, TokenId id, float logprob, v1::TokenLogprob& out) {
  out.set_token_id(id);
  out.set_token(std::string(tokenizer.token_bytes(id)));
  out.set_logprob(logprob);
}

// `Request`: v1::ChatRequest or v1::CompletionRequest.
template <typename Request>
class SluiceCall final : public GrpcCall {
 public:
  SluiceCall(RpcContext& rpc,
             size_t method,
             grpc::CallbackServerContext& context,
             std::shared_ptr<Tenant> tenant,
             grpc::ByteBuffer& message,
             bool stream,
             MessageWriter<v1::GenerationResponse>& writer)
      : GrpcCall(rpc.front_end,
                 rpc.worker_of(message.Length()),
                 method,
                 context,
                 std::move(tenant),
                 message),
        stream_(stream),
        writer_(writer) {}

  void prepare(const GenerationRequest& request) override {
    request_ = &request;
    served_ = request.served;
    // The identity is equal in each message of a stream.
    head_.set_id(answer_id(request.endpoint));
    if (request_id_.empty()) request_id_ = head_.id();
    head_.set_created(static_cast<int64_t>(std::time(nullptr)));
    head_.set_model(request.model);
    head_.set_system_fingerprint(request.served->engine.model().system_fingerprint);
    head_.set_seed(static_cast<int64_t>(request.seed));
    choices_.resize(request.requests.size());
    for (size_t i = 0; i < choices_.size(); ++i) {
      choices_[i].set_index(static_cast<int32_t>(i));
      if (!request.return_token_ids) continue;
      for (const TokenId id : request.requests[i].prompt) {
        choices_[i].add_prompt_token_ids(id);
      }
    }
    is_pending_.assign(choices_.size(), false);
  }

  void add_prompt(size_t choice_idx, std::span<const PromptLogprob> scored) override {
    for (const PromptLogprob& token : scored) {
      v1::TokenLogprobs& logprobs = *choices_[choice_idx].add_prompt_logprobs();
      fill_logprobs(token.token, token.logprob, token.top_logprobs, logprobs);
      grow(choice_idx, kBytesOfLogprob * (1 + token.top_logprobs.size()));
    }
  }

  void add_token(size_t choice_idx, const TokenOutput& output) override {
    v1::Choice& choice = choices_[choice_idx];
    if (request_->return_token_ids) {
      choice.add_token_ids(output.token);
      grow(choice_idx, sizeof(TokenId));
    }
    if (!request_->wants_logprobs) return;
    fill_logprobs(output.token, output.logprob, output.top_logprobs, *choice.add_logprobs());
    grow(choice_idx, kBytesOfLogprob * (1 + output.top_logprobs.size()));
  }

  void write_delta(const ChoiceDelta& delta) override {
    v1::Choice& choice = choices_[delta.choice_idx];
    for (const Piece& piece : delta.pieces) {
      add_piece(delta.choice_idx, piece, choice);
      grow(delta.choice_idx, piece.text.size() + 1);
    }
    if (delta.finish_reason == FinishReason::kNone) return;
    choice.set_finish_reason(std::string(finish_name(delta)));
    if (!delta.matched_stop.empty()) {
      choice.set_stop(std::string(delta.matched_stop));
    } else if (delta.stop_token != kInvalidToken) {
      choice.set_stop_token_id(delta.stop_token);
    }
    grow(delta.choice_idx, 1);
  }

 private:
  void add_piece(size_t choice_idx, const Piece& piece, v1::Choice& choice) const {
    switch (piece.kind) {
      case PieceKind::kContent:
        choice.mutable_text()->append(piece.text);
        return;
      case PieceKind::kReasoning:
        choice.mutable_reasoning()->append(piece.text);
        return;
      case PieceKind::kCallEnd:
        return;
      case PieceKind::kCallBegin:
      case PieceKind::kArguments:
        break;
    }
    const int size = choice.tool_calls_size();
    const bool is_new = size == 0 || choice.tool_calls(size - 1).index() != piece.call_idx;
    v1::AnswerToolCall& call =
        is_new ? *choice.add_tool_calls() : *choice.mutable_tool_calls(size - 1);
    call.set_index(piece.call_idx);
    if (piece.kind == PieceKind::kCallBegin) {
      call.set_id(call_id(piece, request_->tools, head_.id(), choice_idx, "call_"));
      call.set_name(piece.text);
    } else {
      call.mutable_arguments()->append(piece.text);
    }
  }

  static constexpr size_t kBytesOfLogprob = 64;  // an estimate for an object

  void fill_logprobs(TokenId id,
                     float logprob,
                     const std::vector<TokenLogprob>& top,
                     v1::TokenLogprobs& out) const {
    fill_logprob(served_->engine.tokenizer(), id, logprob, *out.mutable_token());
    for (const TokenLogprob& item : top) {
      fill_logprob(served_->engine.tokenizer(), item.token, item.logprob, *out.add_top());
    }
  }

  bool parse(grpc::ByteBuffer& message) override { return sluice::parse(message, message_); }

  Expected<GenerationRequest> decode(const ValidationContext& context,
                                     IgnoredArguments& ignored) override {
    return sluice::decode(context, message_, ignored, stream_);
  }

  void complete(std::span<const size_t> returned, const Usage& usage) override {
    last_ = head_;
    last_.mutable_usage()->set_prompt_tokens(usage.prompt_tokens);
    last_.mutable_usage()->set_completion_tokens(usage.completion_tokens);
    last_.mutable_usage()->set_cached_tokens(usage.cached_tokens);
    last_.mutable_usage()->set_reasoning_tokens(usage.reasoning_tokens);
    has_last_ = true;
    if (stream_) return;
    for (size_t i = 0; i < returned.size(); ++i) {
      choices_[returned[i]].set_index(static_cast<int32_t>(i));
      last_.add_choices()->Swap(&choices_[returned[i]]);
    }
  }

  // A stream's message carries all pending output of all choices.
  bool write_pending() override {
    v1::GenerationResponse& response = writer_.message();
    if (pending_bytes_ > 0) {
      response = head_;
      for (size_t i = 0; i < choices_.size(); ++i) {
        if (!is_pending_[i]) continue;
        is_pending_[i] = false;
        response.add_choices()->Swap(&choices_[i]);
        choices_[i].Clear();
        choices_[i].set_index(static_cast<int32_t>(i));
      }
      pending_bytes_ = 0;
    } else if (has_last_) {
      response.Swap(&last_);
      has_last_ = false;
    } else {
      return false;
    }
    writer_.write();
    return true;
  }

  void drop_pending() override {
    choices_.clear();
    pending_bytes_ = 0;
    has_last_ = false;
  }

  void finish_wire(const grpc::Status& status) override { writer_.finish(status); }

  // An answer in one piece is not a backlog.
  void grow(size_t choice_idx, size_t num_bytes) {
    if (!stream_) return;
    is_pending_[choice_idx] = true;
    pending_bytes_ += num_bytes;
  }

  std::shared_ptr<const ServedModel> served_;  // set once prepared
  Request message_;
  const bool stream_;
  MessageWriter<v1::GenerationResponse>& writer_;  // the reactor; valid until finish_wire()
  const GenerationRequest* request_ = nullptr;     // owned by the generation
  v1::GenerationResponse head_;
  v1::GenerationResponse last_;  // a stream's usage, or the whole answer
  bool has_last_ = false;
  std::vector<v1::Choice> choices_;  // streamed: not sent yet
  std::vector<bool> is_pending_;
};

class SluiceService final : public MetadataFirstService {
 public:
  explicit SluiceService(RpcContext& rpc) : rpc_(rpc) {
    serve_generation<v1::CompletionRequest, grpc_method(kSluiceService, "Complete")>(false);
    serve_generation<v1::CompletionRequest, grpc_method(kSluiceService, "StreamComplete")>(true);
    serve_generation<v1::ChatRequest, grpc_method(kSluiceService, "Chat")>(false);
    serve_generation<v1::ChatRequest, grpc_method(kSluiceService, "StreamChat")>(true);
    serve<v1::ListModelsResponse>(kSluiceService, "ListModels", [this](auto* context) {
      return rpc_.answer<v1::ListModelsRequest, v1::ListModelsResponse>(
          *context,
          grpc_method(kSluiceService, "ListModels"),
          [this](const auto&, const auto&, auto& response) { return fill_models(response); });
    });
  }

 private:
  template <typename Request, size_t kMethod>
  void serve_generation(bool is_stream) {
    using Reactor = CallReactor<v1::GenerationResponse>;
    serve<v1::GenerationResponse>(
        kSluiceService,
        kGrpcMethods[kMethod].method,
        [this, is_stream](auto* context) -> OneRequestWire<v1::GenerationResponse>* {
          auto tenant = rpc_.admit(*context);
          if (!tenant) return rpc_.refuse<v1::GenerationResponse>(kMethod, tenant.error());
          return new Reactor(
              is_stream,
              [this, is_stream, context, tenant = *tenant](auto& message, Reactor& reactor) {
                return rpc_.begin_call(
                    kMethod,
                    std::make_shared<SluiceCall<Request>>(
                        rpc_, kMethod, *context, tenant, message, is_stream, reactor));
              });
        });
  }

  grpc::Status fill_models(v1::ListModelsResponse& response) const {
    for (const auto& [name, served] : rpc_.front_end.named_models()) {
      v1::Model& model = *response.add_models();
      model.set_id(name);
      model.set_created(rpc_.front_end.created);
      model.set_root(served->engine.model().path);
      model.set_max_model_len(served->engine.model().max_model_len);
    }
    return grpc::Status::OK;
  }

  RpcContext& rpc_;
};

}  // namespace

std::unique_ptr<grpc::Service> make_sluice_service(RpcContext& context) {
  return std::make_unique<SluiceService>(context);
}

}  // namespace sluice
