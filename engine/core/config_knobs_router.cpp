// SPDX-License-Identifier: Apache-2.0
// The rows of the knobs of routers, and of what is between processes.
#include "engine/core/config.h"
#include "engine/core/knob_rows.h"

namespace sluice {
namespace {

constexpr int64_t kDay = 86400;  // seconds

}  // namespace

// Between the processes of one model.
std::vector<Knob> make_node_knobs() {
  return {
      integer<&Config::nnodes>(
          "nnodes",
          "compute",
          "processes",
          {1, 8},
          "Processes, on one or several machines, that share the model: pipeline-parallel-size times "
          "tensor-parallel-size, or as many as stages, whose ranks are then threads; with a GPU each, "
          "tensor-parallel-size. The same command runs on each, with another node-rank."),
      integer<&Config::pipeline_parallel_size>(
          "pipeline-parallel-size",
          "compute",
          "stages",
          {1, 8},
          "Stages, each with some of the layers, their weights and their KV, on the CPU: processes "
          "(nnodes), or one process that runs them in turn. The results are the same."),
      integer<&Config::node_rank>("node-rank",
                                  "compute",
                                  "",
                                  {0, 7},
                                  "Which of nnodes this process is. Node 0 serves; the others compute "
                                  "what it tells them, and end with it."),
      string<&Config::master_addr>("master-addr",
                                 "compute",
                                 "Name or address of node 0, where it waits for the others."),
      integer<&Config::master_port>(
          "master-port", "compute", "", {1, 65535}, "Port of node 0 for the other nodes."),
      integer<&Config::rank_init_timeout_s>("rank-init-timeout",
                                            "compute",
                                            "seconds",
                                            {1, 86400},
                                            "Time in which all nodes must have met, and NCCL then have connected "
                                            "GPUs; loading is bounded by their lives alone."),
  };
}

// Between workers and routers.
std::vector<Knob> make_worker_knobs() {
  return {
      string<&Config::worker_listen>(
          "worker-listen",
          "server",
          "host:port where `sluice router` reaches this worker; others than loopback need a secret "
          "or client certificates. Empty: none."),
      string<&Config::worker_secret>(
          "worker-secret",
          "server",
          "What workers and routers share; without it whoever reaches a worker may use it, and KV "
          "goes to workers of this machine alone, but for --worker-ssl-ca-certs. Better in the "
          "environment than on a command line."),
      string<&Config::worker_ssl_ca_certs>(
          "worker-ssl-ca-certs",
          "server",
          "PEM certificates of who signs the workers'; with it routers speak TLS to workers, and "
          "workers mutual TLS to one another where they listen for KV."),
      string<&Config::worker_ssl_certfile>(
          "worker-ssl-certfile",
          "server",
          "PEM certificate that is shown to workers; without it a worker shows --ssl-certfile."),
      string<&Config::worker_ssl_keyfile>(
          "worker-ssl-keyfile",
          "server",
          "PEM private key of it; without it the key is in the certificate file."),
      string<&Config::kv_listen>(
          "kv-listen",
          "server",
          "host:port where other workers ask for KV; port 0 takes a free one; empty: nowhere. "
          "At most 128 connections, which --max-connections does not count."),
      list<&Config::kv_peers>("kv-peers",
                              "server",
                              "host or host:port of workers that KV may be fetched from; empty: "
                              "of this machine only; *: of all that requests name."),
      choice<&Config::kv_transport>(
          "kv-transport",
          "server",
          "",
          "auto|cuda_ipc|nccl|shm|tcp",
          "How KV travels; auto: TCP, but shm between workers on GPUs of one machine. cuda_ipc and "
          "nccl are for GPUs, cuda_ipc for those of one machine: a prefill worker that is killed "
          "may end its decode worker. Other than auto, both workers need the same. Between nnodes, "
          "how parts of results do: auto is shm where all share memory, else TCP; nccl with a GPU "
          "each."),
      bytes<&Config::kv_transfer_buffer>("kv-transfer-buffer",
                                         "server",
                                         {int64_t{1} << 20, int64_t{64} << 30},
                                         "Memory where KV of other workers arrives."),
  };
}

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
