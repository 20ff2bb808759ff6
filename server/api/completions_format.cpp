// SPDX-License-Identifier: Apache-2.0
#include "server/api/completions_format.h"

#include "server/json/json_writer.h"

namespace sluice {

CompletionsFormat::CompletionsFormat(std::shared_ptr<const ServedModel> served,
                                     std::string_view model)
    : OpenAiFormat(std::move(served), Endpoint::kCompletion, model, "text_completion", "text_completion") {}

void CompletionsFormat::prepare(const GenerationRequest& request) {
  OpenAiFormat::prepare(request);
  texts_.resize(request.requests.size());
  has_begun_.resize(request.requests.size());
}

void CompletionsFormat::keep(const ChoiceDelta& delta) {
  note_end(delta);
  for (const Piece& piece : delta.pieces) texts_[delta.choice_idx] += piece.text;
}

void CompletionsFormat::write_choice(size_t choice_idx, size_t prompt_idx, JsonWriter& json) {
  json.key("text").string(texts_[choice_idx]);
  if (has_prompt_ids()) write_prompt_ids(prompt_idx, json);
  const std::string_view logprobs = prompt_logprobs(prompt_idx);
  if (!logprobs.empty()) json.key("prompt_logprobs").raw(logprobs);
}

void CompletionsFormat::append_events(const ChoiceDelta& delta,
                                      const Usage& usage,
                                      std::string& out) {
  note_end(delta);
  std::string text;
  for (const Piece& piece : delta.pieces) text += piece.text;
  const bool is_end = delta.finish_reason != FinishReason::kNone;
  if (text.empty() && choice(delta.choice_idx).logprobs.empty() && !is_end) return;
  begin_event(delta.choice_idx, out);
  JsonWriter json(out);
  json.key("text").string(text);
  if (has_prompt_ids() && !has_begun_[delta.choice_idx]) {
    write_prompt_ids(delta.choice_idx / static_cast<size_t>(request().num_choices), json);
  }
  has_begun_[delta.choice_idx] = true;
  end_event(delta.choice_idx, {}, usage, out);
}

}  // namespace sluice
