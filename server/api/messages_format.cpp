// SPDX-License-Identifier: Apache-2.0
#include "server/api/messages_format.h"

#include <nlohmann/json.hpp>

#include "server/api/call_id.h"
#include "server/http/api_errors.h"
#include "server/http/random_id.h"
#include "server/json/json_reader.h"
#include "server/json/json_writer.h"

namespace sluice {
namespace {

constexpr int32_t kMaxInputDepth = 128;

void begin_event(std::string_view type, std::string& out) {
  out += "event: ";
  out += type;
  out += "\ndata: {\"type\":\"";
  out += type;
  out += '"';
}

void end_event(std::string& out) { out += "}\n\n"; }

void write_usage(const Usage& usage, JsonWriter& json) {
  json.open_object();
  json.key("input_tokens").integer(usage.prompt_tokens - usage.cached_tokens);
  json.key("cache_creation_input_tokens").integer(0);
  json.key("cache_read_input_tokens").integer(usage.cached_tokens);
  json.key("output_tokens").integer(usage.completion_tokens);
  json.key("output_tokens_details").open_object();
  json.key("thinking_tokens").integer(usage.reasoning_tokens).close_object().close_object();
}

// The arguments of a call as an object. Ones that a model broke, or that were cut off, are under
// the key that Anthropic's documents name for such.
void write_input(const std::string& arguments, JsonWriter& json) {
  const auto parsed = parse_json(arguments, kMaxInputDepth);
  if (parsed && parsed->is_object()) {
    json.raw(arguments);
  } else {
    json.open_object().key("INVALID_JSON").string(arguments).close_object();
  }
}

}  // namespace

MessagesFormat::MessagesFormat(std::string_view model, bool omits_thinking)
    : id_(random_id("msg_")), model_(model), omits_thinking_(omits_thinking) {}

void MessagesFormat::write_block(const AnswerPart& part, JsonWriter& json) const {
  json.open_object().key("type");
  if (part.kind == PieceKind::kReasoning) {
    json.string("thinking").key("thinking").string(omits_thinking_ ? std::string() : part.text);
    json.key("signature").string("");
  } else if (part.kind == PieceKind::kContent) {
    json.string("text").key("text").string(part.text);
  } else {
    json.string("tool_use").key("id").string(part.id).key("name").string(part.name);
    write_input(part.text, json.key("input"));
  }
  json.close_object();
}

void MessagesFormat::prepare(const GenerationRequest& request) { request_ = &request; }

void MessagesFormat::note_end(const ChoiceDelta& delta) {
  if (delta.finish_reason == FinishReason::kNone) return;
  stop_reason_ = "end_turn";
  if (!delta.matched_stop.empty()) {
    stop_reason_ = "stop_sequence";
    stop_sequence_ = delta.matched_stop;
  } else if (delta.finish_reason == FinishReason::kLength) {
    stop_reason_ = request_->fills_context ? "model_context_window_exceeded" : "max_tokens";
  } else if (delta.has_called && delta.finish_reason == FinishReason::kStop) {
    stop_reason_ = "tool_use";
  }
}

std::string MessagesFormat::call_name(const Piece& piece) const {
  return call_id(piece, request_->tools, id_, 0, "toolu_");
}

void MessagesFormat::keep(const ChoiceDelta& delta) {
  note_end(delta);
  for (const Piece& piece : delta.pieces) {
    add_piece(parts_, piece);
    if (piece.kind == PieceKind::kCallBegin) parts_.back().id = call_name(piece);
  }
}

// The members before `content`.
void MessagesFormat::write_head(JsonWriter& json) const {
  json.key("id").string(id_).key("type").string("message").key("role").string("assistant");
  json.key("model").string(model_);
}

void MessagesFormat::write_stop(JsonWriter& json) const {
  json.key("stop_reason");
  if (stop_reason_.empty()) {
    json.null();
  } else {
    json.string(stop_reason_);
  }
  json.key("stop_sequence");
  if (stop_sequence_) {
    json.string(*stop_sequence_);
  } else {
    json.null();
  }
}

std::string MessagesFormat::whole(std::span<const size_t>, const Usage& usage) {
  std::string out;
  JsonWriter json(out);
  json.open_object();
  write_head(json);
  json.key("content").open_array();
  for (const AnswerPart& part : parts_) write_block(part, json);
  json.close_array();
  write_stop(json);
  write_usage(usage, json.key("usage"));
  json.close_object();
  return out;
}

void MessagesFormat::append_start(const Usage& usage, std::string& out) {
  if (started_) return;
  started_ = true;
  begin_event("message_start", out);
  out += ",\"message\":";
  JsonWriter json(out);
  json.open_object();
  write_head(json);
  json.key("content").open_array().close_array();
  json.key("stop_reason").null().key("stop_sequence").null();
  write_usage(usage, json.key("usage"));
  json.close_object();
  end_event(out);
}

void MessagesFormat::append_events(const ChoiceDelta& delta, const Usage& usage, std::string& out) {
  const bool is_end = delta.finish_reason != FinishReason::kNone;
  if (delta.pieces.empty() && !is_end) return;
  append_start(usage, out);
  for (const Piece& piece : delta.pieces) append_piece(piece, out);
  if (is_end) stop_block(out);
  note_end(delta);
}

void MessagesFormat::append_piece(const Piece& piece, std::string& out) {
  if (piece.kind == PieceKind::kCallEnd) return stop_block(out);
  const bool is_text = piece.kind == PieceKind::kReasoning || piece.kind == PieceKind::kContent;
  if (piece.kind == PieceKind::kCallBegin || (is_text && open_ != piece.kind)) {
    stop_block(out);
    start_block(piece, out);
  }
  switch (piece.kind) {
    case PieceKind::kReasoning:
      if (omits_thinking_) return;
      return append_delta("thinking_delta", "thinking", piece.text, out);
    case PieceKind::kContent:
      return append_delta("text_delta", "text", piece.text, out);
    case PieceKind::kArguments:
      return append_delta("input_json_delta", "partial_json", piece.text, out);
    case PieceKind::kCallBegin:
      return append_delta("input_json_delta", "partial_json", "", out);
    case PieceKind::kCallEnd:
      break;
  }
}

void MessagesFormat::start_block(const Piece& piece, std::string& out) {
  open_ = piece.kind;
  begin_event("content_block_start", out);
  out += ",\"index\":" + std::to_string(num_blocks_++) + ",\"content_block\":";
  AnswerPart empty{piece.kind, {}, {}, {}};
  if (piece.kind == PieceKind::kCallBegin) {
    empty.name = piece.text;
    empty.id = call_name(piece);
    empty.text = "{}";
  }
  JsonWriter json(out);
  write_block(empty, json);
  end_event(out);
}

void MessagesFormat::append_delta(std::string_view type,
                                  std::string_view member,
                                  std::string_view text,
                                  std::string& out) const {
  begin_event("content_block_delta", out);
  out += ",\"index\":" + std::to_string(num_blocks_ - 1) + ",\"delta\":";
  JsonWriter json(out);
  json.open_object().key("type").string(type).key(member).string(text).close_object();
  end_event(out);
}

void MessagesFormat::stop_block(std::string& out) {
  if (!open_) return;
  if (open_ == PieceKind::kReasoning) append_delta("signature_delta", "signature", "", out);
  open_.reset();
  begin_event("content_block_stop", out);
  out += ",\"index\":" + std::to_string(num_blocks_ - 1);
  end_event(out);
}

void MessagesFormat::append_end(const Usage& usage, std::string& out) {
  begin_event("message_delta", out);
  out += ",\"delta\":";
  JsonWriter change(out);
  change.open_object();
  write_stop(change);
  change.close_object();
  out += ",\"usage\":";
  JsonWriter counts(out);
  write_usage(usage, counts);
  end_event(out);
  begin_event("message_stop", out);
  end_event(out);
}

void MessagesFormat::append_error(const Error& error, std::string& out) {
  out += "event: error\ndata: " + error_json(error, ErrorForm::kAnthropic) + "\n\n";
}

// The first event of a stream is message_start.
void MessagesFormat::append_ping(std::string& out) {
  if (!started_) return AnswerFormat::append_ping(out);
  begin_event("ping", out);
  end_event(out);
}

}  // namespace sluice
