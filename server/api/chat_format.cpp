// SPDX-License-Identifier: Apache-2.0
#include "server/api/chat_format.h"

#include "server/json/json_writer.h"

namespace sluice {

ChatFormat::ChatFormat(const FrontEnd& front_end, std::string_view model)
    : OpenAiFormat(front_end, Endpoint::kChat, model, "chat.completion", "chat.completion.chunk") {}

void ChatFormat::prepare(const GenerationRequest& request) {
  OpenAiFormat::prepare(request);
  messages_.resize(request.requests.size());
}

void ChatFormat::keep(const ChoiceNews& news) {
  note_end(news);
  for (const Piece& piece : news.pieces) messages_[news.choice_idx].content += piece.text;
}

void ChatFormat::write_choice(size_t choice_idx, size_t, JsonWriter& json) {
  json.key("message").open_object().key("role").string("assistant");
  json.key("content").string(messages_[choice_idx].content);
  json.key("refusal").null().close_object();
}

void ChatFormat::write_behind_choices(JsonWriter& json) {
  if (has_prompt_ids()) write_prompt_ids(0, json);
  if (!prompt_logprobs(0).empty()) json.key("prompt_logprobs").raw(prompt_logprobs(0));
}

void ChatFormat::append_role_event(size_t choice_idx, const Usage& usage, std::string& out) {
  begin_event(choice_idx, out);
  out += R"("delta":{"role":"assistant","content":""})";
  end_event(choice_idx, {.tokens = false, .finish = false}, usage, out);
}

void ChatFormat::append_events(const ChoiceNews& news, const Usage& usage, std::string& out) {
  note_end(news);
  const size_t idx = news.choice_idx;
  std::string text;
  for (const Piece& piece : news.pieces) text += piece.text;
  const bool is_end = news.finish_reason != FinishReason::kNone;
  if (text.empty() && choice(idx).logprobs.empty() && !is_end) return;
  if (!messages_[idx].has_role) append_role_event(idx, usage, out);
  messages_[idx].has_role = true;
  begin_event(idx, out);
  JsonWriter json(out);
  json.key("delta").open_object();
  // A delta without text is the empty object, unless it carries a token's log probability.
  if (!text.empty() || !is_end) json.key("content").string(text);
  json.close_object();
  end_event(idx, {}, usage, out);
}

}  // namespace sluice
