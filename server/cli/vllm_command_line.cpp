// SPDX-License-Identifier: Apache-2.0
#include "server/cli/vllm_command_line.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <string_view>
#include <system_error>

namespace sluice {
namespace {

enum class Fate : uint8_t {
  kSame,     // a knob of the same name and meaning
  kRenamed,  // a knob under another name
  kIgnored,  // cannot change an answer: a warning, unless the value is `neutral`
  kNeutral,  // an error unless the value is one of `neutral`
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
    {"max-model-len", Values::kOne, Fate::kSame},
    {"max-num-seqs", Values::kOne, Fate::kSame},
    {"tensor-parallel-size", Values::kOne, Fate::kSame},
    {"max-num-batched-tokens", Values::kOne, Fate::kSame},
    {"max-logprobs", Values::kOne, Fate::kSame},
    {"max-num-partial-prefills", Values::kOne, Fate::kSame},
    {"max-num-queued-reqs", Values::kOne, Fate::kSame},
    {"max-num-queued-tokens", Values::kOne, Fate::kSame},
    {"block-size", Values::kOne, Fate::kSame},
    {"seed", Values::kOne, Fate::kSame},
    {"kv-cache-dtype", Values::kOne, Fate::kSame},
    {"enable-prefix-caching", Values::kNone, Fate::kSame},
    {"kv-events-config", Values::kOne, Fate::kSame},
    {"kv-cache-memory-bytes", Values::kOne, Fate::kRenamed, "kv-cache-memory"},
    {"shutdown-timeout", Values::kOne, Fate::kRenamed, "drain-timeout-s"},
    {"uvicorn-log-level", Values::kOne, Fate::kRenamed, "log-level"},

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
    {"attention-backend", Values::kOne, Fate::kIgnored},
    {"async-scheduling", Values::kNone, Fate::kIgnored},
    {"enable-chunked-prefill", Values::kNone, Fate::kIgnored},
    {"max-seq-len-to-capture", Values::kOne, Fate::kIgnored},
    {"stream-interval", Values::kOne, Fate::kIgnored, "1"},
    {"disable-hybrid-kv-cache-manager", Values::kNone, Fate::kIgnored},
    {"disable-custom-all-reduce", Values::kNone, Fate::kIgnored},
    {"distributed-executor-backend", Values::kOne, Fate::kIgnored},
    {"api-server-count", Values::kOne, Fate::kIgnored},
    {"speculative-config", Values::kOne, Fate::kIgnored},
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
    {"otlp-traces-endpoint", Values::kOne, Fate::kIgnored},
    {"collect-detailed-traces", Values::kSome, Fate::kIgnored},
    {"show-hidden-metrics-for-version", Values::kOne, Fate::kIgnored},
    {"enable-request-id-headers", Values::kNone, Fate::kIgnored},
    {"enable-prompt-tokens-details", Values::kNone, Fate::kIgnored},
    {"enable-server-load-tracking", Values::kNone, Fate::kIgnored},
    {"enable-ssl-refresh", Values::kNone, Fate::kIgnored},
    {"disable-fastapi-docs", Values::kNone, Fate::kIgnored},
    {"h11-max-incomplete-event-size", Values::kOne, Fate::kIgnored},

    // What is so here anyway, and not otherwise.
    {"dtype", Values::kOne, Fate::kNeutral, "auto"},
    {"quantization", Values::kOne, Fate::kNeutral, "gguf"},
    {"tokenizer-mode", Values::kOne, Fate::kNeutral, "auto"},
    {"config-format", Values::kOne, Fate::kNeutral, "auto"},
    {"scheduling-policy", Values::kOne, Fate::kNeutral, "fcfs,priority"},
    {"pipeline-parallel-size", Values::kOne, Fate::kNeutral, "1"},
    {"data-parallel-size", Values::kOne, Fate::kNeutral, "1"},
    {"nnodes", Values::kOne, Fate::kNeutral, "1"},
    {"node-rank", Values::kOne, Fate::kNeutral, "0"},
    {"chat-template-content-format", Values::kOne, Fate::kNeutral, "auto"},
    {"response-role", Values::kOne, Fate::kNeutral, "assistant"},
    {"root-path", Values::kOne, Fate::kNeutral, ""},
};
// clang-format on

const FlagRow* find_flag(std::string_view name) {
  const auto* row = std::ranges::find(kFlags, name, &FlagRow::name);
  return row == std::end(kFlags) ? nullptr : row;
}

std::string_view long_name(std::string_view argument) {
  if (argument == "-tp") return "tensor-parallel-size";
  if (argument == "-pp") return "pipeline-parallel-size";
  if (argument == "-dp") return "data-parallel-size";
  if (argument == "-q") return "quantization";
  return argument.starts_with("--") ? argument.substr(2) : std::string_view{};
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
};

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
        out.arguments.push_back("--" + name + "=" + item);
      }
      return {};
    }
    case Fate::kIgnored:
      if (row.other.empty() || !lists(row.other, value)) {
        out.warnings.push_back("--" + given.name + " means nothing here and is left out");
      }
      return {};
    case Fate::kNeutral:
      if (lists(row.other, value)) return {};
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
  const std::string& argument = arguments[at++];
  const size_t equals = argument.find('=');
  Given given;
  given.name = long_name(std::string_view(argument).substr(0, equals));
  // --speculative-config.method ngram sets one key of a JSON value.
  if (find_flag(given.name) == nullptr) {
    const std::string_view whole(given.name);
    const FlagRow* parent = find_flag(whole.substr(0, whole.find('.')));
    if (parent != nullptr && whole.find('.') != std::string_view::npos) {
      given.name = parent->name;
    } else if (whole.starts_with("no-") && find_flag(whole.substr(3)) != nullptr) {
      given.name = std::string(whole.substr(3));
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
    return given;
  }
  const size_t most = row->values == Values::kNone  ? 0
                      : row->values == Values::kOne ? 1
                                                    : arguments.size();
  while (given.values.size() < most && at < arguments.size() && !is_flag(arguments[at])) {
    given.values.push_back(arguments[at++]);
  }
  if (most > 0 && given.values.empty()) return refuse(given, "needs a value");
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

// Of a flag that is given twice the last counts, as argparse has it, but for lists.
void keep_last(std::vector<Given>& flags, Given given) {
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
  for (const Given& given : words->flags) {
    if (given.name == "model") {
      model = given.values.front();
      continue;
    }
    if (given.name == "grpc") {
      grpc = !given.negated;
      continue;
    }
    if (given.name == "host") host = given.values.front();
    if (given.name == "port") port = given.values.front();
    has_key = has_key || given.name == "api-key";
    SLUICE_TRY_VOID(apply(given, *find_flag(given.name), out));
  }
  if (model) {
    SLUICE_TRY(const std::string file, model_file(*model));
    out.arguments.push_back("--model=" + file);
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

}  // namespace

Expected<TranslatedCommandLine> translate_vllm(const std::vector<std::string>& arguments) {
  if (arguments.empty()) {
    return make_error(ErrorCode::kInvalidArgument, "needs a command: serve, bench, or --version");
  }
  if (arguments[0] == "--version" || arguments[0] == "-v") {
    return TranslatedCommandLine{{"version", "--short"}, {}};
  }
  if (arguments[0] == "serve") return translate_serve(arguments);
  if (arguments[0] == "bench") return TranslatedCommandLine{arguments, {}};  // the same flags
  return make_error(
      ErrorCode::kInvalidArgument,
      "offers only \"serve\", \"bench\" and \"--version\", got \"" + arguments[0] + "\"");
}

}  // namespace sluice
