// SPDX-License-Identifier: Apache-2.0
#include "server/grpc/vllm_service.h"

#include <vllm_engine.grpc.pb.h>

#include <atomic>
#include <chrono>
#include <ctime>
#include <string>
#include <utility>
#include <vector>

#include "engine/core/utc_time.h"
#include "engine/core/version.h"
#include "engine/tokenizer/tokenizer.h"
#include "server/api/answer_id.h"
#include "server/api/generation.h"
#include "server/grpc/cache_calls.h"
#include "server/grpc/embed_call.h"
#include "server/grpc/reactors.h"
#include "server/grpc/request_decoder.h"
#include "server/grpc/rpc_context.h"
#include "server/grpc/tokenizer_bundle.h"
#include "server/http/request_id.h"
#include "server/json/json_fields.h"

namespace sluice {
namespace {

namespace engine = vllm::grpc::engine;

constexpr size_t kMaxRequestIdBytes = 256;

template <typename Ids>
void append_ids(const std::vector<TokenId>& from, Ids& to) {
  for (const TokenId id : from) to.Add(static_cast<uint32_t>(id));
}

void fill_top(const std::vector<TokenLogprob>& from, engine::TopLogProbs& to) {
  for (const TokenLogprob& item : from) {
    to.add_values(item.logprob);
    to.add_token_ids(static_cast<uint32_t>(item.token));
  }
}

class VllmCall final : public GrpcCall {
 public:
  VllmCall(RpcContext& rpc,
           grpc::CallbackServerContext& context,
           const std::shared_ptr<Tenant>& tenant,
           grpc::ByteBuffer& message,
           MessageWriter<engine::GenerateResponse>& writer)
      : GrpcCall(rpc.front_end,
                 rpc.worker_of(message.Length()),
                 grpc_method(kVllmService, "Generate"),
                 context,
                 tenant,
                 message),
        named_(rpc.named),
        name_(tenant->salt(), ""),
        writer_(writer) {}

  void prepare(const GenerationRequest& request) override {
    request_ = &request;
    if (request_id_.empty()) request_id_ = answer_id(request.endpoint);
    choices_.resize(request.requests.size());
    for (size_t i = 0; i < choices_.size(); ++i) {
      choices_[i].prompt_tokens = static_cast<uint32_t>(request.requests[i].prompt.size());
    }
    if (request.num_prompt_logprobs < 0) return;
    prompt_logprobs_.add_token_logprobs();
    prompt_logprobs_.add_token_ids(static_cast<uint32_t>(request.requests.front().prompt.front()));
    prompt_logprobs_.add_top_logprobs();
  }

  // The only prompt is scored by the first choice.
  void add_prompt(size_t, std::span<const PromptLogprob> scored) override {
    for (const PromptLogprob& token : scored) {
      prompt_logprobs_.add_token_logprobs()->set_value(token.logprob);
      prompt_logprobs_.add_token_ids(static_cast<uint32_t>(token.token));
      fill_top(token.top_logprobs, *prompt_logprobs_.add_top_logprobs());
    }
  }

  void add_token(size_t choice_idx, const TokenOutput& output) override {
    Choice& choice = choices_[choice_idx];
    choice.token_ids.push_back(output.token);
    if (request_->stream) pending_bytes_ += sizeof(TokenId);
    if (!request_->wants_logprobs) return;
    choice.logprobs.add_token_logprobs(output.logprob);
    choice.logprobs.add_token_ids(static_cast<uint32_t>(output.token));
    fill_top(output.top_logprobs, *choice.logprobs.add_top_logprobs());
    if (request_->stream) pending_bytes_ += 2 * sizeof(float) * (1 + output.top_logprobs.size());
  }

  void write_delta(const ChoiceDelta& delta) override {
    Choice& choice = choices_[delta.choice_idx];
    choice.num_tokens = static_cast<uint32_t>(delta.num_tokens);
    choice.num_cached = static_cast<uint32_t>(delta.num_cached);
    choice.finish_reason = delta.finish_reason;
    choice.matched_stop = delta.matched_stop;
    choice.stop_token = delta.stop_token;
    choice.kv_params = delta.kv_params;
  }

