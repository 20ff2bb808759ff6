// SPDX-License-Identifier: Apache-2.0
#include <cstdio>
#include <nlohmann/json.hpp>

#include "engine/core/version.h"
#include "engine/kv_links.h"
#include "server/cli/command.h"

namespace sluice {
namespace {

nlohmann::json to_json(const KvLinkOptions& options, const KvLinkFigures& figures) {
  nlohmann::json json = {{"sluice", version()},
                         {"tokens", options.num_tokens},
                         {"bytes", figures.num_bytes},
                         {"slot_bytes", options.slot_bytes},
                         {"connections", options.num_connections},
                         {"rounds", options.rounds},
                         {"links", nlohmann::json::array()}};
  for (const KvLinkFigure& figure : figures.links) {
    nlohmann::json link = {
        {"name", figure.name},
        {"ms", 1e3 * figure.seconds},
        {"gb_per_s", 1e-9 * static_cast<double>(figures.num_bytes) / figure.seconds},
        {"cpu_ms", 1e3 * figure.cpu_seconds}};
    if (!figure.limit.empty()) {
      link["limit"] = figure.limit;
      link["share_of_limit"] = figure.share;
      link["frames"] = figure.num_frames;
      link["control_messages"] = figure.num_messages;
    }
    json["links"].push_back(std::move(link));
  }
  return json;
}

}  // namespace

Expected<void> run_bench_kv_transfer(const Invocation& invocation) {
  const KvLinkOptions& options = invocation.bench_kv_transfer.link;
  SLUICE_TRY(const KvLinkFigures figures, measure_kv_links(options));
  std::printf("KV of %d tokens, %.1f MiB in slots of %.1f MiB, medians of %d rounds in turns\n\n",
              options.num_tokens,
              static_cast<double>(figures.num_bytes) / (1 << 20),
              static_cast<double>(options.slot_bytes) / (1 << 20),
              options.rounds);
  std::printf("%-12s %9s %8s %9s %18s %8s %10s\n",
              "",
              "ms",
              "GB/s",
              "CPU ms",
              "share of limit",
              "frames",
              "messages");
  for (const KvLinkFigure& figure : figures.links) {
    std::printf("%-12s %9.2f %8.2f %9.2f",
                figure.name.c_str(),
                1e3 * figure.seconds,
                1e-9 * static_cast<double>(figures.num_bytes) / figure.seconds,
                1e3 * figure.cpu_seconds);
    if (!figure.limit.empty()) {
      std::printf("  %3.0f%% %11s %8d %10d",
                  100 * figure.share,
                  figure.limit.c_str(),
                  figure.num_frames,
                  figure.num_messages);
    }
    std::printf("\n");
  }
  const std::string& path = invocation.bench_kv_transfer.json_path;
  if (path.empty()) return {};
  return write_text_file(path, to_json(options, figures).dump(2) + "\n");
}

}  // namespace sluice
