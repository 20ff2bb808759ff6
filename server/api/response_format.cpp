// SPDX-License-Identifier: Apache-2.0
#include "server/api/response_format.h"

#include <openssl/rand.h>

#include "engine/core/hex.h"
#include "engine/core/status.h"
#include "server/json/json_writer.h"

namespace sluice {
namespace {

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

// The members that both APIs and both forms end a choice with.
void write_choice_end(JsonWriter& json, const ChoiceText& choice) {
  write_or_null(json.key("logprobs"), choice.logprobs);
  json.key("finish_reason");
  if (choice.finish_reason.empty()) {
    json.null();
  } else {
    json.string(choice.finish_reason);
    write_or_null(json.key("stop_reason"), choice.stop_reason);
  }
  if (choice.token_ids != nullptr) {
    json.key("token_ids");
    write_token_ids(json, *choice.token_ids);
  }
  json.close_object();
}

void write_usage(JsonWriter& json, const Usage& usage) {
  json.open_object();
  json.key("prompt_tokens").integer(usage.prompt_tokens);
  json.key("completion_tokens").integer(usage.completion_tokens);
  json.key("total_tokens").integer(usage.prompt_tokens + usage.completion_tokens);
  json.key("prompt_tokens_details").open_object();
  json.key("cached_tokens").integer(usage.cached_tokens).close_object();
  if (usage.has_prediction) {
    json.key("completion_tokens_details").open_object();
    json.key("accepted_prediction_tokens").integer(usage.accepted_prediction_tokens);
    json.key("rejected_prediction_tokens").integer(usage.rejected_prediction_tokens);
    json.close_object();
  }
  json.key("timings");
  write_timings(json, usage.timings);
  json.close_object();
}

void end_event(std::string& out, bool wants_usage, const Usage* usage) {
  out += ']';
  if (usage != nullptr) {
    out += ",\"usage\":";
    JsonWriter json(out);
    write_usage(json, *usage);
  } else if (wants_usage) {
    out += ",\"usage\":null";
  }
  out += "}\n\n";
}

}  // namespace

std::string response_id(Endpoint endpoint) {
  uint8_t bytes[16];
  CHECK_EQ(RAND_bytes(bytes, sizeof bytes), 1);
  return (endpoint == Endpoint::kChat ? "chatcmpl-" : "cmpl-") + to_hex(bytes);
}

ResponseFormat::ResponseFormat(Endpoint endpoint,
                               std::string_view id,
                               int64_t created,
                               std::string_view model,
                               std::string_view system_fingerprint)
    : endpoint_(endpoint) {
  const bool is_chat = endpoint == Endpoint::kChat;
  whole_head_ = make_head(
      is_chat ? "chat.completion" : "text_completion", id, created, model, system_fingerprint);
  event_head_ = "data: " + make_head(is_chat ? "chat.completion.chunk" : "text_completion",
                                     id,
                                     created,
                                     model,
                                     system_fingerprint);
}

std::string ResponseFormat::whole(std::span<const ChoiceText> choices,
                                  std::span<const std::vector<TokenId>* const> prompt_token_ids,
                                  const Usage& usage) const {
  std::string out = whole_head_;
  JsonWriter json(out);
  for (const ChoiceText& choice : choices) {
    json.open_object().key("index").integer(static_cast<int64_t>(choice.index));
    if (endpoint_ == Endpoint::kChat) {
      json.key("message").open_object();
      json.key("role").string("assistant").key("content").string(choice.text);
      json.key("refusal").null().close_object();
    } else {
      json.key("text").string(choice.text);
      if (!prompt_token_ids.empty()) {
        json.key("prompt_token_ids");
        write_token_ids(json, *prompt_token_ids[choice.index]);
      }
      if (!choice.prompt_logprobs.empty()) json.key("prompt_logprobs").raw(choice.prompt_logprobs);
    }
    write_choice_end(json, choice);
  }
  json.close_array();
  if (endpoint_ == Endpoint::kChat && !prompt_token_ids.empty()) {
    json.key("prompt_token_ids");
    write_token_ids(json, *prompt_token_ids[0]);
  }
  if (endpoint_ == Endpoint::kChat && !choices[0].prompt_logprobs.empty()) {
    json.key("prompt_logprobs").raw(choices[0].prompt_logprobs);
  }
  json.key("usage");
  write_usage(json, usage);
  json.close_object();
  return out;
}

void ResponseFormat::append_role_event(std::string& out,
                                       size_t index,
                                       bool wants_usage,
                                       const Usage* usage) const {
  out += event_head_;
  JsonWriter json(out);
  json.open_object().key("index").integer(static_cast<int64_t>(index));
  json.key("delta").open_object();
  json.key("role").string("assistant").key("content").string("").close_object();
  json.key("logprobs").null().key("finish_reason").null().close_object();
  end_event(out, wants_usage, usage);
}

void ResponseFormat::append_event(std::string& out,
                                  const ChoiceText& choice,
                                  bool wants_usage,
                                  const Usage* usage) const {
  out += event_head_;
  JsonWriter json(out);
  json.open_object().key("index").integer(static_cast<int64_t>(choice.index));
  if (endpoint_ == Endpoint::kChat) {
    json.key("delta").open_object();
    // A delta without text is the empty object, unless it carries a token's log probability.
    if (!choice.text.empty() || choice.finish_reason.empty()) {
      json.key("content").string(choice.text);
    }
    json.close_object();
  } else {
    json.key("text").string(choice.text);
  }
  write_choice_end(json, choice);
  end_event(out, wants_usage, usage);
}

void ResponseFormat::append_usage_event(std::string& out, const Usage& usage) const {
  out += event_head_;
  end_event(out, true, &usage);
}

}  // namespace sluice
