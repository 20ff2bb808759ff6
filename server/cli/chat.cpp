// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "engine/engine.h"
#include "engine/tokenizer/detokenizer.h"
#include "engine/tokenizer/tokenizer.h"
#include "server/cli/command.h"
#include "server/cli/output_queue.h"
#include "server/prompt/chat_template.h"
#include "server/prompt/prompt.h"

namespace sluice {
namespace {

std::atomic<bool> g_interrupted = false;  // set by the signal handler, which can reach nothing else
static_assert(std::atomic<bool>::is_always_lock_free);

void on_interrupt(int) { g_interrupted = true; }

// Without SA_RESTART: a read of the terminal ends at Ctrl-C.
void catch_interrupts() {
  struct sigaction action = {};
  action.sa_handler = on_interrupt;
  sigaction(SIGINT, &action, nullptr);
}

// One line without its newline; nothing at the end of the input or at Ctrl-C.
std::optional<std::string> read_line() {
  char* buffer = nullptr;
  size_t capacity = 0;
  const ssize_t length = getline(&buffer, &capacity, stdin);
  const std::unique_ptr<char, void (*)(void*)> owner(buffer, std::free);
  if (length < 0) return std::nullopt;
  std::string line(buffer, static_cast<size_t>(length));
  while (!line.empty() && (line.back() == '\n' || line.back() == '\r')) line.pop_back();
  return line;
}

class Conversation {
 public:
  Conversation(Engine& engine, const ChatTemplate& chat_template, const ChatOptions& options)
      : engine_(engine), template_(chat_template), options_(options) {
    clear();
  }

  void clear() {
    messages_ = nlohmann::ordered_json::array();
    if (!options_.system.empty()) {
      messages_.push_back({{"role", "system"}, {"content", options_.system}});
    }
  }

  // Streams the answer to stdout and remembers it. After an error the question is forgotten.
  Expected<void> ask(const std::string& question) {
    messages_.push_back({{"role", "user"}, {"content", question}});
    const Expected<std::string> answer = generate();
    if (!answer) {
      messages_.erase(messages_.size() - 1);
      return tl::unexpected(answer.error());
    }
    messages_.push_back({{"role", "assistant"}, {"content", *answer}});
    return {};
  }

 private:
  Expected<std::vector<TokenId>> encode_messages() const {
    const Tokenizer& tokenizer = engine_.tokenizer();
    nlohmann::ordered_json messages = messages_;
    nlohmann::ordered_json variables = {{"messages", nullptr},
                                        {"tools", nullptr},
                                        {"documents", nullptr},
                                        {"add_generation_prompt", true}};
    add_special_token_names(tokenizer, variables);
    const auto render = [&](nlohmann::ordered_json fitted) {
      variables["messages"] = std::move(fitted);
      return template_.render_text(variables);
    };
    fit_messages(forms_of_request(template_.forms(), messages, render), messages);
    variables["messages"] = std::move(messages);
    SLUICE_TRY(const auto spans, template_.render(variables));
    std::vector<TokenId> ids;
    encode_spans(tokenizer, spans, ids);
    return ids;
  }

  // The model's defaults, then the flags.
  [[nodiscard]] Expected<SamplingParams> sampling() const {
    SamplingParams params = engine_.model().sampling;
    for (const SamplingField* field : options_.given) {
      SLUICE_TRY_VOID(set_sampling_field(params, *field, field->get(options_.sampling)));
    }
    params.seed = options_.sampling.seed;
    return params;
  }

  Expected<std::string> generate() {
    SLUICE_TRY(std::vector<TokenId> ids, encode_messages());
    const int64_t room = engine_.model().max_model_len - static_cast<int64_t>(ids.size());
    if (room < 1) {
      return make_error(
          ErrorCode::kInvalidArgument,
          "the conversation has " + std::to_string(ids.size()) + " tokens and the context " +
              std::to_string(engine_.model().max_model_len) + "; /clear starts a new one");
    }
    ValidRequest request;
    SLUICE_TRY(request.sampling, sampling());
    request.sampling.max_tokens =
        static_cast<int32_t>(std::min<int64_t>(room, options_.sampling.max_tokens));
    request.sampling.min_tokens =
        std::min(request.sampling.min_tokens, request.sampling.max_tokens);
    request.prompt = std::move(ids);
    request.arrival = std::chrono::steady_clock::now();
    SLUICE_TRY(const RequestId id, engine_.submit(std::move(request), outputs_));
    return stream_answer(id);
  }

  // Every accepted request ends with exactly one finish reason, so the loop ends too.
  Expected<std::string> stream_answer(RequestId id) {
    Detokenizer detokenizer(engine_.tokenizer(), StopConfig{}, /*skip_special_tokens=*/true);
    std::string answer;
    const auto show = [&answer](const std::string& text) {
      answer += text;
      std::fwrite(text.data(), 1, text.size(), stdout);
      std::fflush(stdout);
    };
    for (;;) {
      if (g_interrupted.exchange(false)) engine_.abort(id);
      const auto next = outputs_.pop(std::chrono::milliseconds(50));
      if (!next) continue;
      const TokenOutput& output = next->output;
      if (output.token != kInvalidToken) show(detokenizer.append(output.token).text);
      if (output.finish_reason == FinishReason::kNone) continue;
      show(detokenizer.finish());
      std::fputc('\n', stdout);
      if (output.finish_reason == FinishReason::kError) {
        return make_error(ErrorCode::kInternal, output.error);
      }
      return answer;
    }
  }

  Engine& engine_;
  const ChatTemplate& template_;
  const ChatOptions& options_;
  nlohmann::ordered_json messages_;
  OutputQueue outputs_;
};

Expected<ChatTemplate> compile_template(const Config& config, const ModelInfo& model) {
  if (!config.chat_template.empty()) {
    const std::string& given = config.chat_template;
    if (is_template_source(given)) return ChatTemplate::compile(given);
    SLUICE_TRY(const std::string source, read_text_file(given));
    return ChatTemplate::compile(source);
  }
  if (model.chat_template.empty()) {
    return make_error(ErrorCode::kInvalidArgument,
                      model.path + " has no chat template; give one with --chat-template FILE");
  }
  return ChatTemplate::compile(model.chat_template);
}

Expected<void> converse(Conversation& conversation, bool interactive) {
  for (;;) {
    if (interactive) {
      std::fputs("> ", stdout);
      std::fflush(stdout);
    }
    const auto line = read_line();
    if (!line || *line == "/quit") break;
    if (line->empty()) continue;
    if (*line == "/clear") {
      conversation.clear();
      continue;
    }
    const Expected<void> answered = conversation.ask(*line);
    if (answered) continue;
    if (!interactive) return answered;
    std::fprintf(stderr, "(%s)\n", answered.error().message.c_str());
  }
  if (interactive) std::fputc('\n', stdout);
  return {};
}

}  // namespace

Expected<void> run_chat(const Invocation& invocation) {
  SLUICE_TRY(const auto engine, create_engine(invocation.config));
  SLUICE_TRY(const ChatTemplate chat_template,
             compile_template(invocation.config, engine->model()));
  const bool interactive = isatty(STDIN_FILENO) != 0;
  if (interactive) {
    std::puts("Ctrl-C stops an answer, /clear forgets the conversation, /quit leaves.");
  }
  catch_interrupts();
  Conversation conversation(*engine, chat_template, invocation.chat);
  const Expected<void> done = converse(conversation, interactive);
  engine->stop();  // before the conversation, which is its sink, goes
  return done;
}

}  // namespace sluice
