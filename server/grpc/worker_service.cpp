// SPDX-License-Identifier: Apache-2.0
#include "server/grpc/worker_service.h"

#include <openssl/crypto.h>
#include <strings.h>

#include <boost/asio/post.hpp>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "engine/core/config.h"
#include "engine/tokenizer/tokenizer.h"
#include "server/front/front_end.h"
#include "server/grpc/counted_port.h"
#include "server/grpc/rpc_context.h"
#include "server/grpc/worker_check.h"
#include "server/grpc/worker_codec.h"
#include "server/http/connection.h"
#include "server/traces/request_span.h"

namespace sluice {
namespace {

namespace wire = worker::v1;

// Limit of one answer's output that a router has not read; log-probabilities of a long prompt are
// large.
constexpr size_t kMostPendingBytes = size_t{64} << 20;

uint64_t random_epoch() {
  std::random_device device;
  return (static_cast<uint64_t>(device()) << 32 | device()) | 1;
}

// Returns the endpoint of --kv-events-config, which the engine has accepted; empty: nothing is
// published.
std::string kv_events_endpoint(const Config& config) {
  using Json = nlohmann::json;
  const Json given = Json::parse(config.kv_events_config, nullptr, /*allow_exceptions=*/false);
  if (!given.is_object() || given.value("enable_kv_cache_events", Json()) != true ||
      given.value("publisher", Json("zmq")) == "null") {
    return {};
  }
  const Json endpoint = given.value("endpoint", Json("tcp://*:5557"));
  return endpoint.is_string() ? endpoint.get<std::string>() : std::string();
}

// Sends files, or a status alone; the request says nothing that it would read. Deletes itself.
class FilesReactor final : public OneRequestWire<wire::FilePiece> {
 public:
  explicit FilesReactor(const grpc::Status& status) { Finish(status); }

  explicit FilesReactor(std::vector<NamedFile> files) : files_(std::move(files)) { write_next(); }

  void OnWriteDone(bool ok) override {
    if (!ok) return Finish(grpc::Status::CANCELLED);
    write_next();
  }

  void OnDone() override { delete this; }

 private:
  void write_next() {
    constexpr size_t kPieceBytes = 256 << 10;
    if (file_idx_ == files_.size()) return Finish(grpc::Status::OK);
    const NamedFile& file = files_[file_idx_];
    piece_.set_name(file.name);
    piece_.set_content(file.content.substr(num_sent_, kPieceBytes));
    num_sent_ += piece_.content().size();
    if (num_sent_ == file.content.size()) {
      ++file_idx_;
      num_sent_ = 0;
    }
    StartWrite(&piece_);
  }

  std::vector<NamedFile> files_;
  size_t file_idx_ = 0;
  size_t num_sent_ = 0;  // bytes of that file that were sent
  wire::FilePiece piece_;
};

}  // namespace

// One request's call, held by gRPC's object and by posted tasks.
class WorkerCall final : public std::enable_shared_from_this<WorkerCall> {
 public:
  // `writer`: valid until it is finished.
  WorkerCall(WorkerService& service,
             ValidRequest request,
             MessageWriter<wire::GenerateResponse>& writer)
      : service_(service),
        writer_(writer),
        request_(std::move(request)),
        span_(service.front_end_.tracer, request_.trace, request_.arrival),
        num_prompt_tokens_(static_cast<int64_t>(request_.prompt.size())),
        max_tokens_(request_.sampling.max_tokens),
        position_(static_cast<int32_t>(request_.generated.size())) {}

  // Called on gRPC's threads.
  void begin() {
    service_.front_end_.request_started();
    service_.post([call = shared_from_this()] { call->submit(call); });
  }

  void on_write_done(bool ok) {
    service_.post([call = shared_from_this(), ok] {
      call->is_writing_ = false;
      if (!ok) call->finish(grpc::Status::CANCELLED);
      call->pump();
    });
  }

  void on_cancel() {
    service_.post([call = shared_from_this()] {
      call->finish(grpc::Status::CANCELLED);
      call->pump();
    });
  }

  void on_done() {
    service_.front_end_.request_done();
    service_.post([call = shared_from_this()] {});
  }

  // Functions below run on the service's thread.
  void accept(const TokenOutput& output) {
    if (is_queued_) leave_queue();
    const bool is_end = output.finish_reason != FinishReason::kNone;
    note_in_span(output);
    if (output.token != kInvalidToken) ++num_tokens_;
    if (is_end) count(output);
    if (is_end) id_.reset();
    if (status_) return;
    if (pending_.outputs_size() == 0) pending_.set_position(position_);
    wire::TokenOutput& message = *pending_.add_outputs();
    encode(output, message);
    pending_bytes_ += message.ByteSizeLong();
    if (output.token != kInvalidToken) ++position_;
    has_pending_ = true;
    if (is_end) status_ = grpc::Status::OK;
  }

