// SPDX-License-Identifier: Apache-2.0
#include "server/cli/vllm_command_line.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <system_error>
#include <utility>

namespace sluice {
namespace {

using Json = nlohmann::ordered_json;

enum class Fate : uint8_t {
  kSame,     // a knob of the same name and meaning
  kRenamed,  // a knob under another name
  kIgnored,  // cannot change an answer: a warning, unless the value is `neutral`
  kNeutral,  // an error unless the value is one of `neutral`, or the flag --no-...
  kApart,    // translate_serve() sees to it
  kRefused,
};

enum class Values : uint8_t { kNone, kOne, kSome };  // kSome: up to the next flag

struct FlagRow {
  std::string_view name;  // without dashes
  Values values;
  Fate fate;
  std::string_view other = {};  // kRenamed: ours; kIgnored and kNeutral: values that need no word
};

// clang-format off
constexpr FlagRow kFlags[] = {
    {"model", Values::kOne, Fate::kApart},
    {"tokenizer", Values::kOne, Fate::kApart},
    {"grpc", Values::kNone, Fate::kApart},
    {"config", Values::kOne, Fate::kRefused},
    {"host", Values::kOne, Fate::kSame},
    {"port", Values::kOne, Fate::kSame},
    {"served-model-name", Values::kSome, Fate::kSame},
    {"api-key", Values::kSome, Fate::kSame},
    {"revision", Values::kOne, Fate::kSame},
    {"download-dir", Values::kOne, Fate::kSame},
    {"hf-token", Values::kOne, Fate::kSame},
    {"generation-config", Values::kOne, Fate::kSame},
    {"override-generation-config", Values::kOne, Fate::kSame},
    {"uds", Values::kOne, Fate::kSame},
    {"ssl-certfile", Values::kOne, Fate::kSame},
    {"ssl-keyfile", Values::kOne, Fate::kSame},
    {"ssl-ca-certs", Values::kOne, Fate::kSame},
    {"ssl-cert-reqs", Values::kOne, Fate::kSame},
    {"allowed-origins", Values::kOne, Fate::kSame},
    {"allowed-methods", Values::kOne, Fate::kSame},
    {"allowed-headers", Values::kOne, Fate::kSame},
    {"allow-credentials", Values::kNone, Fate::kSame},
    {"chat-template", Values::kOne, Fate::kSame},
    {"tool-call-parser", Values::kOne, Fate::kSame},
    {"reasoning-parser", Values::kOne, Fate::kSame},
    {"enable-auto-tool-choice", Values::kNone, Fate::kSame},
    {"max-model-len", Values::kOne, Fate::kSame},
    {"max-num-seqs", Values::kOne, Fate::kSame},
    {"tensor-parallel-size", Values::kOne, Fate::kSame},
    {"max-num-batched-tokens", Values::kOne, Fate::kSame},
    {"max-logprobs", Values::kOne, Fate::kSame},
    {"max-num-partial-prefills", Values::kOne, Fate::kSame},
    {"long-prefill-token-threshold", Values::kOne, Fate::kSame},
    {"max-num-queued-reqs", Values::kOne, Fate::kSame},
    {"max-num-queued-tokens", Values::kOne, Fate::kSame},
    {"block-size", Values::kOne, Fate::kSame},
    {"seed", Values::kOne, Fate::kSame},
    {"kv-cache-dtype", Values::kOne, Fate::kSame},
    {"enable-prefix-caching", Values::kNone, Fate::kSame},
    {"kv-events-config", Values::kOne, Fate::kSame},
    {"kv-transfer-config", Values::kOne, Fate::kSame},
    {"kv-cache-memory-bytes", Values::kOne, Fate::kRenamed, "kv-cache-memory"},
    {"shutdown-timeout", Values::kOne, Fate::kRenamed, "drain-timeout-s"},
    {"uvicorn-log-level", Values::kOne, Fate::kRenamed, "log-level"},
    {"cudagraph-capture-sizes", Values::kSome, Fate::kRenamed, "cuda-graph-sizes"},
    {"max-cudagraph-capture-size", Values::kOne, Fate::kRenamed, "cuda-graph-sizes"},

    // How the work is done, logged or watched.
    {"gpu-memory-utilization", Values::kOne, Fate::kIgnored},
    {"num-gpu-blocks-override", Values::kOne, Fate::kIgnored},
    {"swap-space", Values::kOne, Fate::kIgnored},
    {"cpu-offload-gb", Values::kOne, Fate::kIgnored},
    {"kv-offloading-size", Values::kOne, Fate::kSame},
    {"kv-offloading-backend", Values::kOne, Fate::kIgnored},
    {"prefix-caching-hash-algo", Values::kOne, Fate::kIgnored},
    {"enforce-eager", Values::kNone, Fate::kSame},
    {"cuda-graph-sizes", Values::kSome, Fate::kSame},
    {"compilation-config", Values::kOne, Fate::kIgnored},
    {"optimization-level", Values::kOne, Fate::kIgnored},
    {"max-parallel-loading-workers", Values::kOne, Fate::kIgnored},
    {"disable-frontend-multiprocessing", Values::kNone, Fate::kIgnored},
    {"log-config-file", Values::kOne, Fate::kIgnored},
    {"attention-backend", Values::kOne, Fate::kIgnored},
    {"async-scheduling", Values::kNone, Fate::kIgnored},
    {"enable-chunked-prefill", Values::kNone, Fate::kIgnored},
    {"max-seq-len-to-capture", Values::kOne, Fate::kIgnored},
    {"stream-interval", Values::kOne, Fate::kIgnored, "1"},
    {"disable-hybrid-kv-cache-manager", Values::kNone, Fate::kIgnored},
    {"disable-custom-all-reduce", Values::kNone, Fate::kIgnored},
    {"distributed-executor-backend", Values::kOne, Fate::kIgnored},
    {"api-server-count", Values::kOne, Fate::kIgnored},
    {"speculative-config", Values::kOne, Fate::kSame},
    {"load-format", Values::kOne, Fate::kNeutral, "auto,gguf,safetensors"},
    {"trust-remote-code", Values::kNone, Fate::kIgnored},
    {"limit-mm-per-prompt", Values::kOne, Fate::kIgnored},
    {"disable-log-stats", Values::kNone, Fate::kIgnored},
    {"disable-log-requests", Values::kNone, Fate::kIgnored},
    {"enable-log-requests", Values::kNone, Fate::kSame},
    {"max-log-len", Values::kOne, Fate::kSame},
    {"enable-log-outputs", Values::kNone, Fate::kIgnored},
    {"disable-access-log-for-endpoints", Values::kSome, Fate::kIgnored},
    {"disable-uvicorn-access-log", Values::kNone, Fate::kIgnored},
    {"otlp-traces-endpoint", Values::kOne, Fate::kSame},
    {"collect-detailed-traces", Values::kSome, Fate::kIgnored},
    {"show-hidden-metrics-for-version", Values::kOne, Fate::kIgnored},
    {"enable-request-id-headers", Values::kNone, Fate::kIgnored},
    {"enable-prompt-tokens-details", Values::kNone, Fate::kIgnored},
    {"enable-server-load-tracking", Values::kNone, Fate::kIgnored},
    {"enable-ssl-refresh", Values::kNone, Fate::kIgnored},
    {"disable-fastapi-docs", Values::kNone, Fate::kIgnored},
    {"h11-max-incomplete-event-size", Values::kOne, Fate::kIgnored},
    {"aggregate-engine-logging", Values::kNone, Fate::kIgnored},
    {"all2all-backend", Values::kOne, Fate::kIgnored},
    {"allow-deprecated-quantization", Values::kNone, Fate::kIgnored},
    {"allowed-local-media-path", Values::kOne, Fate::kIgnored},
    {"allowed-media-domains", Values::kSome, Fate::kIgnored},
    {"attention-config", Values::kOne, Fate::kIgnored},
    {"cpu-distributed-timeout-seconds", Values::kOne, Fate::kIgnored},
    {"cpu-offload-params", Values::kSome, Fate::kIgnored},
    {"cudagraph-metrics", Values::kNone, Fate::kIgnored},
    {"custom-histogram-buckets", Values::kOne, Fate::kIgnored},
    {"dbo-decode-token-threshold", Values::kOne, Fate::kIgnored},
    {"dbo-prefill-token-threshold", Values::kOne, Fate::kIgnored},
    {"device-ids", Values::kOne, Fate::kIgnored},
    {"device-memory-utilization", Values::kOne, Fate::kIgnored},
    {"disable-cascade-attn", Values::kNone, Fate::kIgnored},
    {"disable-chunked-mm-input", Values::kNone, Fate::kIgnored},
    {"disable-nccl-for-dp-synchronization", Values::kNone, Fate::kIgnored},
    {"distributed-timeout-seconds", Values::kOne, Fate::kIgnored},
    {"enable-batch-sharded-sampling", Values::kNone, Fate::kIgnored},
    {"enable-cumem-allocator", Values::kNone, Fate::kIgnored},
    {"enable-dbo", Values::kNone, Fate::kIgnored},
    {"enable-eplb", Values::kNone, Fate::kIgnored},
    {"enable-expert-parallel", Values::kNone, Fate::kIgnored},
    {"enable-flashinfer-autotune", Values::kNone, Fate::kIgnored},
    {"enable-layerwise-nvtx-tracing", Values::kNone, Fate::kIgnored},
    {"enable-log-deltas", Values::kNone, Fate::kIgnored},
    {"enable-logging-iteration-details", Values::kNone, Fate::kIgnored},
    {"enable-mfu-metrics", Values::kNone, Fate::kIgnored},
    {"enable-nccl-comm-suspend", Values::kNone, Fate::kIgnored},
    {"enable-offline-docs", Values::kNone, Fate::kIgnored},
    {"enable-per-request-metrics", Values::kNone, Fate::kIgnored},
    {"enable-shm-tensor-arena", Values::kNone, Fate::kIgnored},
    {"eplb-config", Values::kOne, Fate::kIgnored},
    {"expert-placement-strategy", Values::kOne, Fate::kIgnored},
    {"fail-on-environ-validation", Values::kNone, Fate::kIgnored},
    {"h11-max-header-count", Values::kOne, Fate::kIgnored},
    {"ignore-patterns", Values::kSome, Fate::kIgnored},
    {"interleave-mm-strings", Values::kNone, Fate::kIgnored},
    {"ir-op-priority", Values::kOne, Fate::kIgnored},
    {"jit-monitor-mode", Values::kOne, Fate::kIgnored},
    {"jit-monitor-verbose", Values::kNone, Fate::kIgnored},
    {"kernel-config", Values::kOne, Fate::kIgnored},
    {"kv-cache-metrics", Values::kNone, Fate::kIgnored},
    {"kv-cache-metrics-sample", Values::kOne, Fate::kIgnored},
    {"language-model-only", Values::kNone, Fate::kIgnored},
    {"linear-backend", Values::kOne, Fate::kIgnored},
    {"log-error-stack", Values::kNone, Fate::kIgnored},
    {"log-level", Values::kOne, Fate::kIgnored},
    {"logging-config", Values::kOne, Fate::kIgnored},
    {"long-prefill-token-threshold-adaptive", Values::kNone, Fate::kIgnored},
    {"master-addr", Values::kOne, Fate::kIgnored},
    {"master-port", Values::kOne, Fate::kIgnored},
    {"max-num-active-seqs", Values::kOne, Fate::kIgnored},
    {"max-num-scheduled-tokens", Values::kOne, Fate::kIgnored},
    {"media-io-kwargs", Values::kOne, Fate::kIgnored},
    {"mm-processor-cache-gb", Values::kOne, Fate::kIgnored},
    {"mm-processor-cache-type", Values::kOne, Fate::kIgnored},
    {"model-loader-extra-config", Values::kOne, Fate::kIgnored},
    {"moe-backend", Values::kOne, Fate::kIgnored},
    {"monokernel", Values::kNone, Fate::kIgnored},
    {"numa-bind", Values::kNone, Fate::kIgnored},
    {"numa-bind-cpus", Values::kSome, Fate::kIgnored},
    {"numa-bind-nodes", Values::kSome, Fate::kIgnored},
    {"offload-backend", Values::kOne, Fate::kIgnored},
    {"offload-group-size", Values::kOne, Fate::kIgnored},
    {"offload-num-in-group", Values::kOne, Fate::kIgnored},
    {"offload-params", Values::kSome, Fate::kIgnored},
    {"offload-prefetch-step", Values::kOne, Fate::kIgnored},
    {"per-request-spec-decode-metrics", Values::kOne, Fate::kIgnored},
    {"performance-mode", Values::kOne, Fate::kIgnored},
    {"prefill-schedule-interval", Values::kOne, Fate::kIgnored},
    {"prefix-cache-retention-interval", Values::kOne, Fate::kIgnored},
    {"profiler-config", Values::kOne, Fate::kIgnored},
    {"pt-load-map-location", Values::kOne, Fate::kIgnored},
    {"ray-workers-use-nsight", Values::kNone, Fate::kIgnored},
    {"renderer-num-workers", Values::kOne, Fate::kIgnored},
    {"safetensors-load-strategy", Values::kOne, Fate::kIgnored},
    {"safetensors-prefetch-block-size", Values::kOne, Fate::kIgnored},
    {"safetensors-prefetch-num-threads", Values::kOne, Fate::kIgnored},
    {"scheduler-reserve-full-isl", Values::kNone, Fate::kIgnored},
    {"skip-mm-profiling", Values::kNone, Fate::kIgnored},
    {"sse-keep-alive-interval", Values::kOne, Fate::kIgnored, "0"},
    {"ubatch-size", Values::kOne, Fate::kIgnored},
    {"use-tqdm-on-load", Values::kNone, Fate::kIgnored},
    {"watchdog-config", Values::kOne, Fate::kIgnored},
    {"watermark", Values::kOne, Fate::kIgnored},

    // What is so here anyway, and not otherwise.
    {"dtype", Values::kOne, Fate::kNeutral, "auto"},
    {"quantization", Values::kOne, Fate::kNeutral, "gguf"},
    {"tokenizer-mode", Values::kOne, Fate::kNeutral, "auto"},
    {"config-format", Values::kOne, Fate::kNeutral, "auto"},
    {"model-impl", Values::kOne, Fate::kNeutral, "auto,vllm"},
    {"scheduling-policy", Values::kOne, Fate::kNeutral, "fcfs,priority"},
    {"pipeline-parallel-size", Values::kOne, Fate::kNeutral, "1"},
    {"data-parallel-size", Values::kOne, Fate::kNeutral, "1"},
    {"nnodes", Values::kOne, Fate::kNeutral, "1"},
    {"node-rank", Values::kOne, Fate::kNeutral, "0"},
    {"chat-template-content-format", Values::kOne, Fate::kNeutral, "auto"},
    {"response-role", Values::kOne, Fate::kNeutral, "assistant"},
    {"root-path", Values::kOne, Fate::kNeutral, ""},
    {"task", Values::kOne, Fate::kNeutral, "generate,auto"},
    {"runner", Values::kOne, Fate::kNeutral, "auto,generate"},
    {"device", Values::kOne, Fate::kNeutral, "cpu,auto"},
    {"tokenizer-revision", Values::kOne, Fate::kNeutral, "main"},
    {"hf-overrides", Values::kOne, Fate::kNeutral, "{}"},
    {"logprobs-mode", Values::kOne, Fate::kNeutral, "raw_logprobs"},
    {"structured-outputs-config", Values::kOne, Fate::kNeutral, R"({"backend":"auto"},{})"},
    {"enable-lora", Values::kNone, Fate::kNeutral},
};

// clang-format on

const FlagRow* find_flag(std::string_view name) {
  const auto* row = std::ranges::find(kFlags, name, &FlagRow::name);
  return row == std::end(kFlags) ? nullptr : row;
}

// Without what follows '='; "-cc.mode" is "compilation-config.mode".
std::string long_name(std::string_view argument) {
  constexpr std::pair<std::string_view, std::string_view> kShort[] = {
      {"-tp", "tensor-parallel-size"},
      {"-pp", "pipeline-parallel-size"},
      {"-dp", "data-parallel-size"},
      {"-q", "quantization"},
      {"-cc", "compilation-config"},
      {"-ac", "attention-config"},
      {"-asc", "api-server-count"},
      {"-ep", "enable-expert-parallel"},
      {"-n", "nnodes"},
      {"-r", "node-rank"},
      {"-sc", "speculative-config"},
      {"--spec-method", "speculative-config.method"},
      {"--spec-model", "speculative-config.model"},
      {"--spec-tokens", "speculative-config.num_speculative_tokens"},
      {"-O", "optimization-level"}};
  const size_t dot = std::min(argument.find('.'), argument.size());
  for (const auto& [name, full] : kShort) {
    if (argument.substr(0, dot) == name) {
      return std::string(full) + std::string(argument.substr(dot));
    }
  }
  return std::string(argument.starts_with("--") ? argument.substr(2) : std::string_view{});
}

// -O3 is -O=3.
std::string with_equals(const std::string& argument) {
  const bool has_level =
      argument.size() > 2 && argument.starts_with("-O") && argument[2] >= '0' && argument[2] <= '9';
  return has_level ? "-O=" + argument.substr(2) : argument;
}

bool lists(std::string_view values, std::string_view value) {
  while (true) {
    const size_t comma = std::min(values.find(','), values.size());
    if (values.substr(0, comma) == value) return true;
    if (comma == values.size()) return false;
    values.remove_prefix(comma + 1);
  }
}

bool is_flag(std::string_view argument) {
  // A negative number, as in --max-model-len -1, is a value.
  return argument.size() > 1 && argument[0] == '-' && (argument[1] < '0' || argument[1] > '9');
}

std::string joined(const std::vector<std::string>& values) {
  std::string text;
  for (const std::string& value : values) text += (text.empty() ? "" : ",") + value;
  return text;
}

// One flag of the command line with what was given to it.
struct Given {
  std::string name;  // --max-model-len becomes max-model-len
  bool negated = false;
  std::vector<std::string> values;
  Json keys;  // of --name.key VALUE, which are one JSON object together; null: not given so
};

// A value as one JSON text however it is spaced; what is no object stays as it is.
std::string plain_json(const std::string& value) {
  const Json json = Json::parse(value, nullptr, /*allow_exceptions=*/false);
  return json.is_object() ? json.dump() : value;
}

// {"a":{"b":VALUE}} of the keys "a.b"; dashes were underscores. What is no JSON is a string.
Json object_of(std::string_view keys, const std::string& value) {
  const size_t dot = keys.find('.');
  std::string key(keys.substr(0, dot));
  std::ranges::replace(key, '-', '_');
  Json object = Json::object();
  Json& member = object[key];
  if (dot != std::string_view::npos) {
    member = object_of(keys.substr(dot + 1), value);
    return object;
  }
  member = Json::parse(value, nullptr, /*allow_exceptions=*/false);
  if (member.is_discarded()) member = value;
  return object;
}

tl::unexpected<Error> refuse(const Given& given, const std::string& reason) {
  return make_error(ErrorCode::kInvalidArgument, "flag --" + given.name + " " + reason);
}

Expected<void> apply(const Given& given, const FlagRow& row, TranslatedCommandLine& out) {
  const std::string value = joined(given.values);
  switch (row.fate) {
    case Fate::kSame:
    case Fate::kRenamed: {
      const std::string name(row.fate == Fate::kSame ? row.name : row.other);
      if (row.values == Values::kNone) {
        out.arguments.push_back((given.negated ? "--no-" : "--") + name);
        return {};
      }
      // A list is given one by one, so that no value of it is read as two.
      for (const std::string& item : given.values) {
        // Uvicorn's highest level; ours is error.
        const bool is_critical = name == "log-level" && item == "critical";
        out.arguments.push_back("--" + name + "=" + (is_critical ? "error" : item));
      }
      return {};
    }
    case Fate::kIgnored:
      if (row.other.empty() || !lists(row.other, value)) {
        out.warnings.push_back("--" + given.name + " means nothing here and is left out");
      }
      return {};
    case Fate::kNeutral:
      if (row.values == Values::kNone) {
        if (given.negated) return {};
        break;
      }
      if (lists(row.other, plain_json(value))) return {};
      return refuse(given,
                    "must be " +
                        (row.other.empty() ? std::string("empty") : std::string(row.other)) +
                        ", got \"" + value + "\"");
    case Fate::kApart:
    case Fate::kRefused:
      break;
  }
  return refuse(given, "is not supported, and leaving it out could change answers");
}

Expected<Given> take_flag(const std::vector<std::string>& arguments, size_t& at) {
  const std::string argument = with_equals(arguments[at++]);
  const size_t equals = argument.find('=');
  Given given;
  given.name = long_name(std::string_view(argument).substr(0, equals));
  std::string keys;  // --speculative-config.method ngram sets one key of a JSON value
  if (find_flag(given.name) == nullptr) {
    const std::string whole = given.name;
    const size_t dot = whole.find('.');
    if (dot != std::string::npos && find_flag(whole.substr(0, dot)) != nullptr) {
      given.name = whole.substr(0, dot);
      keys = whole.substr(dot + 1);
    } else if (whole.starts_with("no-") && find_flag(whole.substr(3)) != nullptr) {
      given.name = whole.substr(3);
      given.negated = true;
    }
  }
  const FlagRow* row = find_flag(given.name);
  if (row == nullptr) {
    return make_error(ErrorCode::kInvalidArgument,
                      "flag " + argument.substr(0, equals) +
                          " is not supported, and leaving it out could change answers");
  }
  if (equals != std::string::npos) {
    given.values.push_back(argument.substr(equals + 1));
  }
  const size_t most = row->values == Values::kNone  ? 0
                      : row->values == Values::kOne ? 1
                                                    : arguments.size();
  while (equals == std::string::npos && given.values.size() < most && at < arguments.size() &&
         !is_flag(arguments[at])) {
    given.values.push_back(arguments[at++]);
  }
  if (most > 0 && given.values.empty()) return refuse(given, "needs a value");
  if (!keys.empty()) {
    given.keys = object_of(keys, joined(given.values));
    given.values = {given.keys.dump(-1, ' ', false, Json::error_handler_t::replace)};
  }
  return given;
}

// KServe mounts a model as a folder, which may hold one GGUF file, or the parts of one.
Expected<std::string> model_file(const std::string& model) {
  namespace fs = std::filesystem;
  std::error_code error;
  if (!fs::is_directory(model, error) || fs::exists(model + "/config.json", error)) return model;
  std::vector<std::string> files;
  for (fs::directory_iterator entry(model, error), end; !error && entry != end;
       entry.increment(error)) {
    if (entry->path().extension() == ".gguf") files.push_back(entry->path().string());
  }
  std::ranges::sort(files);
  const std::string count = std::to_string(files.size());
  const bool is_split =
      files.size() > 1 && count.size() < 5 &&
      files.front().ends_with("-00001-of-" + std::string(5 - count.size(), '0') + count + ".gguf");
  if (files.size() == 1 || is_split) return files.front();
  return make_error(ErrorCode::kInvalidArgument,
                    model + " must hold exactly one .gguf file, it holds " +
                        std::to_string(files.size()) + (files.empty() ? "" : ": ") + joined(files));
}

// The last of a flag that is given twice counts, as argparse has it, but for lists and the keys of
// one object.
void keep_last(std::vector<Given>& flags, Given given) {
  const auto same = std::ranges::find(flags, given.name, &Given::name);
  if (same != flags.end() && !same->keys.is_null() && !given.keys.is_null()) {
    same->keys.update(given.keys, /*merge_objects=*/true);
    same->values = {same->keys.dump(-1, ' ', false, Json::error_handler_t::replace)};
    return;
  }
  if (find_flag(given.name)->values != Values::kSome) {
    std::erase_if(flags, [&](const Given& earlier) { return earlier.name == given.name; });
  }
  flags.push_back(std::move(given));
}

// The words of `vllm serve`. nullopt: they ask for help.
struct ServeWords {
  std::optional<std::string> model;
  std::vector<Given> flags;
};

Expected<std::optional<ServeWords>> read_serve_words(const std::vector<std::string>& arguments) {
  ServeWords words;
  for (size_t at = 1; at < arguments.size();) {
    if (arguments[at] == "--help" || arguments[at] == "-h") return std::optional<ServeWords>();
    if (is_flag(arguments[at])) {
      SLUICE_TRY(Given given, take_flag(arguments, at));
      keep_last(words.flags, std::move(given));
      continue;
    }
    if (words.model) {
      return make_error(ErrorCode::kInvalidArgument,
                        "unexpected argument \"" + arguments[at] + "\"");
    }
    words.model = arguments[at++];
  }
  return std::optional<ServeWords>(std::move(words));
}

// vLLM's clients ask for the model as the command line has it; `sluice serve` goes by the file's
// name, which stands behind that.
void add_names(const std::string& model, const std::string& file, TranslatedCommandLine& out) {
  namespace fs = std::filesystem;
  out.arguments.push_back("--served-model-name=" + model);
  std::error_code error;
  if (!fs::exists(file, error)) return;  // a name on the hub is complete
  std::string path = file;
  while (path.size() > 1 && path.ends_with('/')) path.pop_back();
  std::string name = fs::path(path).filename().string();
  if (name.ends_with(".gguf")) name.resize(name.size() - 5);
  if (!name.empty() && name != model) out.arguments.push_back("--served-model-name=" + name);
}

Expected<TranslatedCommandLine> translate_serve(const std::vector<std::string>& arguments) {
  TranslatedCommandLine out;
  out.arguments = {"serve"};
  SLUICE_TRY(auto words, read_serve_words(arguments));
  if (!words) {
    out.arguments.emplace_back("--help");
    return out;
  }
  std::optional<std::string> model = std::move(words->model);
  std::string host = "0.0.0.0";  // what vLLM does without the flag, as with the next
  std::string port = "8000";
  bool grpc = false;
  bool has_key = false;
  bool has_name = std::getenv("SLUICE_SERVED_MODEL_NAME") != nullptr;
  const Given* tokenizer = nullptr;
  for (const Given& given : words->flags) {
    if (given.name == "model") {
      model = given.values.front();
      continue;
    }
    if (given.name == "grpc") {
      grpc = !given.negated;
      continue;
    }
    if (given.name == "tokenizer") {
      tokenizer = &given;
      continue;
    }
    if (given.name == "host") host = given.values.front();
    if (given.name == "port") port = given.values.front();
    has_key = has_key || given.name == "api-key";
    has_name = has_name || given.name == "served-model-name";
    SLUICE_TRY_VOID(apply(given, *find_flag(given.name), out));
  }
  if (tokenizer != nullptr && (!model || tokenizer->values.front() != *model)) {
    return refuse(*tokenizer,
                  "must be the model itself, got \"" + tokenizer->values.front() + "\"");
  }
  if (model) {
    SLUICE_TRY(const std::string file, model_file(*model));
    out.arguments.push_back("--model=" + file);
    if (!has_name) add_names(*model, file, out);
  }
  if (grpc) {
    // vLLM then speaks gRPC instead of HTTP; here HTTP, with its metrics, moves out of the way.
    out.arguments.insert(
        out.arguments.end(),
        {"--grpc-host=" + host, "--grpc-port=" + port, "--host=127.0.0.1", "--port=0"});
    out.warnings.emplace_back("--grpc: HTTP listens as well, on a free port of 127.0.0.1");
  } else {
    out.arguments.push_back("--host=" + host);
  }
  // vLLM takes a key from here too.
  const char* key = std::getenv("VLLM_API_KEY");
  if (!has_key && key != nullptr && *key != '\0') {
    out.arguments.push_back(std::string("--api-key=") + key);
  }
  return out;
}

// `vllm bench ...` has our flags, but for these: how vLLM reads the tokenizer and shuffles or
// repeats a data set, all of which the server or our data sets do their own way.
TranslatedCommandLine translate_bench(const std::vector<std::string>& arguments) {
  constexpr std::pair<std::string_view, Values> kIgnored[] = {
      {"--trust-remote-code", Values::kNone},
      {"--tokenizer-mode", Values::kOne},
      {"--request-id-prefix", Values::kOne},
      {"--disable-shuffle", Values::kNone},
      {"--no-oversample", Values::kNone}};
  TranslatedCommandLine out;
  for (size_t at = 0; at < arguments.size(); ++at) {
    const std::string& argument = arguments[at];
    const size_t equals = std::min(argument.find('='), argument.size());
    const std::string name = argument.substr(0, equals);
    const auto* row =
        std::ranges::find(kIgnored, name, &std::pair<std::string_view, Values>::first);
    if (row != std::end(kIgnored)) {
      out.warnings.push_back(name + " means nothing here and is left out");
      if (row->second == Values::kOne && equals == argument.size()) ++at;
    } else if (name == "--endpoint-type") {
      out.arguments.push_back("--backend" + argument.substr(equals));
    } else {
      out.arguments.push_back(argument);
    }
  }
  return out;
}

}  // namespace

Expected<TranslatedCommandLine> translate_vllm(const std::vector<std::string>& arguments) {
  if (arguments.empty()) {
    return make_error(ErrorCode::kInvalidArgument, "needs a command: serve, bench, or --version");
  }
  if (arguments[0] == "--version" || arguments[0] == "-v") {
    return TranslatedCommandLine{{"version", "--short"}, {}};
  }
  if (arguments[0] == "serve") return translate_serve(arguments);
  if (arguments[0] == "bench") return translate_bench(arguments);
  return make_error(
      ErrorCode::kInvalidArgument,
      "offers only \"serve\", \"bench\" and \"--version\", got \"" + arguments[0] + "\"");
}

}  // namespace sluice
