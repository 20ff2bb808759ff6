// SPDX-License-Identifier: Apache-2.0
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <limits>
#include <memory>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/core/suggest.h"
#include "server/cli/bench_flags.h"
#include "server/cli/command.h"
#include "server/cli/command_table.h"
#include "server/cli/command_text.h"
#include "server/cli/help_text.h"
#include "server/cli/joined.h"
#include "server/cli/llama_flags.h"
#include "server/cli/node_settings.h"
#include "server/cli/quantize_flags.h"
#include "server/cli/vllm_command_line.h"

namespace sluice {
namespace {

constexpr int kUsageError = 2;
constexpr const char* kPrecedence =
    "Every knob is also a YAML key (--config FILE) and an environment variable\n"
    "(--max-num-seqs: SLUICE_MAX_NUM_SEQS). Flags win over the environment, that over YAML.\n"
    "Integers take k, m, g (powers of 1000) and K, M, G (powers of 1024).";

struct KnobOption {
  const Knob* knob;
  CLI::Option* option;
};

// One subcommand: its parser and what its flags set besides knobs.
struct Subcommand {
  const CommandRow* row = nullptr;
  CLI::App* app = nullptr;
  CLI::Option* model_argument = nullptr;
  CLI::Option* config_file = nullptr;
  CLI::Option* strict_environment = nullptr;
  std::vector<KnobOption> knobs;
  std::vector<std::pair<const SamplingField*, CLI::Option*>> sampling;
  SamplingParams* sampling_target = nullptr;
};

std::string title_of(const std::string& group) {
  std::string title = group;
  title[0] = static_cast<char>(title[0] - 'a' + 'A');
  return title;
}

std::string value_name(const Knob& knob) {
  if (knob.kind == KnobKind::kChoice) return knob.choices;
  if (knob.kind == KnobKind::kString) return "TEXT";
  if (knob.kind == KnobKind::kStringList) return "TEXT,...";
  if (knob.kind == KnobKind::kLineList) return "TEXT...";
  const std::string number = *knob.unit == '\0' ? "N" : knob.unit;
  return knob.kind == KnobKind::kIntegerList ? number + ",..." : number;
}

void add_knob(Subcommand& sub, const Knob& knob) {
  const std::string name = knob.name;
  const std::string shown = knob.get(Config{});
  const std::string help = std::string(knob.help) + (shown.empty() ? "" : " [" + shown + "]");
  CLI::Option* option = nullptr;
  if (knob.kind == KnobKind::kBoolean) {
    option = sub.app->add_flag("--" + name + "{true},--no-" + name + "{false}")->description(help);
  } else {
    option = sub.app->add_option("--" + name)->description(help)->type_name(value_name(knob));
  }
  option->multi_option_policy(is_list(knob.kind) ? CLI::MultiOptionPolicy::TakeAll
                                                 : CLI::MultiOptionPolicy::TakeLast);
  // What does nothing for the command is taken, so that one YAML file serves all, but not shown.
  option->group(uses_knob(*sub.row, knob) ? title_of(knob.group) : std::string());
  sub.knobs.push_back({&knob, option});
}

void add_knobs(Subcommand& sub) {
  if (!has_knobs(*sub.row)) return;
  if (sub.row->model_argument) {
    sub.model_argument = sub.app->add_option("MODEL")
                             ->description("GGUF file, model directory or org/name")
                             ->type_name("");
  }
  sub.config_file =
      sub.app->add_option("--config")->description("YAML file of knobs")->type_name("FILE");
  sub.strict_environment =
      sub.app->add_flag("--strict-env")
          ->description("Refuse SLUICE_ variables that are no knobs, instead of a warning");
  for (const Knob& knob : config_knobs()) {
    if (has_knob(*sub.row, knob)) add_knob(sub, knob);
  }
  sub.app->footer(kPrecedence);
}

void add_sampling_flags(Subcommand& sub, SamplingParams& sampling, bool has_lengths) {
  sub.sampling_target = &sampling;
  for (const SamplingField& field : sampling_fields()) {
    if (field.name == "seed") continue;  // the knob of that name
    const bool is_length =
        field.name == "max_tokens" || field.name == "min_tokens" || field.name == "ignore_eos";
    if (is_length && !has_lengths) continue;
    std::string name = "--" + std::string(field.name);
    std::replace(name.begin(), name.end(), '_', '-');
    CLI::Option* option =
        field.kind == ParamKind::kBoolean
            ? sub.app->add_flag(name)->description(std::string(field.help))
            : sub.app->add_option(name)->description(std::string(field.help))->type_name("N");
    option->group("Sampling");
    sub.sampling.emplace_back(&field, option);
  }
}

void add_tokenize_flags(CLI::App& app, std::string& model, FileOptions& files) {
  app.add_option("--model", model, "GGUF file with the vocabulary")->required()->type_name("FILE");
  app.add_option("--file", files.file, "Text; - is standard input")->required()->type_name("FILE");
  app.add_flag("--json", files.json, "Print one JSON array of ids");
  app.add_flag("!--no-special", files.special, "Names of special tokens stay text");
}

void add_render_flags(CLI::App& app, FileOptions& files) {
  app.add_option("--template", files.file, "Jinja file")->required()->type_name("FILE");
  app.add_option("--input", files.input, "JSON object of variables; - is standard input")
      ->required()
      ->type_name("FILE");
}

void add_completion_argument(CLI::App& app, std::string& shell) {
  app.add_option("SHELL", shell, "Shell that reads it")
      ->required()
      ->check(CLI::IsMember({"bash", "zsh", "fish"}))
      ->type_name("");
}

void add_fetch_flags(CLI::App& app, Invocation& invocation) {
  app.add_option("--report",
                 invocation.report_file,
                 "Write what the name stands for there, in one line: name, revision, commit")
      ->type_name("FILE");
}

void add_health_flags(CLI::App& app, Invocation& invocation) {
  app.add_option(
         "--url", invocation.url, "Server [http://127.0.0.1:PORT, with SLUICE_PORT or 8000]")
      ->type_name("URL");
}

void add_bench_command_flags(Subcommand& sub, Invocation& invocation) {
  CLI::App& app = *sub.app;
  switch (sub.row->command) {
    case Command::kBench:
      add_bench_flags(app, invocation.bench);
      break;
    case Command::kBenchServe:
      add_bench_serve_flags(app, invocation.bench_serve);
      break;
    case Command::kBenchThroughput:
      add_bench_throughput_flags(app, invocation.bench_offline);
      add_sampling_flags(sub, invocation.bench_offline.sampling, /*has_lengths=*/false);
      break;
    case Command::kBenchLatency:
      add_bench_latency_flags(app, invocation.bench_offline);
      add_sampling_flags(sub, invocation.bench_offline.sampling, /*has_lengths=*/false);
      break;
    case Command::kBenchMock:
      add_bench_mock_flags(app, invocation.bench_mock);
      break;
    case Command::kBenchCompare:
      add_bench_compare_flags(app, invocation.bench_compare);
      break;
    case Command::kBenchKvTransfer:
      add_bench_kv_transfer_flags(app, invocation.bench_kv_transfer);
      break;
    default:
      break;
  }
}

void add_serve_flags(CLI::App& app, Invocation& invocation) {
  app.add_flag("--dry-run",
               invocation.dry_run,
               "Print the memory plan, with drafts also the sizes of steps that are timed as "
               "they run, and exit");
  app.add_flag("--print-config", invocation.print_config, "Print the configuration and exit");
  app.add_option("--dist-init-addr",
                 invocation.dist_init_addr,
                 "--master-addr and --master-port in one, as SGLang has it")
      ->type_name("HOST:PORT");
  app.add_flag("--headless",
               invocation.headless,
               "Refuse to be node 0: this process serves no requests, as those above node 0 never do");
}

void add_own_flags(Subcommand& sub, Invocation& invocation) {
  CLI::App& app = *sub.app;
  switch (sub.row->command) {
    case Command::kServe:
      add_serve_flags(app, invocation);
      break;
    case Command::kRouter:
      app.add_flag("--dry-run", invocation.dry_run, "Say what would be done and exit");
      app.add_flag("--print-config", invocation.print_config, "Print the configuration and exit");
      break;
    case Command::kChat:
      app.add_option("--system", invocation.chat.system, "System message")->type_name("TEXT");
      add_sampling_flags(sub, invocation.chat.sampling, /*has_lengths=*/true);
      break;
    case Command::kBench:
    case Command::kBenchServe:
    case Command::kBenchThroughput:
    case Command::kBenchLatency:
    case Command::kBenchMock:
    case Command::kBenchCompare:
    case Command::kBenchKvTransfer:
      add_bench_command_flags(sub, invocation);
      break;
    case Command::kInspect:
      app.add_flag("--all", invocation.all, "One line for every tensor, whole metadata values");
      break;
    case Command::kQuantize:
      add_quantize_flags(app, invocation.quantize);
      break;
    case Command::kTokenize:
      add_tokenize_flags(app, invocation.config.model, invocation.files);
      break;
    case Command::kFetch:
      add_fetch_flags(app, invocation);
      break;
    case Command::kManual:
    case Command::kRanksCheck:
      break;
    case Command::kRender:
      add_render_flags(app, invocation.files);
      break;
    case Command::kConfig:
      app.add_flag("--markdown", invocation.markdown, "Print the table of all knobs");
      break;
    case Command::kHealth:
      add_health_flags(app, invocation);
      break;
    case Command::kCompletion:
      add_completion_argument(app, invocation.shell);
      break;
    case Command::kVersion:
      app.add_flag("--short", invocation.short_version, "Print the number alone");
      break;
  }
}

// `bench serve` is the command bench-serve; `bench MODEL` stays what it is.
void join_command_words(std::vector<std::string>& arguments) {
  if (arguments.size() < 2) return;
  const std::string joined = arguments[0] + "-" + arguments[1];
  for (const CommandRow& row : command_rows()) {
    if (joined != row.name) continue;
    arguments[0] = joined;
    arguments.erase(arguments.begin() + 1);
    return;
  }
}

// --max_num_seqs means --max-num-seqs; what follows '=' or "--" is left alone.
std::vector<std::string> normalized(int argc, const char* const* argv) {
  std::vector<std::string> arguments;
  bool flags = true;
  for (int i = 1; i < argc; ++i) {
    std::string argument = argv[i];
    if (argument == "--") flags = false;
    if (flags && argument.starts_with("--")) {
      const size_t end = std::min(argument.find('='), argument.size());
      std::replace(argument.begin(), argument.begin() + static_cast<ptrdiff_t>(end), '_', '-');
    }
    arguments.push_back(std::move(argument));
  }
  return arguments;
}

// "--name=" becomes "--name" and an empty argument: the parser would take the next one as its
// value.
void split_empty_values(std::vector<std::string>& arguments) {
  for (size_t i = 0; i < arguments.size() && arguments[i] != "--"; ++i) {
    std::string& argument = arguments[i];
    if (!argument.starts_with("--") || argument.find('=') != argument.size() - 1) continue;
    argument.pop_back();
    arguments.insert(arguments.begin() + static_cast<ptrdiff_t>(i) + 1, std::string());
  }
}

ParsedCommandLine usage_error(const Subcommand* sub, const std::string& message) {
  const std::string command = sub == nullptr ? "sluice" : "sluice " + shown_command(sub->row->name);
  std::fprintf(stderr,
               "%s: %s (%s --help lists what there is)\n",
               command.c_str(),
               message.c_str(),
               command.c_str());
  return {std::nullopt, kUsageError};
}

std::string with_suggestion(const std::string& what,
                            const std::string& name,
                            std::span<const std::string> known) {
  const std::string nearest = nearest_name(name, known);
  return "unknown " + what + " " + name +
         (nearest.empty() ? "" : "; did you mean " + nearest + "?");
}

std::string describe_extras(const Subcommand& sub) {
  const std::vector<std::string> extras = sub.app->remaining(true);
  for (const std::string& extra : extras) {
    if (!extra.starts_with("-")) continue;
    std::vector<std::string> known;
    for (const CLI::Option* option : sub.app->get_options()) {
      for (const std::string& name : option->get_lnames()) known.push_back("--" + name);
    }
    return with_suggestion("flag", extra.substr(0, extra.find('=')), known);
  }
  return "unexpected argument \"" + (extras.empty() ? std::string() : extras.front()) + "\"";
}

const CLI::Option* given_knob(const Subcommand& sub, std::string_view name) {
  for (const KnobOption& entry : sub.knobs) {
    if (entry.knob->name == name && entry.option->count() > 0) return entry.option;
  }
  return nullptr;
}

// Two flags of one command line of which one could only be dropped.
Expected<void> check_conflicts(const Subcommand& sub) {
  const CLI::Option* model = given_knob(sub, "model");
  if (model != nullptr && sub.model_argument != nullptr && sub.model_argument->count() > 0 &&
      model->results().back() != sub.model_argument->results().back()) {
    return make_error(ErrorCode::kInvalidArgument,
                      "MODEL is " + sub.model_argument->results().back() + " and --model is " +
                          model->results().back() + "; give one of the two");
  }
  const CLI::Option* uds = given_knob(sub, "uds");
  if (uds == nullptr || uds->results().back().empty()) return {};
  for (const char* name : {"host", "port"}) {
    if (given_knob(sub, name) == nullptr) continue;
    return make_error(ErrorCode::kInvalidArgument,
                      "--uds and --" + std::string(name) +
                          " exclude each other: the server listens at a file or at a port");
  }
  return {};
}

Expected<void> apply_knobs(const Subcommand& sub, Config& config) {
  if (!has_knobs(*sub.row)) return {};
  SLUICE_TRY_VOID(check_conflicts(sub));
  clear_nodes(config);
  if (sub.config_file->count() > 0) {
    SLUICE_TRY_VOID(apply_yaml(config, sub.config_file->results().back()));
  }
  SLUICE_TRY_VOID(apply_environment(config));
  for (const KnobOption& entry : sub.knobs) {
    if (entry.option->count() == 0) continue;
    const std::vector<std::string>& results = entry.option->results();
    // A shell variable that is not set must not open the server: an empty key is not no key.
    if (entry.knob->kind == KnobKind::kLineList && std::ranges::count(results, "") > 0) {
      return make_error(ErrorCode::kInvalidArgument,
                        "--" + std::string(entry.knob->name) + " is empty; leave it out instead",
                        entry.knob->name);
    }
    const char separator = list_separator(entry.knob->kind);
    const auto applied =
        entry.knob->set(config,
                        *entry.knob,
                        is_list(entry.knob->kind) ? joined(results, separator) : results.back());
    if (!applied) {
      return make_error(applied.error().code, "--" + applied.error().message, entry.knob->name);
    }
  }
  if (sub.model_argument != nullptr && sub.model_argument->count() > 0) {
    config.model = sub.model_argument->results().back();
  }
  return {};
}

// What is not given of a model's nodes, a launcher may have said; a server alone follows one.
Expected<void> apply_nodes(const Subcommand& sub, Invocation& invocation) {
  if (!has_knobs(*sub.row)) return {};
  if (const std::string& both = invocation.dist_init_addr; !both.empty()) {
    for (const char* name : {"master-addr", "master-port"}) {
      const CLI::Option* const other = given_knob(sub, name);
      if (other == nullptr) continue;
      return make_error(ErrorCode::kInvalidArgument,
                        "--dist-init-addr is " + both + " and --" + std::string(name) + " is " +
                            other->results().back() + "; give one of the two");
    }
    SLUICE_TRY_VOID(set_dist_init_addr(invocation.config, both));
  }
  const Command command = sub.row->command;
  const bool has_nodes = command == Command::kServe || command == Command::kRanksCheck;
  SLUICE_TRY(invocation.nodes_source,
             settle_nodes(invocation.config, has_nodes ? process_environment() : Environment()));
  if (!invocation.headless || invocation.config.node_rank > 0) return {};
  return make_error(ErrorCode::kInvalidArgument,
                    "--headless: found on node 0, which answers requests, expected --node-rank "
                    "above 0");
}

Expected<void> apply_sampling(const Subcommand& sub, Invocation& invocation) {
  if (sub.sampling_target == nullptr) return {};
  SamplingParams& sampling = *sub.sampling_target;
  sampling.max_tokens = std::numeric_limits<int32_t>::max();
  for (const auto& [field, option] : sub.sampling) {
    if (option->count() == 0) continue;
    const std::string& text = option->results().back();
    double value = 1;
    if (field->kind != ParamKind::kBoolean && !CLI::detail::lexical_cast(text, value)) {
      return make_error(ErrorCode::kInvalidArgument,
                        option->get_name() + " must be a number, got \"" + text + "\"");
    }
    SLUICE_TRY_VOID(set_sampling_field(sampling, *field, value));
    invocation.chat.given.push_back(field);
  }
  sampling.seed = invocation.config.seed;
  return validate(sampling);
}

Expected<void> finish(const Subcommand& sub, Invocation& invocation) {
  SLUICE_TRY_VOID(apply_knobs(sub, invocation.config));
  SLUICE_TRY_VOID(apply_nodes(sub, invocation));
  if (has_knobs(*sub.row)) invocation.unknown_variables = unknown_environment();
  if (!invocation.unknown_variables.empty() && sub.strict_environment->count() > 0) {
    return make_error(ErrorCode::kInvalidArgument, invocation.unknown_variables.front());
  }
  SLUICE_TRY_VOID(apply_sampling(sub, invocation));
  if (sub.row->model_argument && invocation.config.model.empty() && !invocation.print_config) {
    return make_error(ErrorCode::kInvalidArgument,
                      "needs a model: a path or a name such as org/name as MODEL, --model, "
                      "SLUICE_MODEL or `model` in YAML");
  }
  if (sub.row->command == Command::kRouter && invocation.config.workers.empty() &&
      !invocation.print_config) {
    return make_error(
        ErrorCode::kInvalidArgument,
        "needs workers: --workers host:port,..., SLUICE_WORKERS or `workers` in YAML");
  }
  return {};
}

// The command word is looked at before the parser runs, so that a mistyped one gets a suggestion.
std::optional<ParsedCommandLine> reject_command_word(const std::vector<std::string>& arguments) {
  if (arguments.empty()) return usage_error(nullptr, "needs a command");
  if (arguments[0].starts_with("-")) return std::nullopt;
  std::vector<std::string> names;
  for (const CommandRow& row : command_rows()) names.emplace_back(row.name);
  if (std::find(names.begin(), names.end(), arguments[0]) != names.end()) return std::nullopt;
  return usage_error(nullptr, with_suggestion("command", arguments[0], names));
}

// Whether the program runs under the name vllm, or with it as first word; the word is taken away.
bool take_vllm_name(int argc, const char* const* argv, std::vector<std::string>& arguments) {
  const std::string_view program = argc > 0 ? argv[0] : "";
  if (program.substr(program.rfind('/') + 1) == "vllm") return true;
  if (arguments.empty() || arguments[0] != "vllm") return false;
  arguments.erase(arguments.begin());
  return true;
}

// Replaces arguments written for vLLM by ours; the result to return if they cannot be.
std::optional<ParsedCommandLine> replace_vllm_arguments(std::vector<std::string>& arguments) {
  auto translated = translate_vllm(arguments);
  if (!translated) {
    std::fprintf(stderr, "vllm: %s\n", translated.error().message.c_str());
    return ParsedCommandLine{std::nullopt, kUsageError};
  }
  for (const std::string& warning : translated->warnings) {
    std::fprintf(stderr, "vllm: %s\n", warning.c_str());
  }
  arguments = std::move(translated->arguments);
  return std::nullopt;
}

// All commands, and what their flags are bound to.
struct CommandParser {
  CommandParser();
  CommandParser(const CommandParser&) = delete;
  CommandParser& operator=(const CommandParser&) = delete;