 private:
  struct Choice {
    std::vector<TokenId> token_ids;
    engine::OutputLogProbs logprobs;  // not sent yet
    size_t num_sent = 0;              // items of token_ids that were sent
    uint32_t prompt_tokens = 0;
    uint32_t num_tokens = 0;
    uint32_t num_cached = 0;
    FinishReason finish_reason = FinishReason::kNone;
    std::string_view matched_stop;
    TokenId stop_token = kInvalidToken;
    std::string kv_params;   // JSON; empty: none
    bool completed = false;  // its complete message is sent
  };

  bool parse(grpc::ByteBuffer& message) override {
    if (!sluice::parse(message, message_)) return false;
    name_.second = message_.request_id();
    if (request_id_.empty()) request_id_ = safe_request_id(name_.second);
    return true;
  }

  Expected<GenerationRequest> decode(const ValidationContext& context,
                                     IgnoredArguments& ignored) override {
    if (name_.second.size() > kMaxRequestIdBytes) {
      return make_error(ErrorCode::kInvalidArgument,
                        "request_id may have at most " + std::to_string(kMaxRequestIdBytes) +
                            " bytes, got " + std::to_string(name_.second.size()) + ".",
                        "request_id");
    }
    return sluice::decode(context, message_, ignored);
  }

  Expected<void> start(const std::shared_ptr<Generation>& generation) override {
    if (name_.second.empty()) return {};
    if (!named_.add(name_, generation, worker())) {
      return make_error(ErrorCode::kInvalidArgument,
                        "request_id '" + show_text(name_.second) + "' is already running.",
                        "request_id");
    }
    is_named_ = true;
    return {};
  }

  void ended() override {
    if (std::exchange(is_named_, false)) named_.remove(name_);
  }

  void complete(std::span<const size_t> returned, const Usage&) override {
    returned_.assign(returned.begin(), returned.end());
  }

  bool write_pending() override {
    engine::GenerateResponse& response = writer_.message();
    if (request_ != nullptr && request_->stream) {
      for (size_t i = 0; i < choices_.size(); ++i) {
        Choice& choice = choices_[i];
        if (choice.num_sent == choice.token_ids.size()) continue;
        fill_chunk(i, *response.mutable_chunk());
        writer_.write();
        return true;
      }
    }
    for (size_t i = 0; i < returned_.size(); ++i) {
      if (choices_[returned_[i]].completed) continue;
      fill_complete(i, *response.mutable_complete());
      writer_.write();
      return true;
    }
    return false;
  }

  void drop_pending() override {
    choices_.clear();
    returned_.clear();
    prompt_logprobs_.Clear();
    pending_bytes_ = 0;
  }

  void finish_wire(const grpc::Status& status) override { writer_.finish(status); }

  void fill_chunk(size_t choice_idx, engine::GenerateStreamChunk& chunk) {
    Choice& choice = choices_[choice_idx];
    chunk.Clear();
    for (size_t i = choice.num_sent; i < choice.token_ids.size(); ++i) {
      chunk.add_token_ids(static_cast<uint32_t>(choice.token_ids[i]));
    }
    choice.num_sent = choice.token_ids.size();
    chunk.set_prompt_tokens(choice.prompt_tokens);
    chunk.set_completion_tokens(choice.num_tokens);
    chunk.set_cached_tokens(choice.num_cached);
    chunk.set_index(static_cast<uint32_t>(choice_idx));
    if (request_->wants_logprobs) chunk.mutable_output_logprobs()->Swap(&choice.logprobs);
    choice.logprobs.Clear();
    recount_pending();
  }

