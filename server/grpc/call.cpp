// SPDX-License-Identifier: Apache-2.0
#include "server/grpc/call.h"

#include <string>
#include <string_view>
#include <utility>

#include "engine/core/log.h"
#include "server/api/generation.h"
#include "server/api/left_out.h"
#include "server/front/io_worker.h"
#include "server/grpc/rpc_context.h"
#include "server/http/api_errors.h"
#include "server/http/request_id.h"
#include "server/traces/request_span.h"

namespace sluice {
namespace {

constexpr int kMostMoves = 2;  // of one request to other versions

}  // namespace

GrpcCall::GrpcCall(FrontEnd& front_end,
                   IoWorker& call_worker,
                   size_t method,
                   grpc::CallbackServerContext& context,
                   std::shared_ptr<Tenant> tenant,
                   grpc::ByteBuffer& message)
    : front_end_(front_end),
      request_id_(request_id_of(context)),
      worker_(call_worker),
      method_(method),
      tenant_(std::move(tenant)),
      context_(&context),
      num_bytes_(message.Length()) {
  message_bytes_.Swap(&message);
}

void GrpcCall::begin() {
  front_end_.request_started();
  worker_.post([self = shared_from_this()] {
    try {
      self->read_message();
    } catch (const std::exception& error) {  // for want of memory or threads
      log_event(LogLevel::kError, "failed", "in", "call", "error", error.what());
      self->cancel_generation();
      self->fail(Error{ErrorCode::kUnavailable, "The server has too little for this call.", {}, {}});
    }
  });
}

void GrpcCall::on_write_done(bool ok) {
  worker_.post([self = shared_from_this(), ok] {
    self->writing_ = false;
    self->last_progress_ = Clock::now();
    if (!ok) self->cancel_generation();
    self->pump();
  });
}

void GrpcCall::on_cancel() {
  worker_.post([self = shared_from_this()] {
    if (self->finished_) return;
    self->cancel_generation();
    self->client_left();
  });
}

void GrpcCall::on_done() {
  {
    const std::scoped_lock lock(context_mutex_);
    context_ = nullptr;
  }
  worker_.post([self = shared_from_this()] { self->worker_.forget_deadlines(self.get()); });
  front_end_.connection_closed();
  front_end_.request_done();
}

void GrpcCall::read_message() {
  last_progress_ = Clock::now();
  worker_.watch_deadlines(this, [self = shared_from_this()] { self->check_deadline(); });
  trace_ = trace_context_of(*context_);
  client_ = address_of(context_->peer());
  if (parse(message_bytes_)) return run();
  refuse(Error{
      ErrorCode::kInvalidArgument, "The message is not of this method's type.", {}, {}});
}

void GrpcCall::run() {
  if (front_end_.is_draining()) {
    return refuse(Error{ErrorCode::kUnavailable, "The server is draining.", {}, {}});
  }
  IgnoredArguments ignored(unknown_arguments_rule(front_end_.config));
  auto request = front_end_.read_request(
      tenant_->salt(), arrival_, num_bytes_, [&](const ValidationContext& context) {
        return decode(context, ignored);
      });
  if (request) note_left_out(*request, ignored);
  front_end_.note_ignored(ignored);
  if (ignored.size() > 0) ignored_ = ignored.header_value();
  if (!request) return refuse(request.error());
  model_ = request->model;
  is_stream_ = request->stream;
  const int64_t prompt_tokens = num_prompt_tokens(*request);
  usage_.emplace().prompt_tokens = prompt_tokens;
  if (lease_ == nullptr) {
    const auto admitted = tenant_->admit(prompt_tokens, Clock::now());
    if (!admitted) return refuse(admitted.error());
    lease_ = std::make_shared<TenantLease>(tenant_);
  }
  charge_to(*request, lease_);
  request->trace = trace_;
  seed_ = std::to_string(static_cast<int64_t>(request->seed));
  const auto generation =
      std::make_shared<Generation>(front_end_, shared_from_this(), std::move(*request));
  generation_ = generation;
  trace_ = generation->trace();
  const auto started = start(generation);
  if (started) {
    generation->start();
  } else {
    fail(started.error());
  }
}

// A request that was not let in has a span all the same.
void GrpcCall::refuse(const Error& error) {
  RequestSpan span(front_end_.tracer, trace_, arrival_);
  trace_ = span.context();
  if (span.is_recorded()) {
    const GrpcMethod& method = kGrpcMethods[method_];
    span.set_name(std::string(method.service) + "/" + std::string(method.method));
    span.add("rpc.system", std::string("grpc"));
    span.add("rpc.service", std::string(method.service));
    span.add("rpc.method", std::string(method.method));
    span.add("rpc.grpc.status_code", int64_t{grpc_status(error.code)});
    span.add("gen_ai.request.id", request_id_);
    span.set_error(error);
    span.end();
  }
  fail(error);
}

void GrpcCall::cancel_generation() {
  const auto generation = generation_;  // cancelling may release it
  if (generation != nullptr) generation->cancel();
}

void GrpcCall::flush() {
  if (pending_bytes_ == 0) return;  // an answer in one piece has not begun: it may still move
  if (pending_bytes_ <= static_cast<size_t>(front_end_.config.max_stream_buffer_bytes)) {
    return pump();
  }
  set_status(Error{ErrorCode::kResourceExhausted,
                   "The client reads too slowly; --max-stream-buffer-bytes bounds what waits.",
                   {},
                   {}});
  cancel_generation();
}

void GrpcCall::add_delta(const ChoiceDelta& delta, const Usage& usage) {
  usage_ = usage;
  if (delta.finish_reason != FinishReason::kNone) note_end(finish_name(delta));
  write_delta(delta);
}

// Notes for the log how a choice ended, or all that were open.
void GrpcCall::note_end(std::string_view reason) {
  if (!finish_reasons_.empty()) finish_reasons_ += ',';
  finish_reasons_ += reason;
}

void GrpcCall::finish(std::span<const size_t> returned, const Usage& usage) {
  usage_ = usage;  // what was left out counts
  complete(returned, usage);
  status_ = grpc::Status::OK;
  pump();
}

bool GrpcCall::fail(const Error& error) {
  if (move_on(error)) return false;
  if (generation_ != nullptr && !status_) note_end(to_string(FinishReason::kError));
  set_status(error);
  pump();
  return true;
}

// Reads the request again for the version that requests go to now, if its own has no worker any
// more and nothing is sent; see start_generation().
bool GrpcCall::move_on(const Error& error) {
  if (has_begun_ || status_ || num_moves_ == kMostMoves || generation_ == nullptr) return false;
  const ServedModel& served = generation_->served();
  if (error.code != ErrorCode::kUnavailable || !front_end_.has_left(served)) return false;
  log_event(LogLevel::kInfo,
            "request_moved",
            "id",
            request_id_,
            "from",
            served.engine.model().system_fingerprint);
  ++num_moves_;
  drop_pending();
  ended();
  usage_.reset();
  finish_reasons_.clear();
  const auto old = std::move(generation_);  // its caller continues in it
  run();
  return true;
}

// Adds what the client learns before the first message. What is sent then is not read again.
void GrpcCall::begin_answer() {
  if (std::exchange(has_begun_, true)) return;
  lease_.reset();
  if (!ignored_.empty()) context_->AddInitialMetadata(kIgnoredArgumentsHeader, ignored_);
  if (!seed_.empty()) context_->AddInitialMetadata("x-sluice-seed", seed_);
}

void GrpcCall::client_left() {
  if (generation_ != nullptr && !status_) note_end(to_string(FinishReason::kAbort));
  if (!status_) status_ = grpc::Status(grpc::StatusCode::CANCELLED, "The client has left.");
  drop_pending();
  pump();
}

void GrpcCall::set_status(const Error& error) {
  if (status_) return;
  status_ = to_status(error);
  add_trailers(error, *context_);
}

void GrpcCall::pump() {
  if (finished_ || writing_) return;
  begin_answer();
  if (write_pending()) {
    writing_ = true;
    last_progress_ = Clock::now();
    return;
  }
  if (!status_) return;
  finished_ = true;
  last_progress_ = Clock::now();
  front_end_.grpc_counters.count(method_, status_->error_code());
  log();
  ended();
  const auto generation = std::move(generation_);  // may hold the last reference to this call
  finish_wire(*status_);
}

// Logs the line of FrontEnd::log_request, in gRPC's words.
void GrpcCall::log() const {
  if (!front_end_.config.enable_log_requests) return;
  const std::chrono::duration<double, std::milli> elapsed = Clock::now() - arrival_;
  const GrpcMethod& method = kGrpcMethods[method_];
  LogLine line(LogLevel::kInfo, "request");
  line.add("id", request_id_).add("method", "gRPC");
  line.add("path", "/" + std::string(method.service) + "/" + std::string(method.method));
  line.add("status", GrpcCounters::kCodes[static_cast<size_t>(status_->error_code())]);
  line.add("ms", elapsed.count()).add("client", client_).add("api", "grpc");
  line.add("key", tenant_->name());
  if (!model_.empty()) line.add("model", model_).add("stream", is_stream_);
  if (!finish_reasons_.empty()) line.add("finish", finish_reasons_);
  add_trace(trace_, line);
  if (usage_) log_usage(*usage_, line);
  line.emit();
}

// Cuts off a client that does not read; its messages wait in gRPC until then.
void GrpcCall::check_deadline() {
  if (!writing_ && !finished_) return;
  const std::chrono::seconds limit(front_end_.config.write_timeout_s);
  if (Clock::now() - last_progress_ < limit) return;
  if (!finished_) {
    set_status(Error{ErrorCode::kResourceExhausted, "The client does not read.", {}, {}});
    cancel_generation();
  }
  reset_stream();
}

void GrpcCall::reset_stream() {
  const std::scoped_lock lock(context_mutex_);
  if (context_ != nullptr) context_->TryCancel();
}

}  // namespace sluice
