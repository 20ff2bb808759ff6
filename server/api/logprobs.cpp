// SPDX-License-Identifier: Apache-2.0
#include "server/api/logprobs.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "engine/tokenizer/text/utf8.h"
#include "server/api/text_offsets.h"
#include "server/json/json_writer.h"

namespace sluice {
namespace {

std::span<const TokenLogprob> first_of(const std::vector<TokenLogprob>& list, int32_t count) {
  return std::span(list).first(std::min(list.size(), static_cast<size_t>(count)));
}

void separate(std::string& list) {
  if (!list.empty()) list += ',';
}

}  // namespace

void LogprobsText::start_prompt(std::span<const TokenId> tokens, std::string_view text) {
  prompt_offsets_ = text_offsets(*tokenizer_, tokens, text);
  num_characters_ = count_characters(text);
  append_position(tokens[0], prompt_offsets_[num_prompt_++]);
  token_logprobs_ += "null";
  top_logprobs_ += "null";
}

void LogprobsText::append_prompt(const PromptLogprob& scored, int32_t num_top) {
  append_completion({scored.token, scored.logprob, first_of(scored.top_logprobs, num_top)},
                    prompt_offsets_[num_prompt_++]);
}

void LogprobsText::append(const TokenOutput& output) {
  const Row row = {output.token, output.logprob, output.top_logprobs};
  if (endpoint_ != Endpoint::kCompletion) return append_chat(row);
  append_completion(row, num_characters_);
  if (!skip_special_tokens_ || !tokenizer_->is_special(output.token)) pass_text(output.token);
}

// `token` is text and may be lossy; `bytes` are exact.
void LogprobsText::write_token(std::string_view bytes, float logprob, JsonWriter& json) const {
  json.key("token").string(bytes);
  json.key("logprob").number(logprob);
  if (endpoint_ == Endpoint::kResponses) return;
  json.key("bytes").open_array();
  for (const char c : bytes) json.integer(static_cast<unsigned char>(c));
  json.close_array();
}

void LogprobsText::append_chat(const Row& row) {
  separate(items_);
  JsonWriter json(items_);
  json.open_object();
  write_token(tokenizer_->token_bytes(row.token), row.logprob, json);
  json.key("top_logprobs").open_array();
  for (const TokenLogprob& top : row.top) {
    json.open_object();
    write_token(tokenizer_->token_bytes(top.token), top.logprob, json);
    json.close_object();
  }
  json.close_array().close_object();
}

// The token's text and its offset in the whole text: the number of characters complete before it.
void LogprobsText::append_position(TokenId token, int64_t offset) {
  separate(items_);
  append_json_string(items_, tokenizer_->token_bytes(token));
  separate(text_offsets_);
  text_offsets_ += std::to_string(offset);
}

// Counts the characters that a generated token completes.
void LogprobsText::pass_text(TokenId token) {
  partial_ += tokenizer_->token_bytes(token);
  size_t at = 0;
  while (at < partial_.size()) {
    const Utf8Part part = next_utf8_part(partial_, at);
    if (part.kind == Utf8Kind::kTruncated) break;
    at += part.length;
    ++num_characters_;
  }
  partial_.erase(0, at);
}

void LogprobsText::append_completion(const Row& row, int64_t offset) {
  append_position(row.token, offset);
  separate(token_logprobs_);
  append_json_float(token_logprobs_, row.logprob);
  separate(top_logprobs_);
  write_top(row);
}

// By text: of tokens that look the same the likeliest counts. The token itself is always there.
void LogprobsText::write_top(const Row& row) {
  JsonWriter json(top_logprobs_);
  std::vector<std::string> written;
  const auto write = [&](TokenId token, float logprob) {
    std::string text = to_valid_utf8(tokenizer_->token_bytes(token));
    if (std::ranges::find(written, text) != written.end()) return;
    json.key(text).number(logprob);
    written.push_back(std::move(text));
  };
  json.open_object();
  for (const TokenLogprob& top : row.top) write(top.token, top.logprob);
  write(row.token, row.logprob);
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

void PromptLogprobsText::append(const PromptLogprob& scored, int32_t num_top) {
  separate(items_);
  JsonWriter json(items_);
  const auto write = [&](TokenId token, float logprob, int32_t rank) {
    json.key(std::to_string(token)).open_object();
    json.key("logprob").number(logprob).key("rank").integer(rank);
    json.key("decoded_token").string(tokenizer_->token_bytes(token)).close_object();
  };
  json.open_object();
  write(scored.token, scored.logprob, scored.rank);
  int32_t rank = 0;
  for (const TokenLogprob& top : first_of(scored.top_logprobs, num_top)) {
    ++rank;
    if (top.token != scored.token) write(top.token, top.logprob, rank);
  }
  json.close_object();
}

std::string PromptLogprobsText::take() {
  std::string out = items_.empty() ? "[null]" : "[null," + items_ + "]";
  items_.clear();
  return out;
}

}  // namespace sluice
