// SPDX-License-Identifier: Apache-2.0
// All knobs. A row in config_knobs.cpp gives each its flag, default, range, unit and help; the
// command line, environment (SLUICE_MAX_NUM_SEQS), YAML, --print-config and the documentation come
// from it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engine/core/status.h"

namespace sluice {

// Parsed and range-checked values. Components copy what they need at construction.
struct Config {
  // Model.
  std::string model;                           // path of a GGUF file or a directory; or org/name
  std::string revision = "main";               // branch, tag or commit of a named model
  std::string download_dir;                    // empty: the hub's cache
  std::string hub_url;                         // empty: HF_ENDPOINT, huggingface.co
  std::string hf_token;                        // empty: HF_TOKEN, the token file
  std::vector<std::string> served_model_name;  // empty: the model's own name
  std::string runner = "auto";                 // auto: as the files say; generate, pooling
  std::string convert = "auto";                // auto, none, embed, classify
  std::string pooling = "auto";                // auto, mean, cls, last, rank
  std::string hf_overrides;                    // JSON put over config.json
  std::string load_format = "auto";            // auto, dummy: random weights from config.json
  std::string generation_config = "auto";      // auto, vllm (none), a file or a folder
  std::string override_generation_config;      // JSON, overrides the above
  std::string chat_template;                   // file; empty: the model's own
  std::string tool_call_parser = "auto";       // a family's name; auto: by the template; none
  std::string reasoning_parser = "auto";       // a family's name; auto: by the template; none
  bool enable_auto_tool_choice = true;         // false: 400 for tools that a model may choose
  int64_t max_model_len = 0;                   // tokens; 0: the model's, as far as memory allows
  std::string kv_cache_dtype = "auto";  // auto (bfloat16), bfloat16, float16, float32, int8, fp8
  int32_t activation_bits = 8;          // 8, 16 or 32
  std::string packed_weights_cache;     // folder; empty: weights are repacked at each start
  int64_t packed_weights_cache_size = int64_t{128} << 30;  // bytes
  uint64_t seed = 0;                                       // base of the seeds of unseeded requests

  // Cache and scheduler.
  int32_t block_size = 16;      // tokens; divides 64
  int64_t kv_cache_memory = 0;  // bytes; 0: planned from what is free
  bool enable_prefix_caching = true;
  std::string kv_events_config;             // JSON; empty: no events
  int64_t kv_offloading_size = 0;           // GiB of host memory below the cache
  std::string kv_disk_path;                 // folder; empty: no disk tier
  int64_t kv_disk_size = int64_t{4} << 30;  // bytes
  std::string speculative_config;           // JSON; empty: only clients' predictions are drafted
  int32_t max_num_seqs = 64;
  int32_t max_num_batched_tokens = 512;
  int32_t step_target_ms = 50;               // predicted milliseconds a step may take
  int32_t max_prefill_share = 75;            // prompts' percentage of a step beside decodes
  int32_t long_prefill_token_threshold = 0;  // per prompt and step; 0: no such limit
  int32_t max_num_partial_prefills = 0;      // prompts half computed; 0: no such limit
  bool overlap = false;                      // decide the next step while one runs
  int32_t priority_aging_s = 10;             // waiting that is worth a priority level; 0: none
  int32_t max_num_queued_reqs = 1024;        // waiting requests; more get 429
  int64_t max_num_queued_tokens = 4 << 20;   // their prompt tokens; more get 429
  int32_t max_queue_wait_s = 0;  // longer waits get 429; 0: no limit

  int64_t grammar_cache_size = int64_t{256} << 20;  // bytes of compiled grammars
  int32_t grammar_compile_timeout_s = 5;
  int32_t max_json_whitespace = 16;      // per run, where a grammar binds JSON
  std::string preemption_mode = "auto";  // auto: by cost; recompute; swap: needs a KV tier
  int32_t debug_preempt_every = 0;       // steps; 0: never. Makes preemption testable

  // Handoffs of KV between workers.
  std::string role = "both";       // both, prefill, decode
  std::string kv_transfer_config;  // JSON; empty: as `role` says
  int32_t kv_transfer_timeout_ms = 5000;  // without progress; other waits are proportional
  int32_t kv_fallback_share = 25;  // percent of a step's tokens, beside decodes

