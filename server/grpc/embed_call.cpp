// SPDX-License-Identifier: Apache-2.0
#include "server/grpc/embed_call.h"

#include <chrono>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>

#include "engine/core/config.h"
#include "engine/core/log.h"
#include "server/api/pooling_run.h"
#include "server/front/io_worker.h"
#include "server/grpc/message_json.h"
#include "server/grpc/reactors.h"
#include "server/grpc/rpc_context.h"
#include "server/http/request_id.h"
#include "server/keys/tenant.h"

namespace sluice {
namespace {

using vllm::grpc::engine::EmbedRequest;
using vllm::grpc::engine::EmbedResponse;

constexpr size_t kEmbedMethod = grpc_method(kVllmService, "Embed");

Expected<PooledRequest> decode_embed_request(const ValidationContext& context,
                                             const EmbedRequest& message,
                                             IgnoredArguments& ignored) {
  using Json = nlohmann::ordered_json;
  SLUICE_TRY(const Json fields, message_json(message, ignored));
  SLUICE_TRY(const PoolingInfo info, pooling_of(context, PooledKind::kVectors));
  const Json tokenized = fields.value("tokenized", Json::object());
  InputRules rules;
  rules.most = info.max_tokens;
  rules.cuts = context.config.auto_truncate;
  rules.param = "tokenized.input_ids";
  SLUICE_TRY(auto prompts,
             read_inputs(context, rules, tokenized.value("input_ids", Json::array())));
  return make_pooled_request(context, Json::object(), {}, std::move(prompts));
}

// The functions that gRPC's threads call are those of GrpcCall; all else happens on its I/O thread.
class EmbedCall final : public PooledSink, public std::enable_shared_from_this<EmbedCall> {
 public:
  EmbedCall(RpcContext& rpc,
            grpc::CallbackServerContext& context,
            std::shared_ptr<Tenant> tenant,
            grpc::ByteBuffer& message,
            MessageWriter<EmbedResponse>& writer)
      : front_end_(rpc.front_end),
        worker_(rpc.worker_of(message.Length())),
        tenant_(std::move(tenant)),
        context_(&context),
        request_id_(request_id_of(context)),
        writer_(writer) {
    bytes_.Swap(&message);
  }

  void begin() {
    front_end_.request_started();
    worker_.post([self = shared_from_this()] {
      try {
        self->run();
      } catch (const std::exception& error) {  // for want of memory
        log_event(LogLevel::kError, "failed", "in", "call", "error", error.what());
        self->fail(Error{
            ErrorCode::kUnavailable, "The server has too little for this call.", {}, {}});
      }
    });
  }

  void on_write_done(bool) {}

  void on_cancel() {
    worker_.post([self = shared_from_this()] {
      if (self->run_ != nullptr) self->run_->cancel();
      self->end({grpc::StatusCode::CANCELLED, "The client has left."}, FinishReason::kAbort);
    });
  }

  void on_done() {
    {
      const std::scoped_lock lock(context_mutex_);
      context_ = nullptr;
    }
    worker_.post([self = shared_from_this()] { self->worker_.forget_deadlines(self.get()); });
    front_end_.connection_closed();
    front_end_.request_done();
  }

  IoWorker& worker() override { return worker_; }

  void finish(const PooledAnswer& answer, const Usage& usage) override {
    if (is_over_) return;
    usage_ = usage;
    EmbedResponse& response = writer_.message();
    const std::vector<float>& vector = answer.vectors.front();
    response.mutable_embedding()->Add(vector.begin(), vector.end());
    response.set_prompt_tokens(static_cast<uint32_t>(answer.num_tokens));
    response.set_embedding_dim(static_cast<uint32_t>(vector.size()));
    writer_.write();
    end(grpc::Status::OK, FinishReason::kStop);
  }

  void fail(const Error& error, const Usage& usage) override {
    usage_ = usage;
    fail(error);
  }