  void fill_complete(size_t index, engine::GenerateComplete& complete) {
    Choice& choice = choices_[returned_[index]];
    complete.Clear();
    append_ids(choice.token_ids, *complete.mutable_output_ids());
    complete.set_finish_reason(std::string(to_string(choice.finish_reason)));
    complete.set_prompt_tokens(choice.prompt_tokens);
    complete.set_completion_tokens(choice.num_tokens);
    complete.set_cached_tokens(choice.num_cached);
    complete.set_index(static_cast<uint32_t>(index));
    if (request_->wants_logprobs && !request_->stream) {
      complete.mutable_output_logprobs()->Swap(&choice.logprobs);
    }
    if (prompt_logprobs_.token_ids_size() > 0) {
      *complete.mutable_input_logprobs() = prompt_logprobs_;
    }
    if (!choice.matched_stop.empty()) {
      complete.set_matched_stop_str(std::string(choice.matched_stop));
    } else if (choice.stop_token != kInvalidToken) {
      complete.set_matched_token_id(static_cast<uint32_t>(choice.stop_token));
    }
    if (!choice.kv_params.empty()) fill_transfer(choice.kv_params, complete);
    choice.completed = true;
  }

  void fill_transfer(const std::string& json, engine::GenerateComplete& complete) {
    complete.set_kv_transfer_params_json(json);
    if (const auto& info = front_end_.engine.model().handoff) {
      complete.mutable_kv_transfer_params()->set_remote_host(info->host);
      complete.mutable_kv_transfer_params()->set_remote_port(static_cast<uint32_t>(info->port));
    }
  }

  // Counts only what a stream's reader could have read; an answer in one piece is not a backlog.
  void recount_pending() {
    pending_bytes_ = 0;
    for (const Choice& choice : choices_) {
      pending_bytes_ += (choice.token_ids.size() - choice.num_sent) * sizeof(TokenId);
      for (const auto& top : choice.logprobs.top_logprobs()) {
        pending_bytes_ += 2 * sizeof(float) * static_cast<size_t>(1 + top.values_size());
      }
    }
  }

  NamedGenerations& named_;
  NamedGenerations::Name name_;
  bool is_named_ = false;
  engine::GenerateRequest message_;
  MessageWriter<engine::GenerateResponse>& writer_;  // the reactor; valid until finish_wire()
  const GenerationRequest* request_ = nullptr;       // owned by the generation
  std::vector<Choice> choices_;
  engine::InputLogProbs prompt_logprobs_;
  std::vector<size_t> returned_;  // set when the generation is complete
};

// Sends an archive in pieces and deletes itself; it reads no request, which would say nothing.
// gRPC's threads, which also make the first archive.
class TokenizerReactor final : public OneRequestWire<smg::grpc::common::GetTokenizerChunk> {
 public:
  TokenizerReactor(RpcContext& rpc, Expected<std::shared_ptr<const TokenizerBundle>> bundle)
      : rpc_(rpc) {
    if (bundle) {
      bundle_ = std::move(*bundle);
      write_next();
    } else {
      end(to_status(bundle.error()));
    }
  }

  void OnWriteDone(bool ok) override {
    if (!ok) return end(grpc::Status::CANCELLED);
    if (num_sent_ == bundle_->archive.size()) return end(grpc::Status::OK);
    write_next();
  }

  void OnDone() override { delete this; }

 private:
  void write_next() {
    constexpr size_t kChunkBytes = 64 << 10;
    chunk_.set_data(bundle_->archive.substr(num_sent_, kChunkBytes));
    num_sent_ += chunk_.data().size();
    if (num_sent_ == bundle_->archive.size()) chunk_.set_sha256(bundle_->sha256);
    StartWrite(&chunk_);
  }

  void end(const grpc::Status& status) {
    rpc_.front_end.grpc_counters.count(grpc_method(kVllmService, "GetTokenizer"),
                                       status.error_code());
    Finish(status);
  }

  RpcContext& rpc_;
  std::shared_ptr<const TokenizerBundle> bundle_;
  smg::grpc::common::GetTokenizerChunk chunk_;
  size_t num_sent_ = 0;
};

class VllmService final : public MetadataFirstService {
 public:
  explicit VllmService(RpcContext& rpc)
      : rpc_(rpc), tokenizer_(rpc.front_end.config.chat_template) {
    serve<engine::GenerateResponse>(
        kVllmService, "Generate", [this](auto* context) { return generate(*context); });
    serve_queries();
    serve_cache_calls();
  }

