// SPDX-License-Identifier: Apache-2.0
// Endpoints that show what the engine is doing: its queues and last steps, and the same steps as a
// trace for chrome://tracing or ui.perfetto.dev. They name requests by number and say nothing of
// their contents; of requests with other keys they say nothing at all.
#include <algorithm>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "server/front/front_end.h"
#include "server/front/io_worker.h"
#include "server/front/usage.h"
#include "server/json/json_writer.h"

namespace sluice {
namespace {

constexpr int32_t kShownSteps = 100;

double ms_between(int64_t from_ns, int64_t to_ns) {
  return static_cast<double>(to_ns - from_ns) / 1e6;
}

void write_request(JsonWriter& json, const RequestSummary& request) {
  json.open_object().key("id").integer(static_cast<int64_t>(request.id.value));
  json.key("status").string(request.status).key("priority").integer(request.priority);
  json.key("age_ms").decimal(request.age_ms);
  json.key("prompt_tokens").integer(request.num_prompt_tokens);
  json.key("cached_tokens").integer(request.num_cached_tokens);
  json.key("computed_tokens").integer(request.num_computed_tokens);
  json.key("generated_tokens").integer(request.num_generated);
  json.key("max_tokens").integer(request.max_tokens);
  json.key("draft_tokens").integer(request.num_draft_tokens);
  json.key("accepted_tokens").integer(request.num_accepted_tokens);
  json.key("blocks").integer(request.num_blocks);
  json.key("timings");
  write_timings(json, request.timings);
  json.close_object();
}

void write_step(JsonWriter& json, const StepRecord& step) {
  json.open_object().key("number").integer(static_cast<int64_t>(step.number));
  json.key("ms").decimal(ms_between(step.begin_ns, step.end_ns));
  json.key("schedule_ms").decimal(ms_between(step.begin_ns, step.scheduled_ns));
  json.key("wait_ms").decimal(ms_between(step.scheduled_ns, step.started_ns));
  json.key("execute_ms").decimal(ms_between(step.started_ns, step.executed_ns));
  json.key("sample_ms").decimal(ms_between(step.executed_ns, step.sampled_ns));
  json.key("commit_ms").decimal(ms_between(step.retired_ns, step.end_ns));
  json.key("device_idle_ms").decimal(ms_between(0, step.device_idle_ns));
  json.key("predicted_ms").decimal(step.predicted_ms);
  json.key("tokens").integer(step.num_tokens);
  json.key("prefill_tokens").integer(step.num_prefill_tokens);
  json.key("preempted").integer(step.num_preempted);
  json.key("in_flight").integer(step.num_in_flight);
  json.key("running").integer(step.num_running).key("waiting").integer(step.num_waiting);
  json.key("requests").open_array();
  for (const StepItem& item : step.items) {
    json.open_object().key("id").integer(static_cast<int64_t>(item.id.value));
    json.key("position").integer(item.position).key("tokens").integer(item.num_tokens);
    json.key("samples").boolean(item.samples);
    json.key("num_drafts").integer(item.num_drafts).close_object();
  }
  json.close_array().close_object();
}

void write_handoff(JsonWriter& json, const HandoffStats& stats) {
  json.key("handoff").open_object();
  json.key("sessions").integer(stats.num_sessions);
  json.key("claiming").integer(stats.num_claiming);
  json.key("awaiting_room").integer(stats.num_awaiting_room);
  json.key("receiving").integer(stats.num_receiving);
  json.key("reserved_blocks").integer(stats.num_reserved_blocks);
  json.key("slots").integer(stats.num_slots);
  json.key("posted_slots").integer(stats.num_posted_slots);
  json.key("offered").integer(stats.num_offered);
  json.key("pinned_blocks").integer(stats.num_pinned_blocks).close_object();
}

// Writes the time of a step for each number of rows, and how likely its last row has to be right to
// pay for itself when one request runs: the step's time over that of a step of one row.
void write_row_times(JsonWriter& json, const std::vector<RowTime>& times) {
  json.key("row_times").open_array();
  for (size_t i = 0; i < times.size(); ++i) {
    json.open_object().key("rows").integer(times[i].num_rows).key("ms").decimal(times[i].ms);
    if (i > 0 && times.front().num_rows == 1) {
      const double ms_a_row = (times[i].ms - times[i - 1].ms) /
                              static_cast<double>(times[i].num_rows - times[i - 1].num_rows);
      json.key("least_useful").decimal(std::max(ms_a_row / times.front().ms, 0.0));
    }
    json.close_object();
  }
  json.close_array();
}

std::string state_json(const EngineState& state) {
  const EngineStats& stats = state.stats;
  std::string out;
  JsonWriter json(out);
  json.open_object().key("running").integer(stats.num_requests_running);
  json.key("waiting").integer(stats.num_requests_waiting);
  json.key("draining").boolean(stats.draining);
  json.key("kv_blocks").open_object().key("total").integer(stats.num_blocks_total);
  json.key("referenced").integer(stats.num_blocks_used);
  json.key("cached").integer(state.num_blocks_cached);
  json.key("free").integer(state.num_blocks_free);
  json.key("block_size").integer(stats.block_size).close_object();
  if (stats.handoff) write_handoff(json, *stats.handoff);
  write_row_times(json, state.row_times);
  json.key("requests").open_array();
  for (const RequestSummary& request : state.requests) write_request(json, request);
  json.close_array().key("steps").open_array();
  for (const StepRecord& step : state.steps) write_step(json, step);
  json.close_array().close_object();
  return out;
}

// Events of the "Trace Event Format": complete ("X") with microseconds; names are metadata ("M").
class Trace {
 public:
  Trace() : json_(out_) {
    json_.open_object().key("displayTimeUnit").string("ms").key("traceEvents").open_array();
    name("process_name", kEngine, 0, "engine");
    name("process_name", kRequests, 0, "requests");
    name("thread_name", kEngine, kHost, "host");
    name("thread_name", kEngine, kDevice, "device");
  }

