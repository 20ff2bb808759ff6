// SPDX-License-Identifier: Apache-2.0
#include "server/cli/conversation.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "engine/tokenizer/detokenizer.h"
#include "engine/tokenizer/tokenizer.h"
#include "server/prompt/prompt.h"

namespace sluice {
namespace {

using Json = nlohmann::ordered_json;

Json as_json(const auto& messages) {
  Json array = Json::array();
  for (const auto& message : messages) {
    array.push_back({{"role", message.role}, {"content", message.content}});
  }
  return array;
}

}  // namespace

Conversation::Conversation(Engine& engine,
                           const ChatTemplate& chat_template,
                           SamplingParams sampling,
                           std::string system,
                           std::atomic<bool>& interrupted)
    : engine_(engine),
      template_(chat_template),
      sampling_(std::move(sampling)),
      system_(std::move(system)),
      interrupted_(interrupted) {}

std::vector<Conversation::Message> Conversation::messages() const {
  std::vector<Message> messages;
  if (!system_.empty()) messages.push_back({"system", system_});
  messages.insert(messages.end(), turns_.begin(), turns_.end());
  return messages;
}

std::string Conversation::messages_json() const {
  return as_json(messages()).dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

Expected<AnswerFigures> Conversation::ask(const std::string& question, const Show& show) {
  num_retries_ = 0;
  turns_.push_back({"user", question});
  Expected<AnswerFigures> figures = answer(show);
  if (!figures) turns_.pop_back();
  return figures;
}

Expected<AnswerFigures> Conversation::ask_again(const Show& show) {
  if (turns_.empty()) {
    return make_error(ErrorCode::kInvalidArgument, "there is no question to answer again");
  }
  const Message last = std::move(turns_.back());
  turns_.pop_back();
  ++num_retries_;
  Expected<AnswerFigures> figures = answer(show);
  if (!figures) turns_.push_back(last);
  return figures;
}

Expected<std::vector<TokenId>> Conversation::encode_messages() const {
  const Tokenizer& tokenizer = engine_.tokenizer();
  Json fitted = as_json(messages());
  Json variables = {{"messages", nullptr},
                    {"tools", nullptr},
                    {"documents", nullptr},
                    {"add_generation_prompt", true}};
  add_special_token_names(tokenizer, variables);
  const auto render = [&](Json candidate) {
    variables["messages"] = std::move(candidate);
    return template_.render_text(variables);
  };
  fit_messages(forms_of_request(template_.forms(), fitted, render), fitted);
  variables["messages"] = std::move(fitted);
  SLUICE_TRY(const auto spans, template_.render(variables));
  std::vector<TokenId> ids;
  SLUICE_TRY_VOID(encode_spans(tokenizer, spans, ids));
  return ids;
}

Expected<AnswerFigures> Conversation::answer(const Show& show) {
  SLUICE_TRY(std::vector<TokenId> ids, encode_messages());
  const int64_t room = engine_.model().max_model_len - static_cast<int64_t>(ids.size());
  if (room < 1) {
    return make_error(ErrorCode::kInvalidArgument,
                      "the conversation has " + std::to_string(ids.size()) +
                          " tokens and the context " +
                          std::to_string(engine_.model().max_model_len) +
                          "; /clear starts a new one");
  }
  ValidRequest request;
  request.sampling = sampling_;
  request.sampling.seed = sampling_.seed + num_retries_;
  request.sampling.max_tokens = static_cast<int32_t>(std::min<int64_t>(room, sampling_.max_tokens));
  request.sampling.min_tokens = std::min(sampling_.min_tokens, request.sampling.max_tokens);
  request.prompt = std::move(ids);
  const auto submitted = request.arrival = std::chrono::steady_clock::now();
  SLUICE_TRY(const RequestId id, engine_.submit(std::move(request), outputs_));
  std::string text;
  SLUICE_TRY(const AnswerFigures figures, stream(id, submitted, show, text));
  turns_.push_back({"assistant", std::move(text)});
  return figures;
}

// Every accepted request ends with exactly one finish reason, so the loop ends too.
Expected<AnswerFigures> Conversation::stream(RequestId id,
                                             std::chrono::steady_clock::time_point submitted,
                                             const Show& show,
                                             std::string& text) {
  Detokenizer detokenizer(engine_.tokenizer(), StopConfig{}, /*skip_special_tokens=*/true);
  AnswerFigures figures;
  auto first = submitted;
  auto last = submitted;
  const auto take = [&](const std::string& piece) {
    text += piece;
    if (!piece.empty()) show(piece);
  };
  const auto seconds = [](auto time) { return std::chrono::duration<double>(time).count(); };
  for (;;) {
    if (interrupted_.exchange(false)) {
      figures.was_stopped = true;
      engine_.abort(id);
    }
    const auto next = outputs_.pop(std::chrono::milliseconds(50));
    if (!next) continue;
    const TokenOutput& output = next->output;
    if (output.token != kInvalidToken) {
      if (++figures.num_tokens == 1) first = next->at;
      last = next->at;
      take(detokenizer.append(output.token).text);
    }
    if (output.finish_reason == FinishReason::kNone) continue;
    take(detokenizer.finish());
    if (has_failed(output)) return tl::unexpected(error_of(output));
    figures.was_cut = output.finish_reason == FinishReason::kLength;
    figures.first_s = seconds(first - submitted);
    const double behind = seconds(last - first);
    if (behind > 0) figures.rate = static_cast<double>(figures.num_tokens - 1) / behind;
    return figures;
  }
}

}  // namespace sluice
