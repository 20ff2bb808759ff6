// SPDX-License-Identifier: Apache-2.0
#include "server/front/program_metrics.h"

#include <string>

#include "engine/core/version.h"
#include "server/front/process_figures.h"

namespace sluice {

using prometheus::ClientMetric;
using prometheus::MetricType;

void add_requests(Families& out, const RequestHistograms& requests) {
  out.histogram("vllm:request_inference_time_seconds",
                "From the first scheduling to the last token.",
                kRequestBounds,
                requests.inference_seconds.read());
  out.histogram("vllm:request_time_per_output_token_seconds",
                "Mean time of a request's tokens behind the first.",
                kInterTokenBounds,
                requests.seconds_per_token.read());
  out.histogram("vllm:request_max_num_generation_tokens",
                "Tokens of the longest choice of a request.",
                kLengthBounds,
                requests.longest_choice.read());
  out.histogram("vllm:request_params_max_tokens",
                "Tokens that a request may generate.",
                kLengthBounds,
                requests.max_tokens.read());
  out.histogram("vllm:request_params_n",
                "Choices that a request asks for.",
                kChoiceBounds,
                requests.num_choices.read());
}

void add_program(Families& out, const ProgramInfo& program) {
  const auto add = [&out](const char* name, const char* help, MetricType type, double value) {
    if (value < 0) return;
    ClientMetric& metric = out.open(name, help, type, {});
    (type == MetricType::Gauge ? metric.gauge.value : metric.counter.value) = value;
  };
  const ProcessFigures process = process_figures();
  add("process_cpu_seconds_total",
      "Time of processors, of user and system.",
      MetricType::Counter,
      process.cpu_seconds);
  add("process_resident_memory_bytes", "Memory in use.", MetricType::Gauge, process.resident_bytes);
  add("process_virtual_memory_bytes",
      "Addresses in use.",
      MetricType::Gauge,
      process.virtual_bytes);
  add("process_open_fds", "Open files.", MetricType::Gauge, process.num_files);
  add("process_max_fds", "Files that may be open.", MetricType::Gauge, process.max_files);
  add("process_start_time_seconds",
      "When the process started, since the Unix epoch.",
      MetricType::Gauge,
      process.start_time_s);
  add("sluice_certificate_expiry_timestamp_seconds",
      "When the server's certificate ends, since the Unix epoch.",
      MetricType::Gauge,
      static_cast<double>(program.certificate_expiry_s));
  out.open(
         "sluice_build_info",
         "1, with the program's version, the hash of its contents and the backend.",
         MetricType::Gauge,
         {{"backend", program.backend}, {"build", build_id()}, {"version", std::string(version())}})
      .gauge.value = 1;
}

}  // namespace sluice
