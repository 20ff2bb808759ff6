// SPDX-License-Identifier: Apache-2.0
// The tables of knobs.md.
#include <algorithm>
#include <array>
#include <string_view>

#include "engine/core/config.h"
#include "engine/core/knob_text.h"

namespace sluice {
namespace {

// Knobs that an installation sets as a rule; all others have a default that fits most.
constexpr auto kUsual = std::to_array<std::string_view>({
    "model",
    "served-model-name",
    "chat-template",
    "tool-call-parser",
    "reasoning-parser",
    "max-model-len",
    "kv-cache-dtype",
    "activation-bits",
    "packed-weights-cache",
    "kv-cache-memory",
    "kv-offloading-size",
    "kv-disk-path",
    "speculative-config",
    "max-num-seqs",
    "max-num-batched-tokens",
    "max-num-queued-reqs",
    "role",
    "device",
    "threads",
    "tensor-parallel-size",
    "host",
    "port",
    "ssl-certfile",
    "ssl-keyfile",
    "grpc-port",
    "worker-listen",
    "kv-listen",
    "kv-peers",
    "api-key-file",
    "drain-timeout-s",
    "log-format",
    "enable-log-requests",
    "otlp-traces-endpoint",
    "workers",
});

bool is_usual(std::string_view name) { return std::ranges::find(kUsual, name) != kUsual.end(); }

// The row of a table in Markdown.
std::string row_of(const Knob& knob) {
  std::string value = knob.get(Config());
  value = value.empty() ? "" : "`" + value + "`";
  const std::string unit = knob.unit;
  return "| `--" + std::string(knob.name) + "` | " + value + " | " + values_text(knob) +
         (unit.empty() ? "" : " " + unit) + " | " + knob.help + " |\n";
}

}  // namespace

std::string config_markdown() {
  std::string usual;
  std::string rest;
  for (const Knob& knob : config_knobs()) (is_usual(knob.name) ? usual : rest) += row_of(knob);
  const std::string head = "| knob | default | values | what |\n|---|---|---|---|\n";
  return "## What people set\n\n" + head + usual + "\n## Limits, and the rest\n\n" + head + rest;
}

}  // namespace sluice