 private:
  void run() {
    trace_ = trace_context_of(*context_);
    client_ = address_of(context_->peer());
    EmbedRequest message;
    const size_t num_bytes = bytes_.Length();
    if (!parse(bytes_, message)) {
      return fail(Error{
          ErrorCode::kInvalidArgument, "The message is not of this method's type.", {}, {}});
    }
    if (request_id_.empty()) request_id_ = safe_request_id(message.request_id());
    if (front_end_.is_draining()) {
      return fail(Error{ErrorCode::kUnavailable, "The server is draining.", {}, {}});
    }
    IgnoredArguments ignored(unknown_arguments_rule(front_end_.config));
    auto request = front_end_.read_request(
        tenant_->salt(), arrival_, num_bytes, [&](const ValidationContext& context) {
          return decode_embed_request(context, message, ignored);
        });
    front_end_.note_ignored(ignored);
    if (ignored.size() > 0) {
      context_->AddInitialMetadata(kIgnoredArgumentsHeader, ignored.header_value());
    }
    if (!request) return fail(request.error());
    model_ = request->model;
    usage_.emplace().prompt_tokens = request->num_tokens();
    if (const auto admitted = admit_pooled(tenant_, *request); !admitted) {
      return fail(admitted.error());
    }
    run_ = std::make_shared<PoolingRun>(
        front_end_, shared_from_this(), std::move(*request), trace_, arrival_);
    if (request_id_.empty()) request_id_ = run_->id();
    trace_ = run_->trace();
    const std::shared_ptr<PoolingRun> run = run_;  // which may end at once
    run->start();
  }

  void fail(const Error& error) {
    if (is_over_) return;
    add_trailers(error, *context_);
    end(to_status(error), FinishReason::kError);
  }

  void end(const grpc::Status& status, FinishReason reason) {
    if (std::exchange(is_over_, true)) return;
    run_.reset();
    front_end_.grpc_counters.count(kEmbedMethod, status.error_code());
    log(status, reason);
    // A client that does not read its answer is cut off.
    ended_ = Clock::now();
    worker_.watch_deadlines(this, [self = shared_from_this()] { self->check_deadline(); });
    writer_.finish(status);
  }

  void check_deadline() {
    if (Clock::now() - ended_ < std::chrono::seconds(front_end_.config.write_timeout_s)) return;
    const std::scoped_lock lock(context_mutex_);
    if (context_ != nullptr) context_->TryCancel();
  }

  void log(const grpc::Status& status, FinishReason reason) const {
    if (!front_end_.config.enable_log_requests) return;
    const std::chrono::duration<double, std::milli> elapsed = Clock::now() - arrival_;
    LogLine line(LogLevel::kInfo, "request");
    line.add("id", request_id_).add("method", "gRPC");
    line.add("path", "/" + std::string(kVllmService) + "/Embed");
    line.add("status", GrpcCounters::kCodes[static_cast<size_t>(status.error_code())]);
    line.add("ms", elapsed.count()).add("client", client_).add("api", "grpc");
    line.add("key", tenant_->name());
    if (!model_.empty()) line.add("model", model_).add("stream", false);
    line.add("finish", std::string(to_string(reason)));
    add_trace(trace_, line);
    if (usage_) log_usage(*usage_, line);
    line.emit();
  }

  using Clock = std::chrono::steady_clock;

  FrontEnd& front_end_;
  IoWorker& worker_;
  const std::shared_ptr<Tenant> tenant_;
  const Clock::time_point arrival_ = Clock::now();
  std::mutex context_mutex_;  // a gRPC thread ends the context while the I/O thread may reset it
  grpc::CallbackServerContext* context_;  // null: done
  std::string request_id_;                // x-request-id, a message's name, or the answer's
  MessageWriter<EmbedResponse>& writer_;  // the reactor; valid until finish()
  grpc::ByteBuffer bytes_;                // until they are parsed
  std::shared_ptr<PoolingRun> run_;       // until the status is sent; it holds this call
  bool is_over_ = false;
  std::optional<Usage> usage_;  // for the log, like the next three
  std::string client_;
  std::string model_;
  TraceContext trace_;
  Clock::time_point ended_;
};

}  // namespace

OneRequestWire<EmbedResponse>* embed(RpcContext& rpc, grpc::CallbackServerContext& context) {
  auto tenant = rpc.admit(context);
  if (!tenant) return rpc.refuse<EmbedResponse>(kEmbedMethod, tenant.error());
  using Reactor = CallReactor<EmbedResponse, EmbedCall>;
  return new Reactor(false, [&rpc, &context, tenant = *tenant](auto& message, Reactor& reactor) {
    return rpc.begin_call(
        kEmbedMethod, std::make_shared<EmbedCall>(rpc, context, tenant, message, reactor));
  });
}

}  // namespace sluice
