// SPDX-License-Identifier: Apache-2.0
#include "server/api/pooling_run.h"

#include <algorithm>
#include <chrono>
#include <span>
#include <utility>

#include "server/api/pooled_json.h"
#include "server/front/io_worker.h"
#include "server/front/served_model.h"
#include "server/http/api_errors.h"
#include "server/http/random_id.h"
#include "server/keys/tenant.h"

namespace sluice {
namespace {

// Values of one answer: the vectors of all tokens of many long texts would fill the memory.
constexpr int64_t kMostValues = 1 << 24;
// Texts of one request that wait or run, in steps' worth of requests: the engine is kept busy.
constexpr int32_t kStepsAhead = 2;

size_t most_open(const Config& config) {
  const int32_t wanted = kStepsAhead * config.max_num_seqs;
  return static_cast<size_t>(std::clamp(wanted, 1, std::max(config.max_num_queued_reqs / 4, 1)));
}

// Takes the vectors of these tokens out of a text's, of `width` each.
void take_out(std::span<const int32_t> rows, size_t width, std::vector<float>& vectors) {
  size_t to = 0;
  size_t next = 0;
  for (size_t row = 0; row < vectors.size() / width; ++row) {
    if (next < rows.size() && static_cast<size_t>(rows[next]) == row) {
      ++next;
      continue;
    }
    std::copy_n(vectors.begin() + static_cast<ptrdiff_t>(row * width),
                width,
                vectors.begin() + static_cast<ptrdiff_t>(to));
    to += width;
  }
  vectors.resize(to);
}

int64_t num_values(const PooledRequest& request, const PoolingInfo& info) {
  int64_t sum = 0;
  for (const ValidRequest& one : request.requests) {
    const int64_t width = one.pooling->dimensions > 0 ? one.pooling->dimensions : info.width;
    const bool is_each = one.pooling->every_token || info.type == PoolingType::kEvery;
    sum += width * (is_each ? static_cast<int64_t>(one.prompt.size()) : 1);
  }
  return sum;
}

// Answers an exchange.
class ExchangeSink final : public PooledSink, public std::enable_shared_from_this<ExchangeSink> {
 public:
  ExchangeSink(FrontEnd& front_end, Exchange exchange, PooledWriter write)
      : front_end_(front_end), exchange_(std::move(exchange)), write_(std::move(write)) {}

  void start(const std::shared_ptr<PoolingRun>& run) {
    if (!exchange_.request.names_itself) {
      exchange_.request.request_id = run->id();
      exchange_.writer->name_request(run->id());
    }
    exchange_.writer->set_callbacks([self = shared_from_this(), run] { self->leave(*run); },
                                    [] {});
    run->start();
  }

  IoWorker& worker() override { return exchange_.writer->worker(); }

  void finish(const PooledAnswer& answer, const Usage& usage) override {
    exchange_.usage = usage;
    exchange_.finish_reasons = to_string(FinishReason::kStop);
    HttpResponse response;
    response.body = write_(answer);
    front_end_.respond(exchange_, std::move(response));
  }

  void fail(const Error& error, const Usage& usage) override {
    exchange_.usage = usage;
    exchange_.finish_reasons = to_string(FinishReason::kError);
    front_end_.fail(exchange_, error);
  }

 private:
  void leave(PoolingRun& run) {
    constexpr int kClientClosedRequest = 499;
    if (!run.cancel()) return;
    exchange_.usage = run.usage();
    exchange_.finish_reasons = to_string(FinishReason::kAbort);
    front_end_.log_request(exchange_, kClientClosedRequest);
    front_end_.http_counters.count(exchange_.route_idx, kClientClosedRequest);
  }