  void flush() {
    if (pending_bytes_ > kMostPendingBytes) {
      finish({grpc::StatusCode::RESOURCE_EXHAUSTED, "The router reads too slowly."});
    }
    pump();
  }

  // Ends the call without its unread output.
  void finish(const grpc::Status& status) {
    if (is_finished_) return;
    status_ = status;
    has_pending_ = false;
    if (is_queued_) leave_queue();
    // A call that is cancelled while it writes comes here for both.
    if (id_ && !std::exchange(is_aborted_, true)) service_.front_end_.engine.abort(*id_);
  }

  void pump() {
    if (is_finished_ || is_writing_) return;
    if (has_pending_) {
      has_pending_ = false;
      pending_bytes_ = 0;
      writer_.message().Clear();
      writer_.message().Swap(&pending_);
      is_writing_ = true;
      return writer_.write();
    }
    if (!status_) return;
    is_finished_ = true;
    if (!status_->ok()) span_.set_error({ErrorCode::kUnavailable, status_->error_message(), {}});
    span_.end();
    const auto kept = std::move(kept_);  // may be the last reference except gRPC's
    service_.calls_.erase(kept);
    writer_.finish(*status_);
  }

 private:
  void submit(std::shared_ptr<WorkerCall> self) {
    kept_ = std::move(self);
    service_.calls_.insert(kept_);
    span_.set_name("generate");
    span_.add_sampling(request_.sampling);
    span_.add("gen_ai.usage.input_tokens", num_prompt_tokens_);
    span_.add("sluice.continued_at", int64_t{position_});
    request_.trace = span_.context();
    const auto id = service_.front_end_.engine.submit(std::move(request_), service_);
    if (!id) {
      span_.set_error(id.error());
      encode(id.error(), *pending_.mutable_refusal());
      status_ = grpc::Status::OK;
    } else {
      id_ = *id;
      service_.by_id_.emplace(*id, kept_);
      service_.num_watched_.fetch_add(1);
      service_.queued_tokens_.fetch_add(num_prompt_tokens_);
      is_queued_ = true;
      pending_.set_accepted(true);
    }
    has_pending_ = true;
    pump();
  }

  void note_in_span(const TokenOutput& output) {
    if (output.token != kInvalidToken) span_.note_token();
    if (output.finish_reason == FinishReason::kNone || !span_.is_recorded()) return;
    if (has_failed(output)) span_.set_error(error_of(output));
    span_.add("gen_ai.response.finish_reasons",
              std::vector<std::string>{std::string(to_string(output.finish_reason))});
    span_.add("gen_ai.usage.output_tokens",
              int64_t{position_} + (output.token != kInvalidToken ? 1 : 0));
    span_.add("gen_ai.usage.cache_read.input_tokens", int64_t{output.num_cached_tokens});
    span_.add_timings(output.timings);
  }

  // Counts the request as the front end counts its own.
  void count(const TokenOutput& last) {
    RequestHistograms& histograms = service_.front_end_.request_histograms;
    histograms.count_choice(max_tokens_, num_tokens_, last.timings);
    histograms.longest_choice.observe(kLengthBounds, static_cast<double>(num_tokens_));
    histograms.num_choices.observe(kChoiceBounds, 1);
    service_.front_end_.finish_counters.count(last.finish_reason);
  }

  void leave_queue() {
    is_queued_ = false;
    service_.queued_tokens_.fetch_sub(num_prompt_tokens_);
  }

