// SPDX-License-Identifier: Apache-2.0
#include "server/api/openai_format.h"

#include <ctime>

#include "server/api/answer_id.h"
#include "server/front/front_end.h"
#include "server/http/api_errors.h"
#include "server/json/json_writer.h"

namespace sluice {
namespace {

constexpr std::string_view kDoneEvent = "data: [DONE]\n\n";

std::string make_head(std::string_view object,
                      std::string_view id,
                      int64_t created,
                      std::string_view model,
                      std::string_view fingerprint) {
  std::string head;
  JsonWriter json(head);
  json.open_object().key("id").string(id).key("object").string(object);
  json.key("created").integer(created).key("model").string(model);
  json.key("system_fingerprint");
  if (fingerprint.empty()) {
    json.null();
  } else {
    json.string(fingerprint);
  }
  json.key("choices").open_array();
  return head;
}

void write_or_null(JsonWriter& json, std::string_view value) {
  if (value.empty()) {
    json.null();
  } else {
    json.raw(value);
  }
}

void write_token_ids(JsonWriter& json, const std::vector<TokenId>& ids) {
  json.open_array();
  for (const TokenId id : ids) json.integer(id);
  json.close_array();
}

void write_usage(JsonWriter& json, const Usage& usage) {
  json.open_object();
  json.key("prompt_tokens").integer(usage.prompt_tokens);
  json.key("completion_tokens").integer(usage.completion_tokens);
  json.key("total_tokens").integer(usage.prompt_tokens + usage.completion_tokens);
  json.key("prompt_tokens_details").open_object();
  json.key("cached_tokens").integer(usage.cached_tokens).close_object();
  json.key("completion_tokens_details").open_object();
  json.key("reasoning_tokens").integer(usage.reasoning_tokens);
  if (usage.has_prediction) {
    json.key("accepted_prediction_tokens").integer(usage.accepted_prediction_tokens);
    json.key("rejected_prediction_tokens").integer(usage.rejected_prediction_tokens);
  }
  json.close_object();
  json.key("timings");
  write_timings(json, usage.timings);
  json.close_object();
}

}  // namespace

std::string_view finish_name(const ChoiceDelta& delta) {
  const bool is_for_calls = delta.has_called && !delta.is_named &&
                            delta.finish_reason == FinishReason::kStop &&
                            delta.matched_stop.empty();
  return is_for_calls ? "tool_calls" : to_string(delta.finish_reason);
}

OpenAiFormat::Choice::Choice(const Tokenizer& tokenizer, const GenerationRequest& request)
    : logprobs(tokenizer, request.endpoint, request.skip_special_tokens),
      prompt_logprobs(tokenizer) {}

OpenAiFormat::OpenAiFormat(std::shared_ptr<const ServedModel> served,
                           Endpoint endpoint,
                           std::string_view model,
                           std::string_view whole_object,
                           std::string_view event_object)
    : served_(std::move(served)), id_(answer_id(endpoint)) {
  const auto created = static_cast<int64_t>(std::time(nullptr));
  const std::string_view fingerprint = served_->engine.model().system_fingerprint;
  whole_head_ = make_head(whole_object, id_, created, model, fingerprint);
  event_head_ = "data: " + make_head(event_object, id_, created, model, fingerprint);
}

void OpenAiFormat::prepare(const GenerationRequest& request) {
  request_ = &request;
  choices_.reserve(request.requests.size());
  const auto num_choices = static_cast<size_t>(request.num_choices);
  for (size_t i = 0; i < request.requests.size(); ++i) {
    const std::vector<TokenId>& ids = request.requests[i].prompt;
    Choice& choice = choices_.emplace_back(served_->engine.tokenizer(), request);
    if (request.return_token_ids && i % num_choices == 0) prompts_.push_back(ids);
    if (request.num_echoed_logprobs >= 0) {
      choice.logprobs.start_prompt(ids, request.echoed[i / num_choices]);
    }
  }
}

void OpenAiFormat::add_prompt(size_t choice_idx, std::span<const PromptLogprob> scored) {
  Choice& choice = choices_[choice_idx];
  for (const PromptLogprob& token : scored) {
    if (request_->num_echoed_logprobs >= 0) {
      choice.logprobs.append_prompt(token, request_->num_echoed_logprobs);
    }
    if (request_->num_prompt_logprobs >= 0) {
      choice.prompt_logprobs.append(token, request_->num_prompt_logprobs);
    }
  }
}

void OpenAiFormat::add_token(size_t choice_idx, const TokenOutput& output) {
  Choice& choice = choices_[choice_idx];
  if (request_->wants_logprobs) choice.logprobs.append(output);
  if (request_->return_token_ids) choice.token_ids.push_back(output.token);
}

void OpenAiFormat::note_end(const ChoiceDelta& delta) {
  Choice& choice = choices_[delta.choice_idx];
  choice.finish_reason = finish_name(delta);
  choice.stop_reason.clear();
  if (delta.choice_idx == 0) kv_params_ = delta.kv_params;
  if (!delta.matched_stop.empty()) {
    append_json_string(choice.stop_reason, delta.matched_stop);
  } else if (delta.stop_token != kInvalidToken) {
    choice.stop_reason = std::to_string(delta.stop_token);
  }
}

void OpenAiFormat::write_prompt_ids(size_t prompt_idx, JsonWriter& json) const {
  json.key("prompt_token_ids");
  write_token_ids(json, prompts_[prompt_idx]);
}

std::string_view OpenAiFormat::prompt_logprobs(size_t prompt_idx) const {
  return prompt_logprobs_.empty() ? std::string_view() : prompt_logprobs_[prompt_idx];
}

// The members that both APIs and both forms end a choice with. `logprobs`: JSON; empty: null.
void OpenAiFormat::write_choice_end(Choice& choice,
                                    const EventMembers& members,
                                    std::string_view logprobs,
                                    JsonWriter& json) const {
  write_or_null(json.key("logprobs"), logprobs);
  json.key("finish_reason");
  if (!members.finish || choice.finish_reason.empty()) {
    json.null();
  } else {
    json.string(choice.finish_reason);
    write_or_null(json.key("stop_reason"), choice.stop_reason);
  }
  if (request_->return_token_ids && members.tokens) {
    json.key("token_ids");
    write_token_ids(json, choice.token_ids);
    choice.token_ids.clear();
  }
  json.close_object();
}

std::string OpenAiFormat::whole(std::span<const size_t> returned, const Usage& usage) {
  const auto num_choices = static_cast<size_t>(request_->num_choices);
  for (size_t i = 0; request_->num_prompt_logprobs >= 0 && i < choices_.size(); i += num_choices) {
    prompt_logprobs_.push_back(choices_[i].prompt_logprobs.take());
  }
  std::string out = whole_head_;
  JsonWriter json(out);
  for (size_t i = 0; i < returned.size(); ++i) {
    Choice& choice = choices_[returned[i]];
    json.open_object().key("index").integer(static_cast<int64_t>(i));
    write_choice(returned[i], returned[i] / num_choices, json);
    write_choice_end(choice, {}, request_->wants_logprobs ? choice.logprobs.take() : "", json);
  }
  json.close_array();
  write_after_choices(json);
  if (!kv_params_.empty()) json.key("kv_transfer_params").raw(kv_params_);
  json.key("usage");
  write_usage(json, usage);
  json.close_object();
  return out;
}

void OpenAiFormat::begin_event(size_t choice_idx, std::string& out) const {
  out += event_head_;
  JsonWriter json(out);
  json.open_object().key("index").integer(static_cast<int64_t>(choice_idx));
  out += ',';
}

void OpenAiFormat::end_event(size_t choice_idx,
                             const EventMembers& members,
                             const Usage& usage,
                             std::string& out) {
  Choice& choice = choices_[choice_idx];
  const bool has_logprobs = members.tokens && !choice.logprobs.empty();
  out += ',';
  JsonWriter json(out);
  write_choice_end(choice, members, has_logprobs ? choice.logprobs.take() : "", json);
  end_choices(request_->continuous_usage_stats ? &usage : nullptr, out, members.prompt);
}

// `usage`: null for none; written as null if the client asked for usage.
void OpenAiFormat::end_choices(const Usage* usage, std::string& out, bool has_prompt) const {
  out += ']';
  if (has_prompt) {
    out += ',';
    JsonWriter json(out);
    write_prompt_ids(0, json);
  }
  if (usage != nullptr) {
    out += ",\"usage\":";
    JsonWriter json(out);
    write_usage(json, *usage);
  } else if (request_->include_usage) {
    out += ",\"usage\":null";
  }
  out += "}\n\n";
}

void OpenAiFormat::append_end(const Usage& usage, std::string& out) {
  if (request_->include_usage) {
    out += event_head_;
    end_choices(&usage, out);
  }
  out += kDoneEvent;
}

void OpenAiFormat::append_error(const Error& error, std::string& out) {
  out += "data: " + error_json(error) + "\n\n";
  out += kDoneEvent;
}

}  // namespace sluice