  void add(const StepRecord& step) {
    const std::string number = std::to_string(step.number);
    open_slice("step " + number, kEngine, kDevice, step.started_ns, step.sampled_ns);
    json_.key("args").open_object().key("tokens").integer(step.num_tokens);
    json_.key("prefill_tokens").integer(step.num_prefill_tokens);
    json_.key("preempted").integer(step.num_preempted);
    json_.key("predicted_ms").decimal(step.predicted_ms).close_object().close_object();
    add_slice("execute", kEngine, kDevice, step.started_ns, step.executed_ns);
    add_slice("sample", kEngine, kDevice, step.executed_ns, step.sampled_ns);
    add_slice("schedule " + number, kEngine, kHost, step.begin_ns, step.scheduled_ns);
    add_slice("commit " + number, kEngine, kHost, step.retired_ns, step.end_ns);
    open_event("requests", "C", kEngine, 0).key("ts").decimal(us(step.end_ns));
    json_.key("args").open_object().key("running").integer(step.num_running);
    json_.key("waiting").integer(step.num_waiting).close_object().close_object();
    for (const StepItem& item : step.items) {
      const std::string what = std::to_string(item.num_tokens) + " from " +
                               std::to_string(item.position) + (item.samples ? ", sampled" : "");
      add_slice(
          what, kRequests, static_cast<int64_t>(item.id.value), step.started_ns, step.sampled_ns);
    }
  }

  std::string take() {
    json_.close_array().close_object();
    return std::move(out_);
  }

 private:
  static constexpr int64_t kEngine = 1;
  static constexpr int64_t kRequests = 2;
  // Threads of the engine: device steps may overlap with the host's work for other steps.
  static constexpr int64_t kHost = 0;
  static constexpr int64_t kDevice = 1;

  static double us(int64_t ns) { return static_cast<double>(ns) / 1e3; }

  JsonWriter& open_event(std::string_view name, std::string_view phase, int64_t pid, int64_t tid) {
    json_.open_object().key("name").string(name).key("ph").string(phase);
    return json_.key("pid").integer(pid).key("tid").integer(tid);
  }

  void open_slice(
      std::string_view name, int64_t pid, int64_t tid, int64_t begin_ns, int64_t end_ns) {
    open_event(name, "X", pid, tid).key("ts").decimal(us(begin_ns));
    json_.key("dur").decimal(us(end_ns - begin_ns));
  }

  void add_slice(
      std::string_view name, int64_t pid, int64_t tid, int64_t begin_ns, int64_t end_ns) {
    open_slice(name, pid, tid, begin_ns, end_ns);
    json_.close_object();
  }

  void name(std::string_view what, int64_t pid, int64_t tid, std::string_view name) {
    open_event(what, "M", pid, tid).key("args").open_object().key("name").string(name);
    json_.close_object().close_object();
  }

  std::string out_;
  JsonWriter json_;
};

std::string trace_json(const EngineState& state) {
  Trace trace;
  for (const StepRecord& step : state.steps) trace.add(step);
  return trace.take();
}

// Returns what a client may see of it: where there are several keys, its own requests alone.
EngineState shown_to(const Exchange& exchange, const FrontEnd& front_end, EngineState state) {
  if (!front_end.authenticator.has_several_keys()) return state;
  const TenantId own = exchange.tenant->id();
  std::erase_if(state.requests, [own](const RequestSummary& one) { return one.tenant != own; });
  for (StepRecord& step : state.steps) {
    std::erase_if(step.items, [&](const StepItem& item) {
      return !std::ranges::binary_search(state.requests, item.id, {}, &RequestSummary::id);
    });
  }
  return state;
}

void answer(FrontEnd& front_end,
            Exchange exchange,
            int32_t num_steps,
            std::string (*write)(const EngineState&)) {
  IoWorker& worker = exchange.writer->worker();
  worker.ask_state(num_steps,
                   [&front_end, exchange = std::move(exchange), write](const EngineState& state) {
                     HttpResponse response;
                     response.body = write(shown_to(exchange, front_end, state));
                     front_end.respond(exchange, std::move(response));
                   });
}

}  // namespace

void handle_debug_state(FrontEnd& front_end, Exchange exchange) {
  answer(front_end, std::move(exchange), kShownSteps, state_json);
}

void handle_debug_trace(FrontEnd& front_end, Exchange exchange) {
  answer(front_end, std::move(exchange), kKeptSteps, trace_json);
}

}  // namespace sluice
