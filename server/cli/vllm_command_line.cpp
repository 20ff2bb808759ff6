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

#include "server/cli/joined.h"
#include "server/cli/vllm_flags.h"
#include "server/cli/vllm_model.h"

namespace sluice {
namespace {

using Json = nlohmann::ordered_json;

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

// One flag of the command line with what was given to it.
struct Given {
  std::string name;  // --max-model-len becomes max-model-len
  bool negated = false;
  std::vector<std::string> values;
  Json keys;  // of --name.key VALUE, which are one JSON object together; null: not given so
};

// An object as JSON text without spaces; other values unchanged.
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
  const std::string value = joined(given.values, ',');
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
    const std::string nearest = nearest_flag(given.name.substr(0, given.name.find('.')));
    if (!nearest.empty()) {
      return make_error(ErrorCode::kInvalidArgument,
                        "flag " + argument.substr(0, equals) + " is unknown; did you mean --" +
                            nearest + "?");
    }
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
    given.keys = object_of(keys, joined(given.values, ','));
    given.values = {given.keys.dump(-1, ' ', false, Json::error_handler_t::replace)};
  }
  return given;
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

// The words after `vllm serve`. nullopt: they ask for help.
struct ServeWords {
  std::optional<std::string> model;
  std::vector<Given> flags;
};

Expected<std::optional<ServeWords>> read_serve_words(const std::vector<std::string>& arguments) {
  ServeWords words;
  for (size_t at = 0; at < arguments.size();) {
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

// Clients of vLLM name the model as on the command line; the default name of `sluice serve`, from
// the file's name, is added second.
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

// What a file of --config says and the command line does not.
Expected<void> add_config_file(ServeWords& words) {
  const auto file = std::ranges::find(words.flags, "config", &Given::name);
  if (file == words.flags.end()) return {};
  SLUICE_TRY(const auto lines, vllm_config_words(file->values.front()));
  words.flags.erase(file);
  SLUICE_TRY(auto more, read_serve_words(lines));
  if (!more) return {};
  if (!words.model) words.model = std::move(more->model);
  const std::vector<Given> own = words.flags;
  for (Given& given : more->flags) {
    if (given.name == "config") return refuse(given, "names another file in a file");
    const bool is_over = std::ranges::find(own, given.name, &Given::name) != own.end();
    if (!is_over) words.flags.push_back(std::move(given));
  }
  return {};
}

// The flags whose values are judged by the model.
struct ModelFlags {
  std::optional<std::string> model;
  const Given* tokenizer = nullptr;
  const Given* dtype = nullptr;
  const Given* quantization = nullptr;
  const Given* tokenizer_mode = nullptr;
};

Expected<void> check_model_flags(const ModelFlags& flags, TranslatedCommandLine& out) {
  const auto value = [](const Given& given) { return given.values.front(); };
  if (flags.dtype != nullptr && value(*flags.dtype) != "auto") {
    if (!lists("bfloat16,half,float16", value(*flags.dtype))) {
      return refuse(*flags.dtype,
                    "must be auto, bfloat16, half or float16, got \"" + value(*flags.dtype) + "\"");
    }
    out.warnings.push_back("--dtype " + value(*flags.dtype) +
                           ": weights stay as the model has them, and what computes decides on the "
                           "arithmetic");
  }
  if (flags.tokenizer != nullptr &&
      (!flags.model || !is_tokenizer_of(value(*flags.tokenizer), *flags.model))) {
    return refuse(*flags.tokenizer,
                  "must be the model itself, got \"" + value(*flags.tokenizer) + "\"");
  }
  if (flags.quantization == nullptr || !flags.model) return {};
  const std::string scheme = value(*flags.quantization);
  const std::optional<std::string> own = quantization_of(*flags.model);
  if (!own) {
    out.warnings.push_back("--quantization " + scheme +
                           " is left out: the model's own files say how it is quantized");
  } else if (!is_quantization(scheme, *own)) {
    return refuse(*flags.quantization,
                  "must be the model's own, which is " + (own->empty() ? "none" : *own) +
                      ", got \"" + scheme + "\"");
  }
  return {};
}

// How a prompt is written: by a chat template, or by what DeepSeek V3.2 has in the place of one,
// whatever template is given beside it. Mistral's models without a template have one by the version
// of their tekken.json.
Expected<void> apply_tokenizer_mode(const Given& given, TranslatedCommandLine& out) {
  constexpr std::string_view kDeepseek = "deepseek_v32";
  const std::string& mode = given.values.front();
  if (lists("auto,hf", mode)) return {};
  if (mode == "mistral") {
    out.warnings.push_back(
        "--tokenizer-mode mistral is left out: chats follow the model's chat template, or without "
        "one its tekken.json's version");
    return {};
  }
  if (mode != kDeepseek) {
    return refuse(given, "must be auto, hf, mistral or deepseek_v32, got \"" + mode + "\"");
  }
  std::erase_if(out.arguments, [](const std::string& argument) {
    return argument.starts_with("--chat-template=");
  });
  out.arguments.push_back("--chat-template=" + std::string(kDeepseek));
  return {};
}

struct ListenFlags {
  std::string host = "0.0.0.0";     // what vLLM does without the flag
  std::optional<std::string> port;  // none: 8000 for gRPC, else ours
  bool grpc = false;
  bool uds = false;
};

void add_listeners(const ListenFlags& listen, TranslatedCommandLine& out) {
  if (listen.grpc) {
    // vLLM then speaks gRPC instead of HTTP; here HTTP, with its metrics, moves out of the way.
    out.arguments.insert(out.arguments.end(),
                         {"--grpc-host=" + listen.host,
                          "--grpc-port=" + listen.port.value_or("8000"),
                          "--host=127.0.0.1",
                          "--port=0"});
    out.warnings.emplace_back("--grpc: HTTP listens as well, on a free port of 127.0.0.1");
  } else if (!listen.uds) {  // beside which vLLM takes host and port, and leaves them alone
    out.arguments.push_back("--host=" + listen.host);
    if (listen.port) out.arguments.push_back("--port=" + *listen.port);
  }
}

Expected<TranslatedCommandLine> translate_serve(const std::vector<std::string>& arguments) {
  TranslatedCommandLine out;
  out.arguments = {"serve"};
  SLUICE_TRY(auto words, read_serve_words({arguments.begin() + 1, arguments.end()}));
  if (!words) {
    out.arguments.emplace_back("--help");
    return out;
  }
  SLUICE_TRY_VOID(add_config_file(*words));
  ModelFlags of_model{.model = std::move(words->model)};
  ListenFlags listen;
  bool has_key = false;
  bool has_name = std::getenv("SLUICE_SERVED_MODEL_NAME") != nullptr;
  for (const Given& given : words->flags) {
    has_key = has_key || given.name == "api-key";
    has_name = has_name || given.name == "served-model-name";
    listen.uds = listen.uds || given.name == "uds";
    if (given.name == "model") {
      of_model.model = given.values.front();
    } else if (given.name == "grpc") {
      listen.grpc = !given.negated;
    } else if (given.name == "tokenizer") {
      of_model.tokenizer = &given;
    } else if (given.name == "tokenizer-mode") {
      of_model.tokenizer_mode = &given;
    } else if (given.name == "dtype") {
      of_model.dtype = &given;
    } else if (given.name == "quantization") {
      of_model.quantization = &given;
    } else if (given.name == "rope-scaling") {
      out.arguments.push_back("--rope-scaling=" + given.values.front());
    } else if (given.name == "rope-theta") {
      out.arguments.push_back("--rope-freq-base=" + given.values.front());
    } else if (given.name == "host") {
      listen.host = given.values.front();
    } else if (given.name == "port") {
      listen.port = given.values.front();
    } else {
      SLUICE_TRY_VOID(apply(given, *find_flag(given.name), out));
    }
  }
  SLUICE_TRY_VOID(check_model_flags(of_model, out));
  if (of_model.tokenizer_mode != nullptr) {
    SLUICE_TRY_VOID(apply_tokenizer_mode(*of_model.tokenizer_mode, out));
  }
  if (of_model.model) {
    SLUICE_TRY(const std::string file, vllm_model_file(*of_model.model));
    out.arguments.push_back("--model=" + file);
    if (!has_name) add_names(*of_model.model, file, out);
  }
  add_listeners(listen, out);
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
