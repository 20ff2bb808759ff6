// SPDX-License-Identifier: Apache-2.0
#include "server/router/worker_link.h"

#include <grpcpp/client_context.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/support/client_callback.h>

#include <chrono>
#include <utility>

#include "engine/core/config.h"
#include "server/grpc/callback_queue.h"
#include "server/grpc/server_settings.h"
#include "server/grpc/worker_codec.h"
#include "server/grpc/worker_tls.h"

namespace sluice {
namespace {

namespace wire = worker::v1;
using Stub = wire::Worker::Stub;

constexpr std::chrono::milliseconds kPingDeadline{1000};
constexpr std::chrono::milliseconds kDescribeDeadline{5000};
constexpr std::chrono::milliseconds kTokenizerDeadline{60'000};
constexpr size_t kMostTokenizerBytes = size_t{1} << 30;

grpc::ChannelArguments channel_arguments() {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(-1);
  // Workers restart at the address that they had.
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 500);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1000);
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  return arguments;
}

void set_up(grpc::ClientContext& context, const std::string& secret) {
  if (!secret.empty()) context.AddMetadata("authorization", "Bearer " + secret);
}

void set_deadline(grpc::ClientContext& context, std::chrono::milliseconds deadline) {
  context.set_deadline(std::chrono::system_clock::now() + deadline);
}

Error to_error(const grpc::Status& status) {
  switch (status.error_code()) {
    case grpc::StatusCode::DEADLINE_EXCEEDED:
      return {ErrorCode::kDeadlineExceeded, "The worker does not answer.", {}, {}};
    case grpc::StatusCode::UNAUTHENTICATED:
    case grpc::StatusCode::PERMISSION_DENIED:
      return {ErrorCode::kPermissionDenied, status.error_message(), {}, {}};
    default:
      return {ErrorCode::kUnavailable, status.error_message(), {}, {}};
  }
}

CallEnd to_end(const grpc::Status& status) {
  switch (status.error_code()) {
    case grpc::StatusCode::OK:
      return CallEnd::kComplete;
    case grpc::StatusCode::UNAVAILABLE:
    case grpc::StatusCode::CANCELLED:
    case grpc::StatusCode::UNKNOWN:
    case grpc::StatusCode::ABORTED:
    case grpc::StatusCode::DEADLINE_EXCEEDED:
      return CallEnd::kLost;
    case grpc::StatusCode::FAILED_PRECONDITION:
      return CallEnd::kOtherModel;
    case grpc::StatusCode::UNAUTHENTICATED:
    case grpc::StatusCode::PERMISSION_DENIED:
    case grpc::StatusCode::UNIMPLEMENTED:
      return CallEnd::kDenied;
    case grpc::StatusCode::INVALID_ARGUMENT:
      return CallEnd::kInvalid;
    default:
      return CallEnd::kFailed;
  }
}

// Memory of a unary call until its callback has run.
template <typename Request, typename Response>
struct UnaryCall {
  grpc::ClientContext context;
  Request request;
  Response response;
  std::shared_ptr<Stub> stub;
};

Expected<WorkerDescription> to_description(const wire::Description& message) {
  WorkerDescription description;
  SLUICE_TRY(description.model, decode(message));
  description.epoch = message.epoch();
  description.created = message.created();
  description.end_tokens.assign(message.end_tokens().begin(), message.end_tokens().end());
  description.block_size = std::max(message.block_size(), 1);
  description.max_logprobs = message.max_logprobs();
  description.kv_events_endpoint = message.kv_events_endpoint();
  return description;
}

WorkerLoad to_load(const wire::State& message) {
  return {.epoch = message.epoch(),
          .num_steps = message.num_steps(),
          .is_draining = message.is_draining(),
          .num_running = message.num_running(),
          .num_waiting = message.num_waiting(),
          .queued_tokens = message.queued_tokens(),
          .num_blocks_total = message.num_blocks_total(),
          .num_blocks_used = message.num_blocks_used(),
          .num_open = message.has_num_open() ? std::optional(message.num_open()) : std::nullopt};
}

CallUpdate to_update(const wire::GenerateResponse& message) {
  CallUpdate update;
  update.accepted = message.accepted();
  if (message.has_refusal()) update.refusal = decode(message.refusal());
  update.position = message.position();
  for (const wire::TokenOutput& item : message.outputs()) {
    auto output = decode(item);
    if (!output) {
      update.is_broken = true;
      break;
    }
    update.outputs.push_back(std::move(*output));
  }
  return update;
}

// Holds itself until OnDone().
class GenerateCall final : public grpc::ClientReadReactor<wire::GenerateResponse>,
                           public WorkerCallHandle {
 public:
  GenerateCall(std::shared_ptr<RouterLoop> loop,
               std::shared_ptr<Stub> stub,
               std::function<void(CallUpdate)> on_update,
               std::function<void(CallEnd, const std::string&)> end)
      : loop_(std::move(loop)),
        stub_(std::move(stub)),
        on_update_(std::move(on_update)),
        end_(std::move(end)) {}

  void begin(std::shared_ptr<GenerateCall> self, const std::string& secret) {
    self_ = std::move(self);
    set_up(context_, secret);
    stub_->async()->Generate(&context_, &request, this);
    StartRead(&response_);
    StartCall();
  }

  void cancel() override { context_.TryCancel(); }

  void OnReadDone(bool ok) override {
    if (!ok) return;
    loop_->post([call = self_, update = std::make_shared<CallUpdate>(to_update(response_))] {
      call->on_update_(std::move(*update));
    });
    StartRead(&response_);
  }

  void OnDone(const grpc::Status& status) override {
    loop_->post([call = std::move(self_), end = to_end(status), reason = status.error_message()] {
      call->end_(end, reason);
    });
  }

  wire::GenerateRequest request;

 private:
  std::shared_ptr<RouterLoop> loop_;
  std::shared_ptr<Stub> stub_;
  std::function<void(CallUpdate)> on_update_;
  std::function<void(CallEnd, const std::string&)> end_;
  std::shared_ptr<GenerateCall> self_;
  grpc::ClientContext context_;
  wire::GenerateResponse response_;
};

// Collects the tokenizer's files. Deletes itself.
class FilesCall final : public grpc::ClientReadReactor<wire::FilePiece> {
 public:
  using Files = std::vector<NamedFile>;

