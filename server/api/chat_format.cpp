// SPDX-License-Identifier: Apache-2.0
#include "server/api/chat_format.h"

#include <algorithm>

#include "server/api/call_id.h"
#include "server/json/json_writer.h"

namespace sluice {
namespace {

constexpr std::string_view kIdPrefix = "call_";

// Clients know the one name or the other.
void write_reasoning(std::string_view text, JsonWriter& json) {
  json.key("reasoning").string(text).key("reasoning_content").string(text);
}

}  // namespace

ChatFormat::ChatFormat(std::shared_ptr<const ServedModel> served, std::string_view model)
    : OpenAiFormat(std::move(served), Endpoint::kChat, model, "chat.completion", "chat.completion.chunk") {}

void ChatFormat::prepare(const GenerationRequest& request) {
  OpenAiFormat::prepare(request);
  messages_.resize(request.requests.size());
  has_role_.resize(request.requests.size());
}

void ChatFormat::keep(const ChoiceDelta& delta) {
  note_end(delta);
  AnswerParts& parts = messages_[delta.choice_idx];
  for (const Piece& piece : delta.pieces) {
    add_piece(parts, piece);
    if (piece.kind == PieceKind::kCallBegin) {
      parts.back().id = call_id(piece, request().tools, id(), delta.choice_idx, kIdPrefix);
    }
  }
}

void ChatFormat::write_choice(size_t choice_idx, size_t, JsonWriter& json) {
  const AnswerParts& parts = messages_[choice_idx];
  const std::string content = joined_text(parts, PieceKind::kContent);
  const std::string reasoning = joined_text(parts, PieceKind::kReasoning);
  json.key("message").open_object().key("role").string("assistant").key("content");
  if (content.empty() && !parts.empty()) {
    json.null();
  } else {
    json.string(content);
  }
  json.key("refusal").null();
  if (!reasoning.empty()) write_reasoning(reasoning, json);
  if (std::ranges::count(parts, PieceKind::kCallBegin, &AnswerPart::kind) > 0) {
    json.key("tool_calls").open_array();
    for (const AnswerPart& part : parts) {
      if (part.kind != PieceKind::kCallBegin) continue;
      json.open_object().key("id").string(part.id).key("type").string("function");
      json.key("function").open_object().key("name").string(part.name);
      json.key("arguments").string(part.text).close_object().close_object();
    }
    json.close_array();
  }
  json.close_object();
}

void ChatFormat::write_after_choices(JsonWriter& json) {
  if (has_prompt_ids()) write_prompt_ids(0, json);
  if (!prompt_logprobs(0).empty()) json.key("prompt_logprobs").raw(prompt_logprobs(0));
}

void ChatFormat::append_role_event(size_t choice_idx, const Usage& usage, std::string& out) {
  begin_event(choice_idx, out);
  out += R"("delta":{"role":"assistant","content":""})";
  end_event(
      choice_idx, {.tokens = false, .finish = false, .prompt = has_prompt_ids()}, usage, out);
}

void ChatFormat::write_delta(size_t choice_idx, const Piece& piece, JsonWriter& json) const {
  if (piece.kind == PieceKind::kReasoning) return write_reasoning(piece.text, json);
  if (piece.kind == PieceKind::kContent) {
    json.key("content").string(piece.text);
    return;
  }
  json.key("tool_calls").open_array().open_object().key("index").integer(piece.call_idx);
  const bool is_begin = piece.kind == PieceKind::kCallBegin;
  if (is_begin) {
    json.key("id").string(call_id(piece, request().tools, id(), choice_idx, kIdPrefix));
    json.key("type").string("function");
  }
  json.key("function").open_object();
  if (is_begin) json.key("name").string(piece.text);
  json.key("arguments").string(is_begin ? std::string_view() : piece.text);
  json.close_object().close_object().close_array();
}

void ChatFormat::append_events(const ChoiceDelta& delta, const Usage& usage, std::string& out) {
  note_end(delta);
  const size_t idx = delta.choice_idx;
  const bool is_end = delta.finish_reason != FinishReason::kNone;
  const auto is_shown = [](const Piece& piece) { return piece.kind != PieceKind::kCallEnd; };
  const bool has_pieces = std::ranges::any_of(delta.pieces, is_shown);
  // Tokens that make no piece have log-probabilities all the same.
  const bool has_tokens = !choice(idx).logprobs.empty();
  if (!has_pieces && !has_tokens && !is_end) return;
  if (!has_role_[idx]) append_role_event(idx, usage, out);
  has_role_[idx] = true;
  bool tokens = true;
  const auto append = [&](const Piece* piece, bool finish) {
    begin_event(idx, out);
    JsonWriter json(out);
    json.key("delta").open_object();
    if (piece != nullptr) write_delta(idx, *piece, json);
    json.close_object();
    end_event(idx, {.tokens = tokens, .finish = finish}, usage, out);
    tokens = false;
  };
  for (const Piece& piece : delta.pieces) {
    if (is_shown(piece)) append(&piece, /*finish=*/false);
  }
  if (is_end || !has_pieces) append(nullptr, is_end);
}

}  // namespace sluice