  // Compute.
  std::string device = "cpu";              // auto, cpu, cuda
  bool enforce_eager = false;              // no recorded steps
  std::vector<int32_t> cuda_graph_sizes;   // rows per recorded step; none: chosen
  bool disable_custom_all_reduce = false;  // GPUs of a process exchange by NCCL alone
  int32_t threads = 0;                     // 0: min(affinity, cgroup quota)
  int32_t tensor_parallel_size = 1;        // ranks that share each layer: 1, 2, 4 or 8
  int32_t pipeline_parallel_size = 1;      // stages, each with some of the layers
  int32_t nnodes = 1;                      // processes that the ranks are divided among
  int32_t node_rank = 0;                   // which of them this is; 0 serves
  std::string master_addr = "127.0.0.1";   // where node 0 is
  int32_t master_port = 29501;
  int32_t rank_init_timeout_s = 600;       // until all nodes have met
  std::string isa = "auto";                // auto, scalar, avx2, avx512, amx
  bool cpu_strict = false;                 // pins each compute thread to its own core
  std::string numa = "off";                // off, distribute, isolate
  std::string huge_pages = "transparent";  // off, transparent, explicit

  // Server.
  std::string host = "127.0.0.1";
  int32_t port = 8000;
  std::string uds;            // Unix socket instead of host and port
  std::string ssl_certfile;   // PEM; empty: no TLS
  std::string ssl_keyfile;    // empty: in ssl_certfile
  std::string ssl_ca_certs;   // for client certificates
  int32_t ssl_cert_reqs = 0;  // client certificates: 0 no, 1 if given, 2 required
  std::vector<std::string> allowed_origins;  // *: any; empty: see server/http/cors.h
  std::vector<std::string> allowed_hosts;    // more names of this server in Host; *: any
  std::vector<std::string> allowed_methods = {"*"};
  std::vector<std::string> allowed_headers = {"*"};
  bool allow_credentials = false;
  std::string grpc_host;              // empty: host
  int32_t grpc_port = -1;             // -1: no gRPC; 0: a free one
  std::string worker_listen;         // host:port for routers; empty: none
  std::string worker_secret;          // between workers and routers; empty: none required
  std::string kv_listen;              // host:port of KV transfers' control; empty: none
  std::vector<std::string> kv_peers;  // allowed sources of KV; none: this machine
  std::string kv_transport = "auto";  // auto, cuda_ipc, nccl, shm, tcp
  int64_t kv_transfer_buffer = int64_t{64} << 20;  // bytes of landing slots
  std::vector<std::string> api_key;                // added to the file's; none: no authentication
  std::string api_key_file;                        // lines of name, key and limits
  int32_t max_requests_per_key = 0;                // concurrent; 0: no limit
  int32_t requests_per_minute_per_key = 0;
  int32_t tokens_per_minute_per_key = 0;     // prompt and output
  std::string unknown_arguments = "ignore";  // in request bodies: ignore, refuse
  bool keep_billing_header = false;          // Claude Code's first block of the system text
  bool webui = true;                         // the page at / and /docs
  bool enable_tokenizer_info_endpoint = false;  // GET /tokenizer_info, with the chat template
  int32_t io_threads = 1;
  int64_t max_body_bytes = 16 << 20;
  int32_t max_gzip_ratio = 100;  // inflated over compressed body size
  int32_t max_header_bytes = 64 << 10;
  int32_t max_json_depth = 64;
  int32_t max_stop_strings = 16;
  int32_t max_logit_bias = 1024;
  int32_t max_bad_words = 128;
  int32_t max_logprobs = 20;
  int32_t max_prompt_logprobs = 262144;    // values in one answer
  int64_t response_store_size = 64 << 20;  // bytes of kept /v1/responses answers; 0: none
  int32_t max_n = 16;                      // choices per request
  int32_t max_client_batch_size = 2048;    // texts of a request for vectors or scores
  bool auto_truncate = false;              // such texts are cut to the model's limit
  int32_t max_connections = 4096;
  int32_t reserved_connections = 16;          // beyond these, for probes and proven workers
  int32_t idle_timeout_s = 120;               // keep-alive without a request
  int32_t request_timeout_s = 30;             // between a request's first and last byte
  int32_t write_timeout_s = 60;               // a client that does not read is dropped
  int64_t max_stream_buffer_bytes = 1 << 20;  // unsent output of a stream; more: dropped
  int32_t ping_interval_s = 15;               // silence after which a stream sends a comment
  int32_t drain_timeout_s = 60;               // SIGTERM: running streams end within this
  int32_t unhealthy_after_s = 30;             // without progress, before /health turns 503