  Invocation invocation;
  CLI::App app{"Sluice serves language models on CPUs and NVIDIA GPUs.", "sluice"};
  std::vector<Subcommand> subcommands;
};

CommandParser::CommandParser() {
  app.formatter(help_formatter());
  // The last value of a repeated flag counts, but lists keep all their values.
  app.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  app.require_subcommand(1);
  app.footer("--version and -V stand for the command version.");
  for (const CommandRow& row : command_rows()) {
    Subcommand sub;
    sub.row = &row;
    sub.app = app.add_subcommand(row.name, row.help);
    add_own_flags(sub, invocation);
    add_knobs(sub);
    subcommands.push_back(std::move(sub));
  }
}

}  // namespace

ParsedCommandLine parse_command_line(int argc, const char* const* argv) {
  std::vector<std::string> arguments = normalized(argc, argv);
  if (take_vllm_name(argc, argv, arguments)) {
    if (auto rejected = replace_vllm_arguments(arguments)) return *rejected;
  }
  if (!arguments.empty() && (arguments[0] == "--version" || arguments[0] == "-V")) {
    arguments[0] = "version";
  }
  join_command_words(arguments);
  if (const auto joined = join_llama_flags(arguments); !joined) {
    return usage_error(nullptr, joined.error().message);
  }
  if (auto rejected = reject_command_word(arguments)) return *rejected;

  CommandParser parser;
  split_empty_values(arguments);
  std::reverse(arguments.begin(), arguments.end());  // the order in which the parser takes them
  const Subcommand* chosen = nullptr;
  const auto find_chosen = [&] {
    for (const Subcommand& sub : parser.subcommands) {
      if (sub.app->parsed()) chosen = &sub;
    }
  };
  try {
    parser.app.parse(arguments);
    find_chosen();
  } catch (const CLI::CallForHelp& help) {
    return {std::nullopt, parser.app.exit(help)};
  } catch (const CLI::ExtrasError& error) {
    find_chosen();
    return usage_error(chosen, chosen != nullptr ? describe_extras(*chosen) : error.what());
  } catch (const CLI::Error& error) {
    find_chosen();
    return usage_error(chosen, error.what());
  }
  if (const auto finished = finish(*chosen, parser.invocation); !finished) {
    return usage_error(chosen, finished.error().message);
  }
  parser.invocation.command = chosen->row->command;
  return {std::move(parser.invocation), 0};
}

std::vector<CommandText> command_texts() {
  const CommandParser parser;
  std::vector<CommandText> texts;
  for (const Subcommand& sub : parser.subcommands) {
    std::vector<const Knob*> knobs;
    for (const KnobOption& entry : sub.knobs) knobs.push_back(entry.knob);
    texts.push_back(describe_command(*sub.app, shown_command(sub.row->name), knobs));
  }
  return texts;
}

}  // namespace sluice
