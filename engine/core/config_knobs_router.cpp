// SPDX-License-Identifier: Apache-2.0
// The rows of the router's knobs.
#include "engine/core/config.h"
#include "engine/core/knob_rows.h"

namespace sluice {
namespace {

constexpr int64_t kDay = 86400;  // seconds

}  // namespace

std::vector<Knob> make_router_knobs() {
  return {
      list<&Config::workers>("workers",
                             "router",
                             "Where workers listen: host:port, dns:name:port, or "
                             "k8s:namespace/service:port."),
      integer<&Config::max_worker_losses>(
          "max-worker-losses",
          "router",
          "",
          {0, 1000},
          "Workers that a request may lose in a row without a new token; then it fails."),
      integer<&Config::worker_wait_s>(
          "worker-wait-s",
          "router",
          "seconds",
          {0, kDay},
          "A request that has lost its worker waits so long for another one."),
      integer<&Config::worker_silence_s>(
          "worker-silence-s",
          "router",
          "seconds",
          {1, kDay},
          "A request of which its worker says nothing for so long is taken from it."),
      string<&Config::route_min_ready>(
          "route-min-ready",
          "router",
          "Workers of a new version that must be ready before it gets all new requests: a number, "
          "or a share of all ready ones such as 50%."),
      list<&Config::route_shares>(
          "route-share",
          "router",
          "fingerprint=share: workers of this fingerprint get this share of new requests, such as "
          "0.1; the others get the rest."),
      integer<&Config::affinity_blocks>(
          "affinity-blocks",
          "router",
          "blocks",
          {0, 1 << 28},
          "Blocks of prompts that a router remembers workers to have; 0: goes by load alone."),
      integer<&Config::handoff_min_tokens>(
          "handoff-min-tokens",
          "router",
          "tokens",
          {1, 1 << 30},
          "A prompt of which so much is not cached is computed by a prefill worker where there is "
          "one, for the worker that answers."),
  };
}

}  // namespace sluice
