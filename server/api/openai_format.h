// SPDX-License-Identifier: Apache-2.0
// The common part of answers of OpenAI's two completion APIs: identity, log-probabilities, token
// ids, usage, errors and the end of a stream. ChatFormat and CompletionsFormat are the APIs
// themselves. Lives on the answer's I/O thread.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/tokenizer/tokenizer.h"
#include "server/api/answer_format.h"
#include "server/api/logprobs.h"
#include "server/api/request_validator.h"

namespace sluice {

class JsonWriter;
struct ServedModel;

class OpenAiFormat : public AnswerFormat {
 public:
  [[nodiscard]] const std::string& id() const final { return id_; }

  void prepare(const GenerationRequest& request) override;
  void add_prompt(size_t choice_idx, std::span<const PromptLogprob> scored) final;
  void add_token(size_t choice_idx, const TokenOutput& output) final;
  std::string whole(std::span<const size_t> returned, const Usage& usage) final;
  void append_end(const Usage& usage, std::string& out) final;
  void append_error(const Error& error, std::string& out) final;

 protected:
  struct Choice {
    Choice(const Tokenizer& tokenizer, const GenerationRequest& request);

    LogprobsText logprobs;
    PromptLogprobsText prompt_logprobs;
    std::vector<TokenId> token_ids;  // whole: all; streamed: since the last event
    std::string_view finish_reason;  // empty: null
    std::string stop_reason;         // JSON; empty: null
  };

  // `whole_object`, `event_object`: the value of `object` in answers and events
  // ("chat.completion").
  OpenAiFormat(std::shared_ptr<const ServedModel> served,
               Endpoint endpoint,
               std::string_view model,
               std::string_view whole_object,
               std::string_view event_object);

  // The members of a choice that an event has.
  struct EventMembers {
    bool tokens = true;   // log-probabilities and token ids since the last event that had them
    bool finish = true;   // the finish reason, if there is one
    bool prompt = false;  // the first prompt's ids, after the choices
  };

  // Writes the members before `logprobs` of a choice of a whole answer. `prompt_idx`: its prompt's.
  virtual void write_choice(size_t choice_idx, size_t prompt_idx, JsonWriter& json) = 0;
  // Writes the members after the choices of a whole answer.
  virtual void write_after_choices(JsonWriter& json) = 0;

  // Keeps the choice's finish and stop reasons from its last delta.
  void note_end(const ChoiceDelta& delta);

  // Frame an event: begin_event(), the choice's own members, end_event().
  void begin_event(size_t choice_idx, std::string& out) const;
  void end_event(size_t choice_idx,
                 const EventMembers& members,
                 const Usage& usage,
                 std::string& out);

  [[nodiscard]] const GenerationRequest& request() const { return *request_; }

  [[nodiscard]] Choice& choice(size_t choice_idx) { return choices_[choice_idx]; }

  // Tells whether the request asked for prompts' ids.
  [[nodiscard]] bool has_prompt_ids() const { return !prompts_.empty(); }

  void write_prompt_ids(size_t prompt_idx, JsonWriter& json) const;
  // Returns JSON for a whole answer; empty: the request did not ask for it.
  [[nodiscard]] std::string_view prompt_logprobs(size_t prompt_idx) const;

 private:
  void write_choice_end(Choice& choice,
                        const EventMembers& members,
                        std::string_view logprobs,
                        JsonWriter& json) const;
  void end_choices(const Usage* usage, std::string& out, bool has_prompt = false) const;

  const std::shared_ptr<const ServedModel> served_;
  const std::string id_;
  std::string whole_head_;  // `{"id":...,"system_fingerprint":...,"choices":[`
  std::string event_head_;  // the head of an event, after "data: "
  const GenerationRequest* request_ = nullptr;
  std::vector<std::vector<TokenId>> prompts_;
  std::vector<std::string> prompt_logprobs_;  // by prompt, for a whole answer
  std::vector<Choice> choices_;
  std::string kv_params_;  // the first choice's JSON; empty: none
};

}  // namespace sluice