 private:
  void serve_queries() {
    serve<engine::EmbedResponse>(
        kVllmService, "Embed", [this](auto* context) { return embed(rpc_, *context); });
    serve<engine::HealthCheckResponse>(kVllmService, "HealthCheck", [this](auto* context) {
      return rpc_.respond(*context, grpc_method(kVllmService, "HealthCheck"), health());
    });
    serve<engine::GetModelInfoResponse>(kVllmService, "GetModelInfo", [this](auto* context) {
      return rpc_.answer<engine::GetModelInfoRequest, engine::GetModelInfoResponse>(
          *context,
          grpc_method(kVllmService, "GetModelInfo"),
          [this](const auto&, const auto&, auto& response) { return fill_model(response); });
    });
    serve<engine::GetServerInfoResponse>(kVllmService, "GetServerInfo", [this](auto* context) {
      return rpc_.respond(*context, grpc_method(kVllmService, "GetServerInfo"), server_info());
    });
    serve<engine::GetLoadsResponse>(
        kVllmService, "GetLoads", [this](auto* context) { return get_loads(*context); });
    using Chunk = smg::grpc::common::GetTokenizerChunk;
    serve<Chunk>(
        kVllmService, "GetTokenizer", [this](auto* context) -> OneRequestWire<Chunk>* {
          const auto tenant = rpc_.admit(*context);
          if (!tenant) return new TokenizerReactor(rpc_, tl::unexpected(tenant.error()));
          return new TokenizerReactor(rpc_, tokenizer_.get(rpc_.front_end.usual_model()->engine));
        });
  }

  void serve_cache_calls() {
    serve<engine::AbortResponse>(kVllmService, "Abort", [this](auto* context) {
      return rpc_.answer<engine::AbortRequest, engine::AbortResponse>(
          *context,
          grpc_method(kVllmService, "Abort"),
          [this](const auto& tenant, const auto& request, auto&) {
            for (const std::string& id : request.request_ids()) {
              if (id.empty() || id.size() > kMaxRequestIdBytes) continue;
              rpc_.named.abort({tenant.salt(), id});
            }
            return grpc::Status::OK;
          });
    });
    serve<smg::grpc::common::KvEventBatch>(
        kVllmService, "SubscribeKvEvents", [this](auto* context) {
          return subscribe_kv_events(rpc_, *context);
        });
    serve<smg::grpc::common::FlushCacheResponse>(
        kVllmService, "FlushCache", [this](auto* context) { return flush_cache(rpc_, *context); });
  }

  OneRequestWire<engine::GenerateResponse>* generate(grpc::CallbackServerContext& context) {
    last_receive_ = static_cast<int64_t>(std::time(nullptr));
    auto tenant = rpc_.admit(context);
    constexpr size_t kMethod = grpc_method(kVllmService, "Generate");
    if (!tenant) return rpc_.refuse<engine::GenerateResponse>(kMethod, tenant.error());
    using Reactor = CallReactor<engine::GenerateResponse>;
    return new Reactor(true, [this, &context, tenant = *tenant](auto& message, Reactor& reactor) {
      return rpc_.begin_call(
          kMethod, std::make_shared<VllmCall>(rpc_, context, tenant, message, reactor));
    });
  }

  [[nodiscard]] engine::HealthCheckResponse health() const {
    const std::string illness = rpc_.front_end.illness();
    engine::HealthCheckResponse response;
    response.set_healthy(illness.empty());
    response.set_message(illness.empty() ? "Healthy" : illness);
    return response;
  }

  grpc::Status fill_model(engine::GetModelInfoResponse& response) const {
    const auto usual = rpc_.front_end.usual_model();
    const Engine& served = usual->engine;
    const ModelInfo& model = served.model();
    response.set_model_path(model.path);
    response.set_is_generation(!model.pooling);
    response.set_max_context_length(static_cast<uint32_t>(model.max_model_len));
    response.set_vocab_size(static_cast<uint32_t>(model.vocab_size));
    response.set_served_model_name(usual->names.front());
    response.set_model_type(model.architecture);
    for (const TokenId id : served.tokenizer().end_tokens()) response.add_eos_token_ids(id);
    response.set_bos_token_id(served.tokenizer().bos());
    response.set_max_req_input_len(model.max_model_len - 1);
    return grpc::Status::OK;
  }

