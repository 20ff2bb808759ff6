// SPDX-License-Identifier: Apache-2.0
#include "server/logprobs.h"

#include <algorithm>
#include <string_view>

#include "server/json_writer.h"

namespace sluice {
namespace {

// `token` is text and may be lossy; `bytes` are exact.
void write_token(JsonWriter& json, std::string_view bytes, float logprob) {
  json.key("token").string(bytes);
  json.key("logprob").number(logprob);
  json.key("bytes").open_array();
  for (const char c : bytes) json.integer(static_cast<unsigned char>(c));
  json.close_array();
}

void separate(std::string& list) {
  if (!list.empty()) list += ',';
}

}  // namespace

void LogprobsText::append(const TokenOutput& output) {
  if (endpoint_ == Endpoint::kChat) {
    append_chat(output);
  } else {
    append_completion(output);
  }
}

void LogprobsText::append_chat(const TokenOutput& output) {
  separate(items_);
  JsonWriter json(items_);
  json.open_object();
  write_token(json, tokenizer_->token_bytes(output.token), output.logprob);
  json.key("top_logprobs").open_array();
  for (const TokenLogprob& top : output.top_logprobs) {
    json.open_object();
    write_token(json, tokenizer_->token_bytes(top.token), top.logprob);
    json.close_object();
  }
  json.close_array().close_object();
}

void LogprobsText::append_completion(const TokenOutput& output) {
  const std::string text = to_valid_utf8(tokenizer_->token_bytes(output.token));
  separate(items_);
  append_json_string(items_, text);
  separate(token_logprobs_);
  append_json_float(token_logprobs_, output.logprob);
  separate(text_offsets_);
  text_offsets_ += std::to_string(offset_);
  offset_ += std::count_if(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xC0) != 0x80;
  });
  separate(top_logprobs_);
  JsonWriter json(top_logprobs_);
  json.open_object();
  for (const TokenLogprob& top : output.top_logprobs) {
    json.key(tokenizer_->token_bytes(top.token)).number(top.logprob);
  }
  json.close_object();
}

std::string LogprobsText::take() {
  std::string out;
  if (endpoint_ == Endpoint::kChat) {
    out = "{\"content\":[" + items_ + "],\"refusal\":null}";
  } else {
    out = "{\"tokens\":[" + items_ + "],\"token_logprobs\":[" + token_logprobs_ +
          "],\"top_logprobs\":[" + top_logprobs_ + "],\"text_offset\":[" + text_offsets_ + "]}";
  }
  items_.clear();
  token_logprobs_.clear();
  top_logprobs_.clear();
  text_offsets_.clear();
  return out;
}

}  // namespace sluice
