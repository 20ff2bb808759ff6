// SPDX-License-Identifier: Apache-2.0
// Prometheus text from the engine's statistics and the front end's counters, under the names and
// buckets of vLLM, so that its dashboards and autoscalers read ours.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "engine/core/stats.h"
#include "engine/core/types.h"
#include "engine/handoff/fallback_counters.h"
#include "server/front/request_histograms.h"
#include "server/traces/tracer.h"

namespace sluice {

struct Config;
struct ProgramInfo;
struct Route;
enum class MetricsForm : uint8_t;

inline constexpr size_t kMaxRoutes = 64;
inline constexpr size_t kUnroutedHandler = kMaxRoutes - 1;  // no route, or not even HTTP

// Responses by handler and status. Any thread.
class HttpCounters {
 public:
  static constexpr std::array kStatuses = {
      200, 204, 400, 401, 403, 404, 405, 408, 413, 415, 417, 429, 431, 499, 500, 501, 503, 505};

  void count(size_t handler, int status);

  [[nodiscard]] uint64_t value(size_t handler, size_t status_idx) const {
    return counts_[handler][status_idx].load(std::memory_order_relaxed);
  }

 private:
  std::array<std::array<std::atomic<uint64_t>, kStatuses.size()>, kMaxRoutes> counts_{};
};

struct GrpcMethod {
  std::string_view service;
  std::string_view method;
  std::string_view type;  // unary, server_stream
};

inline constexpr std::string_view kVllmService = "vllm.grpc.engine.VllmEngine";
inline constexpr std::string_view kSluiceService = "sluice.v1.Sluice";
inline constexpr std::array kGrpcMethods = {
    GrpcMethod{kVllmService, "Generate", "server_stream"},
    GrpcMethod{kVllmService, "Embed", "unary"},
    GrpcMethod{kVllmService, "HealthCheck", "unary"},
    GrpcMethod{kVllmService, "Abort", "unary"},
    GrpcMethod{kVllmService, "GetModelInfo", "unary"},
    GrpcMethod{kVllmService, "GetServerInfo", "unary"},
    GrpcMethod{kVllmService, "GetLoads", "unary"},
    GrpcMethod{kVllmService, "GetTokenizer", "server_stream"},
    GrpcMethod{kVllmService, "SubscribeKvEvents", "server_stream"},
    GrpcMethod{kVllmService, "FlushCache", "unary"},
    GrpcMethod{kSluiceService, "Complete", "unary"},
    GrpcMethod{kSluiceService, "StreamComplete", "server_stream"},
    GrpcMethod{kSluiceService, "Chat", "unary"},
    GrpcMethod{kSluiceService, "StreamChat", "server_stream"},
    GrpcMethod{kSluiceService, "ListModels", "unary"},
};

// Index of a row; a name that is not there does not compile.
consteval size_t grpc_method(std::string_view service, std::string_view method) {
  size_t i = 0;
  while (kGrpcMethods[i].service != service || kGrpcMethods[i].method != method) ++i;
  return i;
}

// Calls by method and status code. Any thread.
class GrpcCounters {
 public:
  static constexpr std::array<const char*, 17> kCodes = {"OK",
                                                         "Canceled",
                                                         "Unknown",
                                                         "InvalidArgument",
                                                         "DeadlineExceeded",
                                                         "NotFound",
                                                         "AlreadyExists",
                                                         "PermissionDenied",
                                                         "ResourceExhausted",
                                                         "FailedPrecondition",
                                                         "Aborted",
                                                         "OutOfRange",
                                                         "Unimplemented",
                                                         "Internal",
                                                         "Unavailable",
                                                         "DataLoss",
                                                         "Unauthenticated"};

  void count(size_t method, int code) {
    counts_[method][static_cast<size_t>(code)].fetch_add(1, std::memory_order_relaxed);
  }

  [[nodiscard]] uint64_t value(size_t method, size_t code) const {
    return counts_[method][code].load(std::memory_order_relaxed);
  }

 private:
  std::array<std::array<std::atomic<uint64_t>, kCodes.size()>, kGrpcMethods.size()> counts_{};
};

// Generations by the reason the client saw (a stop string ends one here, not in the engine).
class FinishCounters {
 public:
  void count(FinishReason reason) {
    counts_[static_cast<size_t>(reason)].fetch_add(1, std::memory_order_relaxed);
  }

  [[nodiscard]] uint64_t value(FinishReason reason) const {
    return counts_[static_cast<size_t>(reason)].load(std::memory_order_relaxed);
  }

 private:
  std::array<std::atomic<uint64_t>, 5> counts_{};
};

// What answers were made of. Any thread.
struct AnswerCounters {
  std::atomic<uint64_t> num_calls{0};          // of tools, that ended
  std::atomic<uint64_t> num_cut_calls{0};      // the answer ended inside them
  std::atomic<uint64_t> num_refused_calls{0};  // of tools that the request did not allow
  std::atomic<uint64_t> num_reasoning_tokens{0};
};

// What a scrape shows, read while it is written.
struct MetricSources {
  const EngineStats& stats;
  const Config& config;
  const std::string& model_name;
  std::span<const Route> routes;
  const HttpCounters& http;
  const GrpcCounters& grpc;
  const FinishCounters& finished;
  const AnswerCounters& answers;
  const RequestHistograms& requests;
  const ProgramInfo& program;
  const FallbackCounters& handoff_fallbacks;
  uint64_t num_ignored_arguments = 0;
  uint64_t num_lost = 0;  // requests that ended for want of a router's worker
  TracerCounts traces = {};
};

std::string metrics_text(const MetricSources& sources, MetricsForm form);

}  // namespace sluice