  FilesCall(std::shared_ptr<RouterLoop> loop,
            std::shared_ptr<Stub> stub,
            std::function<void(Expected<Files>)> done)
      : loop_(std::move(loop)), stub_(std::move(stub)), done_(std::move(done)) {}

  void begin(const std::string& secret) {
    set_up(context_, secret);
    set_deadline(context_, kTokenizerDeadline);
    stub_->async()->GetTokenizer(&context_, &request_, this);
    StartRead(&piece_);
    StartCall();
  }

  void OnReadDone(bool ok) override {
    if (!ok) return;
    if (files_.empty() || files_.back().name != piece_.name())
      files_.push_back({piece_.name(), {}});
    files_.back().content += piece_.content();
    num_bytes_ += piece_.content().size();
    if (num_bytes_ > kMostTokenizerBytes) context_.TryCancel();
    StartRead(&piece_);
  }

  void OnDone(const grpc::Status& status) override {
    const auto result = std::make_shared<Expected<Files>>(std::move(files_));
    if (!status.ok()) *result = tl::unexpected(to_error(status));
    loop_->post([done = std::move(done_), result] { done(std::move(*result)); });
    delete this;
  }

 private:
  std::shared_ptr<RouterLoop> loop_;
  std::shared_ptr<Stub> stub_;
  std::function<void(Expected<Files>)> done_;
  grpc::ClientContext context_;
  wire::GetTokenizerRequest request_;
  wire::FilePiece piece_;
  Files files_;
  size_t num_bytes_ = 0;
};

}  // namespace

WorkerLink::WorkerLink(const Config& config,
                       const std::string& address,
                       std::shared_ptr<RouterLoop> loop)
    : secret_(config.worker_secret), loop_(std::move(loop)) {
  set_up_grpc();
  keep_callback_queue();
  channel_ = grpc::CreateCustomChannel(
      address, channel_credentials(router_tls(config)), channel_arguments());
  stub_ = wire::Worker::NewStub(channel_);
}

void WorkerLink::describe(std::function<void(Expected<WorkerDescription>)> done) {
  const auto call = std::make_shared<UnaryCall<wire::DescribeRequest, wire::Description>>();
  call->stub = stub_;
  set_up(call->context, secret_);
  set_deadline(call->context, kDescribeDeadline);
  stub_->async()->Describe(
      &call->context,
      &call->request,
      &call->response,
      [call, loop = loop_, done = std::move(done)](const grpc::Status& status) {
        const auto result = std::make_shared<Expected<WorkerDescription>>(
            status.ok() ? to_description(call->response) : tl::unexpected(to_error(status)));
        loop->post([done, result] { done(std::move(*result)); });
      });
}

void WorkerLink::ping(std::function<void(Expected<WorkerLoad>)> done) {
  const auto call = std::make_shared<UnaryCall<wire::GetStateRequest, wire::State>>();
  call->stub = stub_;
  set_up(call->context, secret_);
  set_deadline(call->context, kPingDeadline);
  stub_->async()->GetState(
      &call->context,
      &call->request,
      &call->response,
      [call, loop = loop_, done = std::move(done)](const grpc::Status& status) {
        Expected<WorkerLoad> result = to_load(call->response);
        if (!status.ok()) result = tl::unexpected(to_error(status));
        loop->post([done, result] { done(result); });
      });
}

void WorkerLink::fetch_tokenizer(std::function<void(Expected<std::vector<NamedFile>>)> done) {
  (new FilesCall(loop_, stub_, std::move(done)))->begin(secret_);
}

std::shared_ptr<WorkerCallHandle> WorkerLink::generate(
    const ValidRequest& request,
    const std::string& fingerprint,
    std::function<void(CallUpdate)> on_update,
    std::function<void(CallEnd, const std::string&)> end) {
  auto call = std::make_shared<GenerateCall>(loop_, stub_, std::move(on_update), std::move(end));
  encode(request, WorkerClock::now(), *call->request.mutable_request());
  call->request.set_fingerprint(fingerprint);
  call->begin(call, secret_);
  return call;
}

}  // namespace sluice