  FrontEnd& front_end_;
  Exchange exchange_;
  const PooledWriter write_;
};

}  // namespace

Expected<void> admit_pooled(const std::shared_ptr<Tenant>& tenant, PooledRequest& request) {
  const int64_t values = num_values(request, *request.served->engine.model().pooling);
  if (values > kMostValues) {
    return make_error(ErrorCode::kInvalidArgument,
                      "The answer would have " + std::to_string(values) +
                          " values, the most are " + std::to_string(kMostValues) +
                          "; send fewer texts.",
                      "input");
  }
  SLUICE_TRY_VOID(tenant->admit(request.num_tokens(), std::chrono::steady_clock::now()));
  request.lease = std::make_shared<TenantLease>(tenant);
  for (ValidRequest& one : request.requests) one.tenant = tenant->id();
  return {};
}

void start_pooling(FrontEnd& front_end, Exchange exchange, const PooledDecoder& decode) {
  if (front_end.is_draining()) {
    return front_end.refuse(exchange,
                            Error{ErrorCode::kUnavailable, "The server is draining.", {}, {}});
  }
  auto decoded = front_end.read_request(
      exchange.tenant_salt,
      exchange.arrival,
      exchange.request.body.size(),
      [&](const ValidationContext& context) {
        return decode(context, exchange);
      });
  front_end.note_ignored(exchange.ignored);
  if (!decoded) return front_end.refuse(exchange, decoded.error());
  PooledRequest& request = decoded->request;
  exchange.model = request.model;
  std::string().swap(exchange.request.body);
  exchange.usage.emplace().prompt_tokens = request.num_tokens();
  if (const auto admitted = admit_pooled(exchange.tenant, request); !admitted) {
    return front_end.refuse(exchange, admitted.error());
  }
  const TraceContext parent = exchange.request.trace;
  const auto arrival = exchange.arrival;
  const auto sink = std::make_shared<ExchangeSink>(
      front_end, std::move(exchange), std::move(decoded->write));
  sink->start(std::make_shared<PoolingRun>(front_end, sink, std::move(request), parent, arrival));
}

PoolingRun::PoolingRun(FrontEnd& front_end,
                       std::shared_ptr<PooledSink> sink,
                       PooledRequest request,
                       const TraceContext& parent,
                       std::chrono::steady_clock::time_point arrival)
    : front_end_(front_end),
      sink_(std::move(sink)),
      request_(std::move(request)),
      span_(front_end.tracer, parent, arrival),
      engine_(request_.served->engine),
      ids_(request_.requests.size()),
      has_ended_(request_.requests.size()),
      most_open_(most_open(front_end.config)) {
  answer_.id = random_id("embd-");
  answer_.model = request_.model;
  answer_.num_tokens = request_.num_tokens();
  answer_.vectors.resize(request_.requests.size());
  usage_.prompt_tokens = answer_.num_tokens;
  span_.set_name("embeddings " + request_.model);
  span_.add("gen_ai.operation.name", "embeddings");
  span_.add("gen_ai.request.model", request_.model);
  span_.add("gen_ai.usage.input_tokens", answer_.num_tokens);
  for (ValidRequest& one : request_.requests) one.trace = span_.context();
}

void PoolingRun::start() {
  try {
    submit_more();
  } catch (...) {  // its handler answers
    end();
    throw;
  }
}

// A full queue ends the request only if no text of it is in the engine; otherwise the next one is
// submitted when one of those ends.
void PoolingRun::submit_more() {
  IoWorker& worker = sink_->worker();
  while (!is_over_ && num_submitted_ < request_.requests.size() && num_open_ < most_open_) {
    ValidRequest copy = request_.requests[num_submitted_];
    auto id = engine_.submit(std::move(copy), worker);
    if (!id) {
      const bool is_full = id.error().code == ErrorCode::kResourceExhausted;
      if (!is_full || num_open_ == 0) fail(id.error());
      return;
    }
    std::vector<TokenId>().swap(request_.requests[num_submitted_].prompt);
    ids_[num_submitted_] = *id;
    worker.watch(*id, shared_from_this(), num_submitted_);
    ++num_submitted_;
    ++num_open_;
  }
}

void PoolingRun::accept(size_t index, const TokenOutput& output) {
  if (is_over_ || has_ended_[index] || output.finish_reason == FinishReason::kNone) return;
  has_ended_[index] = true;
  --num_open_;
  front_end_.finish_counters.count(output.finish_reason);
  if (output.finish_reason == FinishReason::kError) {
    Error error = error_of(output);
    if (answer_.vectors.size() > 1) error.message += " (text " + std::to_string(index) + ")";
    front_end_.note_lost(error);
    return fail(error);
  }
  if (output.finish_reason == FinishReason::kAbort) return fail(error_of(output));
  answer_.vectors[index] = output.pooled;
  if (!request_.left_out.empty()) {
    const PoolingInfo& info = *engine_.model().pooling;
    const size_t width = vector_width(info, *request_.requests[index].pooling);
    take_out(request_.left_out[index], width, answer_.vectors[index]);
  }
  ++num_done_;
  usage_.cached_tokens += output.num_cached_tokens;
  RequestTimings& timings = usage_.timings;
  timings.queued_ms = std::max(timings.queued_ms, output.timings.queued_ms);
  timings.prefill_ms = std::max(timings.prefill_ms, output.timings.prefill_ms);
  timings.num_preemptions += output.timings.num_preemptions;
}

void PoolingRun::flush() {
  if (is_over_) return;
  if (num_done_ < answer_.vectors.size()) return submit_more();
  end();
  sink_->finish(answer_, usage_);
}

void PoolingRun::fail(const Error& error) {
  if (is_over_) return;
  span_.set_error(error);
  end();
  sink_->fail(error, usage_);
}

bool PoolingRun::cancel() {
  if (is_over_) return false;
  end();
  return true;
}

// Aborts what is under way; the client's key may be used again before it learns of the end.
void PoolingRun::end() {
  is_over_ = true;
  for (size_t i = 0; i < num_submitted_; ++i) {
    if (has_ended_[i]) continue;
    front_end_.finish_counters.count(FinishReason::kAbort);
    engine_.abort(ids_[i]);
  }
  request_.lease.reset();
  span_.add_timings(usage_.timings);
  span_.end();
}

}  // namespace sluice
