// SPDX-License-Identifier: Apache-2.0
#include "server/cli/command_table.h"

#include <algorithm>
#include <string_view>
#include <utility>

namespace sluice {
namespace {

constexpr CommandRow kCommands[] = {
    {Command::kServe, "serve", "Serve a model over HTTP", true, true, true},
    {Command::kRouter, "router", "Serve what workers compute, over HTTP", false, true, false},
    {Command::kChat, "chat", "Chat with a model in the terminal", true, false, true},
    {Command::kBench, "bench", "Measure prefill and decode in process", true, false, true},
    {Command::kBenchServe, "bench-serve", "Load a server and measure it", false, false, false},
    {Command::kBenchThroughput,
     "bench-throughput",
     "Answer a data set in process, as fast as it goes",
     true,
     false,
     true},
    {Command::kBenchLatency,
     "bench-latency",
     "Time batches of one size in process",
     true,
     false,
     true},
    {Command::kBenchMock,
     "bench-mock",
     "Serve scripted answers, to test clients",
     false,
     false,
     false},
    {Command::kBenchCompare,
     "bench-compare",
     "Compare two saved results",
     false,
     false,
     false},
    {Command::kBenchKvTransfer,
     "bench-kv-transfer",
     "Measure how KV gets from worker to worker",
     false,
     false,
     false},
    {Command::kInspect, "inspect", "Describe a model file and its memory plan", true, false, true},
    {Command::kQuantize, "quantize", "Write a model in other number formats", false, false, false},
    {Command::kRanksCheck,
     "ranks-check",
     "Check processes that are to share a model, and their links",
     true,
     true,
     false},
    {Command::kTokenize, "tokenize", "Show the token ids of a text", false, false, false},
    {Command::kFetch, "fetch", "Download a model by name and print its path", true, false, true},
    {Command::kRender, "render", "Render a chat template", false, false, false},
    {Command::kConfig, "config", "Print the effective configuration", true, true, false},
    {Command::kHealth, "health", "Ask a running server whether it is healthy", false, false, false},
    {Command::kCompletion,
     "completion",
     "Print a completion script for a shell",
     false,
     false,
     false},
    {Command::kManual, "manual", "Print the manual page, for man", false, false, false},
    {Command::kVersion, "version", "Print version and compiler", false, false, false},
};

// A router has a model's texts and names, and no weights, cache or scheduler.
bool is_of_router(const Knob& knob) {
  constexpr std::string_view kNames[] = {"model",
                                         "revision",
                                         "download-dir",
                                         "hub-url",
                                         "hf-token",
                                         "served-model-name",
                                         "chat-template",
                                         "tool-call-parser",
                                         "reasoning-parser",
                                         "enable-auto-tool-choice",
                                         "seed",
                                         "max-num-queued-reqs"};
  const std::string_view group = knob.group;
  if (std::string_view(knob.name) == "worker-listen") return false;
  return group == "server" || group == "router" || group == "log" ||
         std::ranges::find(kNames, knob.name) != std::end(kNames);
}

// What is about a server's clients, of the groups that commands without a server have too.
bool is_of_server(const Knob& knob) {
  constexpr std::string_view kNames[] = {"served-model-name",
                                         "tool-call-parser",
                                         "reasoning-parser",
                                         "enable-auto-tool-choice",
                                         "kv-events-config",
                                         "max-num-queued-reqs",
                                         "max-num-queued-tokens",
                                         "max-queue-wait-s",
                                         "priority-aging-s",
                                         "grammar-cache-size",
                                         "grammar-compile-timeout-s",
                                         "max-json-whitespace",
                                         "enable-log-requests",
                                         "enable-log-prompts",
                                         "max-log-len",
                                         "otlp-traces-endpoint"};
  return std::string_view(knob.group) == "handoff" ||
         std::ranges::find(kNames, knob.name) != std::end(kNames);
}

bool is_of_fetch(const Knob& knob) {
  constexpr std::string_view kNames[] = {
      "model", "revision", "download-dir", "hub-url", "hf-token", "log-level", "log-format"};
  return std::ranges::find(kNames, knob.name) != std::end(kNames);
}

bool is_of_ranks_check(const Knob& knob) {
  constexpr std::string_view kNames[] = {"nnodes",
                                         "node-rank",
                                         "master-addr",
                                         "master-port",
                                         "rank-init-timeout",
                                         "tensor-parallel-size",
                                         "pipeline-parallel-size",
                                         "kv-transport",
                                         "worker-secret",
                                         "log-level",
                                         "log-format"};
  return std::ranges::find(kNames, knob.name) != std::end(kNames);
}

}  // namespace

std::span<const CommandRow> command_rows() { return kCommands; }

bool has_knob(const CommandRow& row, const Knob& knob) {
  const std::string_view group = knob.group;
  if (row.command == Command::kConfig) return true;
  if (row.command == Command::kRouter) return is_of_router(knob);
  return group != "router" && (group != "server" || row.server_knobs);
}

bool has_knobs(const CommandRow& row) { return row.engine_knobs || row.server_knobs; }

bool uses_knob(const CommandRow& row, const Knob& knob) {
  if (row.command == Command::kFetch) return is_of_fetch(knob);
  if (row.command == Command::kRanksCheck) return is_of_ranks_check(knob);
  if (row.server_knobs) return true;
  const bool is_of_chat = std::string_view(knob.name) == "chat-template";
  return !is_of_server(knob) && (!is_of_chat || row.command == Command::kChat);
}

std::string shown_command(std::string name) {
  constexpr std::string_view kBench = "bench-";
  if (name.starts_with(kBench)) name[kBench.size() - 1] = ' ';
  return name;
}

}  // namespace sluice