  // Router.
  std::vector<std::string> workers;    // host:port, dns:name:port, k8s:namespace/service:port
  std::string worker_ssl_ca_certs;     // PEM; with it workers are spoken TLS to
  std::string worker_ssl_certfile;     // PEM; shown to them; empty: none, or ssl_certfile
  std::string worker_ssl_keyfile;      // empty: in worker_ssl_certfile
  int32_t max_worker_losses = 10;      // consecutive, without a token, per request; more: it fails
  int32_t worker_wait_s = 60;          // a request without a worker waits this long
  int32_t affinity_blocks = 1 << 20;   // remembered as cached, over all workers
  int32_t worker_silence_s = 900;      // without a message about a request; then it is lost
  std::string route_min_ready = "50%";    // of a version's workers, before it gets new requests
  std::vector<std::string> route_shares;  // fingerprint=share of new requests
  int32_t handoff_min_tokens = 256;    // uncached prompt tokens that justify a handoff

  // Log.
  std::string log_level = "info";             // trace, debug, info, warning, error
  std::string log_format = "text";            // text, json
  bool enable_log_requests = false;           // a line per answer, without its text
  std::vector<std::string> disable_access_log_for_endpoints;  // paths without such lines
  bool enable_log_prompts = false;            // a line per prompt, with its text
  int32_t max_log_len = 4096;                 // bytes of such text; 0: all
  std::string otlp_traces_endpoint;           // destination of spans; empty: from the environment
};

enum class KnobKind : uint8_t {
  kInteger,
  kBytes,
  kBoolean,
  kString,
  kStringList,
  kLineList,
  kIntegerList,
  kChoice
};

// A list knob takes repeated values or one text with commas. The values of a kLineList may contain
// commas: its text has one line per value.
constexpr bool is_list(KnobKind kind) {
  return kind == KnobKind::kStringList || kind == KnobKind::kLineList ||
         kind == KnobKind::kIntegerList;
}

constexpr char list_separator(KnobKind kind) { return kind == KnobKind::kLineList ? '\n' : ','; }

struct Knob {
  const char* name;   // with dashes: "max-num-seqs"
  const char* group;  // model, cache, scheduler, handoff, compute, server, router, log
  KnobKind kind;
  const char* unit;     // "" when it has none
  int64_t min, max;     // kInteger, kBytes, kIntegerList
  const char* choices;  // kChoice: "auto|scalar|avx2"
  const char* help;
  // Text form in and out; set() checks the range and names rule and value.
  Expected<void> (*set)(Config&, const Knob&, const std::string& text);
  std::string (*get)(const Config&);
};

const std::vector<Knob>& config_knobs();
const Knob* find_knob(std::string_view name);     // accepts underscores for dashes
std::string nearest_knob(std::string_view name);  // for "did you mean"; empty: none is near
std::string environment_name(const Knob& knob);   // "SLUICE_MAX_NUM_SEQS"

// The caller applies sources in order of precedence: defaults, YAML, environment, command line.
Expected<void> apply_yaml(Config& config, const std::string& path);
Expected<void> apply_environment(Config& config);
// A sentence for each variable that begins with SLUICE_ and that nothing reads, with the name that
// was probably meant.
std::vector<std::string> unknown_environment();
std::string print_config(const Config& config);  // YAML for apply_yaml; no secrets
std::string config_markdown();                   // the tables of knobs.md; a test compares them

}  // namespace sluice
