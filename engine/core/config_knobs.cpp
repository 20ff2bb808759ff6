// SPDX-License-Identifier: Apache-2.0
// The rows of all knobs.
#include "engine/core/config.h"
#include "engine/core/knob_rows.h"

namespace sluice {
namespace {

constexpr int64_t kKiB = 1024;
constexpr int64_t kMiB = 1024 * kKiB;
constexpr int64_t kGiB = 1024 * kMiB;
constexpr int64_t kDay = 86400;  // seconds

std::vector<Knob> make_model_knobs() {
  return {
      string<&Config::model>("model",
                             "model",
                             "GGUF file, model directory, or name on the hub (org/name, "
                             "org/name:QUANT); also the argument MODEL."),
      string<&Config::revision>("revision", "model", "Branch, tag or commit of a model by name."),
      string<&Config::download_dir>(
          "download-dir", "model", "Cache of models by name. Default: HF_HUB_CACHE, HF_HOME/hub."),
      string<&Config::hub_url>("hub-url",
                               "model",
                               "Where models by name come from. Default: HF_ENDPOINT, "
                               "https://huggingface.co."),
      string<&Config::hf_token>(
          "hf-token", "model", "Token for the hub. Default: HF_TOKEN, the hub's token file."),
      lines<&Config::served_model_name>(
          "served-model-name",
          "model",
          "Names that requests may give as `model`; the first is reported. Default: the file's."),
      choice<&Config::load_format>("load-format",
                                   "model",
                                   "",
                                   "auto|dummy",
                                   "dummy: random weights from a directory's config.json alone."),
      string<&Config::generation_config>(
          "generation-config",
          "model",
          "Sampling where requests do not say: auto: the model's, vllm: the API's, or a "
          "generation_config.json."),
      string<&Config::override_generation_config>(
          "override-generation-config",
          "model",
          "JSON object put over the generation config; its eos_token_id ends answers instead of "
          "the model's, besides the tokenizer's own."),
      string<&Config::chat_template>(
          "chat-template",
          "model",
          "Jinja file, the template itself, or one that is built in (deepseek_v32, mistral_v3, "
          "mistral_v7, mistral_v11, mistral_v13), to use instead of the model's own."),
      string<&Config::tool_call_parser>("tool-call-parser",
                                        "model",
                                        "How the model writes calls of tools: vLLM's or SGLang's "
                                        "name; auto: found by its chat template; none: not read."),
      string<&Config::reasoning_parser>("reasoning-parser",
                                        "model",
                                        "How the model writes reasoning: vLLM's or SGLang's name; "
                                        "auto: found by its chat template; none: not read."),
      boolean<&Config::enable_auto_tool_choice>(
          "enable-auto-tool-choice",
          "model",
          "Tools that the model may call or not; off: requests with such get 400."),
      integer_or_auto<&Config::max_model_len>(
          "max-model-len",
          "model",
          "tokens",
          {1, 1 << 24},
          "Prompt plus output of one request; auto: the model's, as far as memory allows."),
      choice<&Config::kv_cache_dtype>("kv-cache-dtype",
                                      "model",
                                      "",
                                      "auto|bfloat16|float16|float32|int8|int8_per_token_head|"
                                      "fp8|fp8_e4m3",
                                      "Number format of cached keys and values; auto: bfloat16. "
                                      "int8 and fp8: with a scale for each token and head."),
      choice<&Config::activation_bits>(
          "activation-bits",
          "model",
          "bits",
          "8|16|32",
          "Width of activations in matrix products: 8 is fastest, 32 most exact. On a GPU "
          "quantized "
          "weights take 8 and, as BF16, 16; FP8 ones take 8. Checkpoints that say it themselves "
          "(INT8 W8A8) ignore this."),
      string<&Config::packed_weights_cache>(
          "packed-weights-cache",
          "model",
          "Folder that keeps weights as the kernels read them; the next start maps them, and "
          "processes share them. Empty: none. Not on a GPU."),
      bytes<&Config::packed_weights_cache_size>(
          "packed-weights-cache-size",
          "model",
          {kMiB, 65536 * kGiB},
          "Size of that folder, for all models; the files used longest ago go."),
      integer<&Config::seed>("seed",
                             "model",
                             "",
                             {0, std::numeric_limits<int64_t>::max()},
                             "Makes the seeds of requests that bring none."),
  };
}

std::vector<Knob> make_cache_knobs() {
  return {
      choice<&Config::block_size>("block-size",
                                  "cache",
                                  "tokens",
                                  "1|2|4|8|16|32|64",
                                  "Tokens in one block of the paged KV cache."),
      bytes_or_auto<&Config::kv_cache_memory>("kv-cache-memory",
                                              "cache",
                                              {kMiB, 65536 * kGiB},
                                              "Size of the KV cache; auto: what all requests use, "
                                              "at most half of what is free, of a GPU nine tenths."),
      boolean<&Config::enable_prefix_caching>(
          "enable-prefix-caching", "cache", "Reuse cached blocks of equal prompt beginnings."),
      string<&Config::kv_events_config>(
          "kv-events-config",
          "cache",
          "JSON in vLLM's names: publishes changes of the prefix cache over ZeroMQ."),
      integer<&Config::kv_offloading_size>(
          "kv-offloading-size",
          "cache",
          "GiB",
          {0, 65536},
          "Memory that keeps computed prefixes for when the cache has lost them; 0: none."),
      string<&Config::kv_disk_path>("kv-disk-path",
                                    "cache",
                                    "Folder that keeps computed prefixes, for when the cache has "
                                    "lost them or after a restart."),
      choice<&Config::preemption_mode>("preemption-mode",
                                       "cache",
                                       "",
                                       "auto|recompute|swap",
                                       "How a preempted request goes on where prefixes are kept: "
                                       "computed again, brought back, or what is faster."),
      bytes<&Config::kv_disk_size>("kv-disk-size",
                                   "cache",
                                   {kMiB, 65536 * kGiB},
                                   "Most bytes of blocks in that folder. What other models or builds "
                                   "have left there is removed at the start, unless a process "
                                   "uses it."),
  };
}

std::vector<Knob> make_scheduler_knobs() {
  return {
      string<&Config::speculative_config>(
          "speculative-config",
          "scheduler",
          "JSON in vLLM's names: how tokens are guessed, so that several are computed at once "
          "(method: ngram, suffix, draft_model, eagle or eagle3 with a model, mtp, or several with "
          "commas). Changes no answer."),
      integer<&Config::max_num_seqs>("max-num-seqs",
                                     "scheduler",
                                     "requests",
                                     {1, 4096},
                                     "Requests that run at the same time at most."),
      integer<&Config::max_num_batched_tokens>("max-num-batched-tokens",
                                               "scheduler",
                                               "tokens",
                                               {1, 65536},
                                               "Tokens in one step at most."),
      integer<&Config::step_target_ms>("step-target-ms",
                                       "scheduler",
                                       "ms",
                                       {1, 10000},
                                       "Predicted time that one step may take."),
      integer<&Config::max_prefill_share>(
          "max-prefill-share",
          "scheduler",
          "percent",
          {1, 100},
          "Of a step's predicted time, what prompts may take beside decodes; 100: no bound but "
          "--step-target-ms."),
      integer<&Config::long_prefill_token_threshold>(
          "long-prefill-token-threshold",
          "scheduler",
          "tokens",
          {0, 1 << 20},
          "Most tokens of one prompt in a step, so that others have room beside it; 0: no limit."),
      integer<&Config::max_num_partial_prefills>(
          "max-num-partial-prefills",
          "scheduler",
          "requests",
          {0, 65536},
          "Prompts that are partly computed at the same time at most; 0: no limit."),
      boolean<&Config::overlap>("overlap",
                                "scheduler",
                                "Decides a step while the one before runs on a thread of its own; "
                                "a GPU has its next step in its queue in any case."),
      integer<&Config::debug_preempt_every>("debug-preempt-every",
                                            "scheduler",
                                            "steps",
                                            {0, 1000000},
                                            "Preempts a request each so many steps; 0: never. "
                                            "Answers do not change; for testing that."),
      integer<&Config::priority_aging_s>(
          "priority-aging-s",
          "scheduler",
          "s",
          {0, 86400},
          "Waiting that is worth one level of priority; 0: low priorities wait as long as there "
          "are higher ones."),
      integer<&Config::max_num_queued_reqs>("max-num-queued-reqs",
                                            "scheduler",
                                            "requests",
                                            {1, 1000000},
                                            "Waiting requests at most; more get status 429."),
      integer<&Config::max_num_queued_tokens>(
          "max-num-queued-tokens",
          "scheduler",
          "tokens",
          {1, int64_t{1} << 40},
          "Tokens of waiting prompts at most; more get status 429."),
      integer<&Config::grammar_cache_size>(
          "grammar-cache-size",
          "scheduler",
          "bytes",
          {0, int64_t{1} << 40},
          "Compiled grammars of structured output that are kept; a tenant has half at most."),
      integer<&Config::grammar_compile_timeout_s>(
          "grammar-compile-timeout-s",
          "scheduler",
          "s",
          {1, 600},
          "Processor time to compile a grammar, in a process that is ended then; more get status 400. "
          "Where the machine does not give so much in six times the time, status 503."),
      integer<&Config::max_json_whitespace>(
          "max-json-whitespace",
          "scheduler",
          "characters",
          {0, 1000},
          "The longest run of whitespace between the tokens of JSON that a grammar binds."),
      integer<&Config::max_queue_wait_s>(
          "max-queue-wait-s",
          "scheduler",
          "s",
          {0, 86400},
          "Time until a request starts; where longer is predicted or it takes longer: status 429. "
          "0: no limit."),
  };
}

std::vector<Knob> make_handoff_knobs() {
  return {
      choice<&Config::role>("role",
                            "handoff",
                            "",
                            "both|prefill|decode",
                            "What a worker offers and asks for where one computes prompts and "
                            "another goes on; each computes whole requests too."),
      string<&Config::kv_transfer_config>(
          "kv-transfer-config",
          "handoff",
          "JSON in vLLM's names: the role as kv_role, and as kv_connector how routers send the two "
          "requests (NixlConnector, MooncakeConnector); kv_load_failure_policy: recompute or fail."),
      integer<&Config::kv_transfer_timeout_ms>(
          "kv-transfer-timeout-ms",
          "handoff",
          "ms",
          {20, 600'000},
          "After so long without a byte a transfer of KV is given up and its prompt computed here; "
          "how long prompts are kept for others, and the rest, goes in proportion."),
      integer<&Config::kv_fallback_share>(
          "kv-fallback-share",
          "handoff",
          "percent",
          {1, 100},
          "Of a step's tokens, beside requests that decode: what prompts get whose KV was to come "
          "from another worker and did not."),
  };
}

std::vector<Knob> make_compute_knobs() {
  return {
      choice<&Config::device>("device",
                              "compute",
                              "",
                              "auto|cpu|cuda",
                              "Where the model runs; auto: on a GPU where there is one and its "
                              "backend has what the model needs."),
      boolean<&Config::enforce_eager>("enforce-eager",
                                      "compute",
                                      "Puts every step on a GPU operator by operator, instead of "
                                      "replaying recorded ones where every request decodes."),
      integer_list<&Config::cuda_graph_sizes>(
          "cuda-graph-sizes",
          "compute",
          "requests",
          {1, 4096},
          "Sizes of the steps that are recorded at start as CUDA graphs; smaller ones are padded, "
          "larger ones not replayed. One given: 1, 2, 4, 8, 16, ... up to it; none: up to 512. "
          "Those above max-num-seqs are left out, or, with drafts, above all the rows that tokens "
          "are chosen behind in a step. Steps with drafts of a model with recurrent layers are not "
          "recorded."),
      integer_or_auto<&Config::threads>("threads",
                                        "compute",
                                        "threads",
                                        {1, 1024},
                                        "Compute threads; auto: CPU affinity and cgroup quota."),
      integer<&Config::tensor_parallel_size>(
          "tensor-parallel-size",
          "compute",
          "ranks",
          {1, 8},
          "Ranks that share each layer, 1, 2, 4 or 8: of the CPU, with the compute threads among "
          "them, each as many, rounded down; or as many GPUs, which meet by NCCL (libnccl.so.2). "
          "The results are the same."),
      boolean<&Config::disable_custom_all_reduce>(
          "disable-custom-all-reduce",
          "compute",
          "Lets the GPUs of a process exchange all rows by NCCL. Otherwise few rows go by memory "
          "that the GPUs write on each other, if a trial at start shows that they do. The results "
          "are the same."),
      choice<&Config::isa>("isa",
                           "compute",
                           "",
                           "auto|scalar|avx2|avx512|amx",
                           "Instruction set of the kernels; the results are the same."),
      boolean<&Config::cpu_strict>("cpu-strict",
                                   "compute",
                                   "Pins each compute thread to a core of the affinity mask; "
                                   "processes that do so on one machine need masks of their own."),
      choice<&Config::numa>("numa",
                            "compute",
                            "",
                            "off|distribute|isolate",
                            "distribute: memory and threads evenly over the NUMA nodes; isolate: "
                            "both on the node of the start; off: as the system does."),
      choice<&Config::huge_pages>("huge-pages",
                                  "compute",
                                  "",
                                  "off|transparent|explicit",
                                  "Pages of weights, KV cache and activations; explicit: from what "
                                  "vm.nr_hugepages reserves."),
  };
}

std::vector<Knob> make_server_knobs() {
  return {
      string<&Config::host>("host", "server", "Address to listen on."),
      integer<&Config::port>("port", "server", "", {0, 65535}, "TCP port; 0 takes a free one."),
      string<&Config::uds>("uds", "server", "Unix socket to listen on instead of host and port."),
      string<&Config::ssl_certfile>(
          "ssl-certfile", "server", "PEM certificate chain; with it the server speaks TLS."),
      string<&Config::ssl_keyfile>(
          "ssl-keyfile",
          "server",
          "PEM private key; without it the key is in the certificate file."),
      string<&Config::ssl_ca_certs>(
          "ssl-ca-certs", "server", "PEM certificates of who signs client certificates."),
      choice<&Config::ssl_cert_reqs>("ssl-cert-reqs",
                                     "server",
                                     "",
                                     "0|1|2",
                                     "Client certificates: no, checked if given, required."),
  };
}

// Access: clients, networks and keys.
std::vector<Knob> make_client_knobs() {
  return {
      list<&Config::allowed_origins>(
          "allowed-origins",
          "server",
          "Whose pages may use the server; *: any. None: any with a key, else this machine's."),
      list<&Config::allowed_hosts>(
          "allowed-hosts",
          "server",
          "More names of the server in Host; *.example.com is all below, * any."),
      list<&Config::allowed_methods>(
          "allowed-methods", "server", "Methods that such pages may use."),
      list<&Config::allowed_headers>(
          "allowed-headers", "server", "Request headers that such pages may send."),
      boolean<&Config::allow_credentials>(
          "allow-credentials",
          "server",
          "Lets pages of origins that are named send cookies and client certificates; not of *."),
      string<&Config::grpc_host>("grpc-host", "server", "Address of gRPC; empty: that of --host."),
      integer<&Config::grpc_port>("grpc-port",
                                  "server",
                                  "",
                                  {-1, 65535},
                                  "TCP port of gRPC, usually 50051; 0 takes a free one, -1: none."),
      lines<&Config::api_key>(
          "api-key", "server", "An accepted bearer token; several: as often, or as many lines."),
      string<&Config::api_key_file>(
          "api-key-file",
          "server",
          "File with a line for each key: name, key, limits; read again when it changes."),
      choice<&Config::unknown_arguments>(
          "unknown-arguments",
          "server",
          "",
          "ignore|refuse",
          "Arguments that no request has: left out and named in a header, or status 400."),
      boolean<&Config::keep_billing_header>(
          "keep-billing-header",
          "server",
          "Claude Code's first line of the system text reaches the model; it hides cached prefixes."),
      bytes<&Config::response_store_size>(
          "response-store-size",
          "server",
          {0, 64 * kGiB},
          "Answers of /v1/responses that are kept for previous_response_id; 0: none."),
      boolean<&Config::webui>(
          "webui", "server", "The page at /, and /docs; `--no-webui` serves neither."),
      boolean<&Config::enable_tokenizer_info_endpoint>(
          "enable-tokenizer-info-endpoint",
          "server",
          "GET /tokenizer_info: special tokens and the chat template, for remote tokenizers."),
      integer<&Config::io_threads>("io-threads",
                                   "server",
                                   "threads",
                                   {1, 64},
                                   "Threads for connections, templates and tokenization."),
  };
}

// Limits on what one request or client may take.
std::vector<Knob> make_limit_knobs() {
  return {
      bytes<&Config::max_body_bytes>(
          "max-body-bytes",
          "server",
          {kKiB, kGiB},
          "Largest request body; those that are not complete share four times as much."),
      integer<&Config::max_requests_per_key>("max-requests-per-key",
                                             "server",
                                             "requests",
                                             {0, 1000000},
                                             "Requests under way with one key; 0: no limit."),
      integer<&Config::requests_per_minute_per_key>("requests-per-minute-per-key",
                                                    "server",
                                                    "requests",
                                                    {0, 1000000000},
                                                    "Requests a minute with one key; 0: no limit."),
      integer<&Config::tokens_per_minute_per_key>(
          "tokens-per-minute-per-key",
          "server",
          "tokens",
          {0, 2000000000},
          "Tokens of prompts and output a minute with one key; 0: no limit."),
      integer<&Config::max_gzip_ratio>(
          "max-gzip-ratio", "server", "", {1, 1100}, "Times that a gzip body may grow."),
      bytes<&Config::max_header_bytes>(
          "max-header-bytes", "server", {kKiB, kMiB}, "Largest request header."),
      integer<&Config::max_json_depth>(
          "max-json-depth", "server", "levels", {4, 512}, "Deepest nesting of a request body."),
      integer<&Config::max_stop_strings>(
          "max-stop-strings", "server", "", {0, 256}, "Stop strings of one request at most."),
      integer<&Config::max_logit_bias>(
          "max-logit-bias", "server", "", {0, 65536}, "Entries of logit_bias at most."),
      integer<&Config::max_bad_words>(
          "max-bad-words", "server", "", {0, 4096}, "Entries of bad_words at most."),
      integer<&Config::max_logprobs>("max-logprobs",
                                     "server",
                                     "",
                                     {0, 256},
                                     "Alternatives with logprobs for each token at most."),
      integer<&Config::max_prompt_logprobs>(
          "max-prompt-logprobs",
          "server",
          "values",
          {0, 1 << 28},
          "Log-probabilities of prompt tokens in one answer at most, alternatives included."),
      integer<&Config::max_n>("max-n", "server", "", {1, 256}, "Choices of one request at most."),
      integer<&Config::max_connections>("max-connections",
                                        "server",
                                        "",
                                        {1, 1000000},
                                        "Open connections and gRPC calls at most, on all ports but --kv-listen."),
      integer<&Config::reserved_connections>(
          "reserved-connections",
          "server",
          "",
          {1, 1000},
          "Connections beyond these, for probes, /metrics, and workers that have the secret."),
      integer<&Config::idle_timeout_s>("idle-timeout-s",
                                       "server",
                                       "seconds",
                                       {1, kDay},
                                       "Closes a kept-alive connection without a request."),
      integer<&Config::request_timeout_s>("request-timeout-s",
                                          "server",
                                          "seconds",
                                          {1, kDay},
                                          "From a request's first byte to its last."),
      integer<&Config::write_timeout_s>(
          "write-timeout-s", "server", "seconds", {1, kDay}, "Drops a client that does not read."),
      bytes<&Config::max_stream_buffer_bytes>(
          "max-stream-buffer-bytes",
          "server",
          {4 * kKiB, kGiB},
          "Unsent output of one stream; a client further behind is dropped."),
      integer<&Config::ping_interval_s>("ping-interval-s",
                                        "server",
                                        "seconds",
                                        {1, kDay},
                                        "A stream with nothing to say sends a comment so often."),
      integer<&Config::drain_timeout_s>("drain-timeout-s",
                                        "server",
                                        "seconds",
                                        {0, kDay},
                                        "After SIGTERM, time for running requests to end."),
      integer<&Config::unhealthy_after_s>("unhealthy-after-s",
                                          "server",
                                          "seconds",
                                          {1, kDay},
                                          "Without progress for so long /health turns 503."),
      choice<&Config::log_level>("log-level",
                                 "log",
                                 "",
                                 "trace|debug|info|warning|error",
                                 "Least important messages to write to stderr."),
      choice<&Config::log_format>(
          "log-format", "log", "", "text|json", "Form of log lines: key=value, or JSON objects."),
      boolean<&Config::enable_log_requests>(
          "enable-log-requests", "log", "A line for each answer; never prompts or their answers."),
      list<&Config::disable_access_log_for_endpoints>(
          "disable-access-log-for-endpoints",
          "log",
          "Paths whose answers --enable-log-requests leaves out."),
      boolean<&Config::enable_log_prompts>(
          "enable-log-prompts", "log", "A line for each prompt, with its text and request id."),
      integer<&Config::max_log_len>(
          "max-log-len", "log", "bytes", {0, 1 << 30}, "Of a prompt in the log; 0: all of it."),
      string<&Config::otlp_traces_endpoint>(
          "otlp-traces-endpoint",
          "log",
          "Where traces go (OTLP over HTTP); else OTEL_EXPORTER_OTLP_ENDPOINT says."),
  };
}

std::vector<Knob> make_knobs() {
  std::vector<Knob> knobs = make_model_knobs();
  for (auto make : {make_pooling_knobs,
                    make_cache_knobs,
                    make_scheduler_knobs,
                    make_handoff_knobs,
                    make_compute_knobs,
                    make_node_knobs,
                    make_server_knobs,
                    make_client_knobs,
                    make_worker_knobs,
                    make_limit_knobs,
                    make_router_knobs}) {
    std::vector<Knob> more = make();
    knobs.insert(knobs.end(), more.begin(), more.end());
  }
  return knobs;
}

}  // namespace

const std::vector<Knob>& config_knobs() {
  static const std::vector<Knob> knobs = make_knobs();
  return knobs;
}

}  // namespace sluice
