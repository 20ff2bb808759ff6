// SPDX-License-Identifier: Apache-2.0
#include <sys/ioctl.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <set>
#include <string>

#include "engine/engine.h"
#include "server/cli/chat_line.h"
#include "server/cli/command.h"
#include "server/cli/conversation.h"
#include "server/cli/line_editor.h"
#include "server/cli/word_wrap.h"
#include "server/prompt/chat_template.h"

namespace sluice {
namespace {

std::atomic<bool> g_interrupted = false;  // set by the signal handler, which can reach nothing else
static_assert(std::atomic<bool>::is_always_lock_free);

void on_interrupt(int) { g_interrupted = true; }

// Without SA_RESTART: a read ends at Ctrl-C.
void catch_interrupts() {
  struct sigaction action = {};
  action.sa_handler = on_interrupt;
  sigaction(SIGINT, &action, nullptr);
}

Expected<ChatTemplate> compile_template(const Config& config, const ModelInfo& model) {
  if (!config.chat_template.empty()) {
    SLUICE_TRY(const std::string source, read_template_source(config.chat_template));
    return ChatTemplate::compile(source);
  }
  const std::string built_in = built_in_template(model.architecture);
  if (model.chat_template.empty() && !built_in.empty()) return ChatTemplate::compile(built_in);
  if (model.chat_template.empty()) {
    return make_error(ErrorCode::kInvalidArgument,
                      model.path + " has no chat template; give one with --chat-template FILE");
  }
  return ChatTemplate::compile(model.chat_template);
}

// The model's defaults, or those of chats, then the flags.
Expected<SamplingParams> first_sampling(const ModelInfo& model, const ChatOptions& options) {
  SamplingParams params = chat_defaults(model.sampling);
  for (const SamplingField* field : options.given) {
    SLUICE_TRY_VOID(set_sampling_field(params, *field, field->get(options.sampling)));
  }
  params.seed = options.sampling.seed;
  params.max_tokens = options.sampling.max_tokens;
  return params;
}

// Files get an answer as it is.
void show(std::string_view text) {
  static const bool is_terminal = isatty(STDOUT_FILENO) == 1;
  const std::string shown = is_terminal ? shown_on_terminal(text) : std::string(text);
  std::fwrite(shown.data(), 1, shown.size(), stdout);
  std::fflush(stdout);
}

size_t terminal_columns() {
  winsize size = {};
  return ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 ? size.ws_col : 0;
}

class ChatSession {
 public:
  ChatSession(Conversation& conversation, LineEditor& editor)
      : conversation_(conversation), editor_(editor), is_interactive_(editor.is_interactive()) {}

  // Runs until the input ends. A person is shown errors; a script ends at the first one.
  Expected<void> run() {
    if (is_interactive_) std::puts("/help lists the commands; Ctrl-C stops an answer.");
    for (;;) {
      const LineEditor::Line line = editor_.read("> ");
      if (line.end == LineEditor::End::kInput) break;
      if (line.end == LineEditor::End::kInterrupted) {
        if (is_interactive_) continue;
        break;
      }
      if (line.text.empty()) continue;
      const ChatLine parsed =
          line.is_block ? ChatLine{ChatCommand::kText, line.text} : parse_chat_line(line.text);
      if (parsed.command == ChatCommand::kQuit) return {};
      const Expected<void> done = obey(parsed);
      if (done) continue;
      if (!is_interactive_) return done;
      std::fflush(stdout);
      std::fprintf(stderr, "(%s)\n", done.error().message.c_str());
    }
    if (is_interactive_) std::fputc('\n', stdout);
    return {};
  }

 private:
  Expected<void> obey(const ChatLine& line) {
    switch (line.command) {
      case ChatCommand::kText:
        return answer([&](const auto& shown) { return conversation_.ask(line.argument, shown); });
      case ChatCommand::kRegenerate:
        return answer([&](const auto& shown) { return conversation_.ask_again(shown); });
      case ChatCommand::kHelp:
        show(chat_help());
        return {};
      case ChatCommand::kSystem:
        return system(line.argument);
      case ChatCommand::kSet:
        if (line.argument.empty()) {
          show(describe_sampling(conversation_.sampling()) + "\n");
          return {};
        }
        return set_by_text(conversation_.sampling(), line.argument);
      case ChatCommand::kSave:
        return save(line.argument);
      case ChatCommand::kClear:
        conversation_.clear();
        return {};
      case ChatCommand::kQuit:
        return {};
      case ChatCommand::kUnknown:
        break;
    }
    return make_error(ErrorCode::kInvalidArgument,
                      "there is no command /" + line.argument + "; /help lists them");
  }

  Expected<void> answer(const auto& ask) {
    WordWrap lines(is_interactive_ ? terminal_columns() : 0, show);
    const Expected<AnswerFigures> answered =
        ask([&lines](std::string_view piece) { lines.add(piece); });
    lines.finish();
    return report(answered);
  }

  Expected<void> report(const Expected<AnswerFigures>& answered) {
    show("\n");
    if (!answered) return tl::unexpected(answered.error());
    if (!is_interactive_) return {};
    std::string text = std::to_string(answered->num_tokens) + " tokens";
    char part[64];
    if (answered->num_tokens > 0) {
      std::snprintf(part, sizeof part, ", the first after %.2f s", answered->first_s);
      text += part;
    }
    if (answered->rate > 0) {
      std::snprintf(part, sizeof part, ", %.1f tokens/s", answered->rate);
      text += part;
    }
    if (answered->was_stopped) text += ", stopped";
    if (answered->was_cut) text += ", cut at the most tokens";
    std::printf("\033[2m(%s)\033[0m\n", text.c_str());
    std::fflush(stdout);
    return {};
  }

  Expected<void> system(const std::string& text) {
    if (!text.empty()) {
      conversation_.set_system(text == "-" ? std::string() : text);
      return {};
    }
    const std::string& now = conversation_.system();
    show(now.empty() ? "(no system prompt)\n" : now + "\n");
    return {};
  }

  // Writes over what it wrote itself, and over no other file.
  Expected<void> save(const std::string& path) {
    if (path.empty()) return make_error(ErrorCode::kInvalidArgument, "/save needs a file's name");
    std::error_code error;
    if (!saved_.contains(path) && std::filesystem::exists(path, error)) {
      return make_error(ErrorCode::kInvalidArgument, path + " is there already");
    }
    SLUICE_TRY_VOID(write_text_file(path, conversation_.messages_json()));
    saved_.insert(path);
    return {};
  }

  Conversation& conversation_;
  LineEditor& editor_;
  const bool is_interactive_;
  std::set<std::string> saved_;
};

}  // namespace

Expected<void> run_chat(const Invocation& invocation) {
  SLUICE_TRY(const auto engine, create_engine(invocation.config));
  SLUICE_TRY(const ChatTemplate chat_template,
             compile_template(invocation.config, engine->model()));
  SLUICE_TRY(SamplingParams sampling, first_sampling(engine->model(), invocation.chat));
  catch_interrupts();
  LineEditor editor(g_interrupted);
  Conversation conversation(
      *engine, chat_template, std::move(sampling), invocation.chat.system, g_interrupted);
  const Expected<void> done = ChatSession(conversation, editor).run();
  engine->stop();  // before the conversation, which is its sink, is destroyed
  return done;
}

}  // namespace sluice