  WorkerService& service_;
  MessageWriter<wire::GenerateResponse>& writer_;
  // Members below belong to the service's thread.
  std::shared_ptr<WorkerCall> kept_;  // until Finish()
  ValidRequest request_;              // until it is submitted
  RequestSpan span_;
  const int64_t num_prompt_tokens_;
  const int32_t max_tokens_;
  int64_t num_tokens_ = 0;  // that were computed here
  int32_t position_;
  std::optional<RequestId> id_;  // set while the engine has the request
  bool is_queued_ = false;       // no output has arrived yet
  wire::GenerateResponse pending_;
  size_t pending_bytes_ = 0;
  bool has_pending_ = false;
  bool is_writing_ = false;
  bool is_finished_ = false;
  bool is_aborted_ = false;  // abort() was called
  std::optional<grpc::Status> status_;  // to be sent when nothing is pending
};

WorkerService::WorkerService(FrontEnd& front_end)
    : front_end_(front_end),
      epoch_(random_epoch()),
      has_secret_(!front_end.config.worker_secret.empty()),
      secret_(digest_of(front_end.config.worker_secret)),
      work_(boost::asio::make_work_guard(context_)),
      thread_([this] { context_.run(); }) {
  serve_if_allowed<wire::Description>("Describe", [this] {
    return new UnreadReactor<wire::Description>(description());
  });
  serve_if_allowed<wire::FilePiece>("GetTokenizer", [this] {
    auto files = front_end_.engine.tokenizer_files();
    if (!files) return new FilesReactor(to_status(files.error()));
    return new FilesReactor(std::move(*files));
  });
  using Reactor = CallReactor<wire::GenerateResponse, WorkerCall>;
  serve_if_allowed<wire::GenerateResponse>("Generate", [this] {
    return new Reactor(
        true,
        [this](grpc::ByteBuffer& message, Reactor& reactor) { return read_call(message, reactor); },
        [this](size_t message_bytes, const std::function<void()>& start) {
          if (message_bytes <= kLargeBody) return start();
          boost::asio::post(reader_, start);
        });
  });
  serve_if_allowed<wire::State>(
      "GetState", [this] { return new UnreadReactor<wire::State>(state()); });
}

WorkerService::~WorkerService() {
  reader_.join();
  work_.reset();
  context_.stop();
  thread_.join();
}

void WorkerService::post(std::function<void()> task) {
  boost::asio::post(context_, std::move(task));
}

void WorkerService::publish(OutputBatch batch) {
  boost::asio::post(context_, [this, moved = std::move(batch)]() mutable { deliver(moved); });
}

void WorkerService::deliver(OutputBatch& batch) {
  std::vector<std::shared_ptr<WorkerCall>> touched;
  for (const TokenOutput& output : batch.outputs) {
    const auto found = by_id_.find(output.request_id);
    if (found == by_id_.end()) continue;
    const std::shared_ptr<WorkerCall> call = found->second;
    if (output.finish_reason != FinishReason::kNone) {
      by_id_.erase(found);
      num_watched_.fetch_sub(1);
    }
    call->accept(output);
    if (touched.empty() || touched.back() != call) touched.push_back(call);
  }
  for (const auto& call : touched) call->flush();
}

void WorkerService::cut_calls() {
  post([this] {
    const std::vector<std::shared_ptr<WorkerCall>> open(calls_.begin(), calls_.end());
    for (const auto& call : open) {
      call->finish({grpc::StatusCode::UNAVAILABLE, "The worker is shutting down."});
      call->pump();
    }
  });
}

bool WorkerService::is_allowed(const grpc::CallbackServerContext& context) const {
  if (has_secret_ && !knows_secret(context)) return false;
  if (port_ != nullptr) port_->mark_authenticated(address_of(context.peer()));
  return true;
}

bool WorkerService::knows_secret(const grpc::CallbackServerContext& context) const {
  constexpr size_t kSchemeLength = 7;
  std::string given = metadata_value(context, "authorization");
  if (strncasecmp(given.c_str(), "Bearer ", kSchemeLength) != 0) return false;
  const Digest digest = digest_of(std::string_view(given).substr(kSchemeLength));
  return CRYPTO_memcmp(digest.data(), secret_.data(), digest.size()) == 0;
}

wire::Description WorkerService::description() const {
  wire::Description response;
  encode(front_end_.engine.model(), response);
  response.set_epoch(epoch_);
  response.set_created(front_end_.created);
  for (const TokenId id : front_end_.engine.tokenizer().end_tokens()) response.add_end_tokens(id);
  response.set_block_size(front_end_.config.block_size);
  response.set_max_logprobs(front_end_.config.max_logprobs);
  response.set_kv_events_endpoint(kv_events_endpoint(front_end_.config));
  return response;
}

tl::expected<std::shared_ptr<WorkerCall>, grpc::Status> WorkerService::read_call(
    grpc::ByteBuffer& bytes, MessageWriter<wire::GenerateResponse>& writer) {
  wire::GenerateRequest message;
  if (!parse(bytes, message)) return tl::unexpected(malformed());
  const ModelInfo& model = front_end_.engine.model();
  if (message.fingerprint() != model.system_fingerprint) {
    return tl::unexpected(
        grpc::Status(grpc::StatusCode::FAILED_PRECONDITION,
                     "The worker's fingerprint is " + model.system_fingerprint + "."));
  }
  auto decoded = decode(message.request(), WorkerClock::now());
  if (!decoded) return tl::unexpected(to_status(decoded.error()));
  const auto checked = check_request(*decoded, model, front_end_.config);
  if (!checked) return tl::unexpected(to_status(checked.error()));
  return std::make_shared<WorkerCall>(*this, std::move(*decoded), writer);
}

wire::State WorkerService::state() const {
  wire::State response;
  const EngineStats stats = front_end_.engine.stats();
  response.set_epoch(epoch_);
  response.set_num_steps(stats.num_steps);
  response.set_is_draining(stats.draining || front_end_.is_draining());
  response.set_num_running(stats.num_requests_running);
  response.set_num_waiting(stats.num_requests_waiting);
  response.set_queued_tokens(queued_tokens_.load());
  int64_t num_open = stats.num_requests_running + stats.num_requests_waiting;
  if (stats.handoff) {
    num_open += stats.handoff->num_claiming + stats.handoff->num_awaiting_room +
                stats.handoff->num_receiving;
  }
  response.set_num_open(num_open);
  response.set_num_blocks_total(stats.num_blocks_total);
  response.set_num_blocks_used(stats.num_blocks_used);
  return response;
}

}  // namespace sluice