  [[nodiscard]] engine::GetServerInfoResponse server_info() const {
    const FrontEnd& front_end = rpc_.front_end;
    const EngineStats stats = front_end.engine.stats();
    const std::chrono::duration<double> up = std::chrono::steady_clock::now() - front_end.start;
    engine::GetServerInfoResponse response;
    response.set_active_requests(
        static_cast<uint32_t>(stats.num_requests_running + stats.num_requests_waiting));
    response.set_is_paused(front_end.is_draining());
    response.set_last_receive_timestamp(static_cast<double>(last_receive_.load()));
    response.set_uptime_seconds(up.count());
    response.set_server_type("vllm-grpc");
    const HandoffConfig& handoff = front_end.handoff;
    if (!handoff.connector.empty()) {
      response.set_kv_connector(handoff.connector);
      response.set_kv_role(std::string(kv_role_name(handoff.role)));
      response.set_kv_engine_id(front_end.engine_id);
    }
    response.set_data_parallel_size(1);
    return response;
  }

  // Open to all. The message counts, but is not read where the call has no key.
  OneRequestWire<engine::GetLoadsResponse>* get_loads(grpc::CallbackServerContext& context) {
    constexpr size_t kMethod = grpc_method(kVllmService, "GetLoads");
    if (!rpc_.admit(context)) return rpc_.respond(context, kMethod, loads());
    using Reactor = AnswerReactor<engine::GetLoadsRequest, engine::GetLoadsResponse>;
    return new Reactor(
        [this](const engine::GetLoadsRequest& request, Reactor& reactor) {
          if (request.has_dp_rank() && request.dp_rank() != 0) {
            return reactor.finish(rpc_.refusal(
                kMethod, Error{ErrorCode::kInvalidArgument, "dp_rank must be 0.", "dp_rank", {}}));
          }
          reactor.response() = loads();
          reactor.finish(rpc_.count(kMethod, grpc::Status::OK));
        },
        kMostQuestionBytes);
  }

  [[nodiscard]] engine::GetLoadsResponse loads() const {
    engine::GetLoadsResponse response;
    response.set_timestamp(utc_text(static_cast<int64_t>(std::time(nullptr))));
    response.set_version(std::string(version()));
    response.set_dp_rank_count(1);
    fill_load(*response.add_loads());
    return response;
  }

  void fill_load(engine::SchedulerLoad& load) const {
    const EngineStats stats = rpc_.front_end.engine.stats();
    const auto share = [](auto part, auto whole) {
      return whole == 0 ? 0.0 : static_cast<double>(part) / static_cast<double>(whole);
    };
    load.set_num_running_reqs(static_cast<int32_t>(stats.num_requests_running));
    load.set_num_waiting_reqs(static_cast<int32_t>(stats.num_requests_waiting));
    load.set_num_total_reqs(load.num_running_reqs() + load.num_waiting_reqs());
    load.set_num_used_tokens(static_cast<int32_t>(stats.num_blocks_used * stats.block_size));
    load.set_max_total_num_tokens(static_cast<int32_t>(stats.num_blocks_total * stats.block_size));
    load.set_token_usage(share(stats.num_blocks_used, stats.num_blocks_total));
    load.set_cache_hit_rate(share(stats.prefix_cache_hits, stats.prefix_cache_queries));
    load.set_max_running_requests(rpc_.front_end.config.max_num_seqs);
  }

  RpcContext& rpc_;
  TokenizerBundleSource tokenizer_;
  std::atomic<int64_t> last_receive_{0};
};

}  // namespace

std::unique_ptr<grpc::Service> make_vllm_service(RpcContext& context) {
  return std::make_unique<VllmService>(context);
}

}  // namespace sluice
