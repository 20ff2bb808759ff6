// SPDX-License-Identifier: Apache-2.0
#include "server/api/responses_format.h"

#include <ctime>
#include <nlohmann/json.hpp>
#include <utility>

#include "server/api/call_id.h"
#include "server/http/api_errors.h"
#include "server/http/random_id.h"
#include "server/json/json_fields.h"
#include "server/json/json_writer.h"

namespace sluice {
namespace {

using Json = nlohmann::ordered_json;

std::string dumped(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

void write_usage(const Usage& usage, JsonWriter& json) {
  json.open_object().key("input_tokens").integer(usage.prompt_tokens);
  json.key("input_tokens_details").open_object();
  json.key("cached_tokens").integer(usage.cached_tokens);
  json.key("cache_write_tokens").integer(0).close_object();  // no cache is paid for
  json.key("output_tokens").integer(usage.completion_tokens);
  json.key("output_tokens_details").open_object();
  json.key("reasoning_tokens").integer(usage.reasoning_tokens).close_object();
  json.key("total_tokens").integer(usage.prompt_tokens + usage.completion_tokens).close_object();
}

// An error in the words of a response that failed.
void write_error(const Error* error, JsonWriter& json) {
  if (error == nullptr) {
    json.null();
    return;
  }
  const bool is_load =
      error->code == ErrorCode::kResourceExhausted || error->code == ErrorCode::kDeadlineExceeded;
  json.open_object().key("code").string(is_load ? "rate_limit_exceeded" : "server_error");
  json.key("message").string(error->message).close_object();
}

std::string_view item_prefix(PieceKind kind) {
  if (kind == PieceKind::kReasoning) return "rs_";
  return kind == PieceKind::kContent ? "msg_" : "fc_";
}

bool is_custom(const ResponseTool* tool) {
  return tool != nullptr && tool->kind == ResponseTool::Kind::kCustom;
}

}  // namespace

std::string response_settings(const Json& body,
                              bool is_stored,
                              const SamplingParams& sampling,
                              bool is_bounded) {
  const Json defaults = {{"instructions", nullptr},
                         {"max_tool_calls", nullptr},
                         {"metadata", Json::object()},
                         {"parallel_tool_calls", true},
                         {"previous_response_id", nullptr},
                         {"reasoning", {{"effort", nullptr}, {"summary", nullptr}}},
                         {"text", {{"format", {{"type", "text"}}}}},
                         {"tool_choice", "auto"},
                         {"tools", Json::array()},
                         {"top_logprobs", 0},
                         {"truncation", "disabled"},
                         {"user", nullptr}};
  std::string members = is_stored ? ",\"store\":true" : ",\"store\":false";
  members += ",\"background\":false";
  for (const auto& [name, value] : defaults.items()) {
    const Json* given = find_field(body, name);
    members += ",\"" + name + "\":" + dumped(given != nullptr ? *given : value);
  }
  // There is one tier, whatever the client asks for.
  members += ",\"service_tier\":\"default\",\"max_output_tokens\":";
  members += is_bounded ? std::to_string(sampling.max_tokens) : "null";
  members += ",\"temperature\":";
  append_json_float(members, sampling.temperature);
  members += ",\"top_p\":";
  append_json_float(members, sampling.top_p);
  return members;
}

ResponsesFormat::ResponsesFormat(const Tokenizer& tokenizer,
                                 const GenerationRequest& request,
                                 ResponseRecord record)
    : id_(random_id("resp_")),
      model_(request.model),
      created_(static_cast<int64_t>(std::time(nullptr))),
      record_(std::move(record)),
      tokens_(tokenizer, Endpoint::kChat, request.skip_special_tokens),
      event_tokens_(tokenizer, Endpoint::kResponses, request.skip_special_tokens) {}

void ResponsesFormat::add_token(size_t, const TokenOutput& output) {
  if (!request_->wants_logprobs) return;
  tokens_.append(output);
  event_tokens_.append(output);
}

void ResponsesFormat::note_end(const ChoiceDelta& delta) {
  if (delta.finish_reason == FinishReason::kNone) return;
  kv_params_ = delta.kv_params;
  status_ = delta.finish_reason == FinishReason::kStop ? Status::kCompleted : Status::kIncomplete;
}

void ResponsesFormat::add(const Piece& piece) {
  add_piece(parts_, piece);
  if (piece.kind == PieceKind::kCallBegin) {
    parts_.back().id = call_id(piece, request_->tools, id_, 0, "call_");
  }
  logprobs_.resize(parts_.size());
  event_logprobs_.resize(parts_.size());
  // Tokens of thoughts and calls are not part of the text.
  const std::string items = tokens_.take_items();
  new_logprobs_ = event_tokens_.take_items();
  if (piece.kind != PieceKind::kContent || items.empty()) return;
  const char* separator = logprobs_.back().empty() ? "" : ",";
  logprobs_.back() += separator + items;
  event_logprobs_.back() += separator + new_logprobs_;
}

const ResponseTool* ResponsesFormat::tool_of(const AnswerPart& part) const {
  return find_tool(record_.tools, part.name);
}

void ResponsesFormat::keep(const ChoiceDelta& delta) {
  note_end(delta);
  for (const Piece& piece : delta.pieces) add(piece);
}

std::string ResponsesFormat::item_id(size_t item_idx) const {
  constexpr size_t kNameSize = 32;
  // Calls have names of their own, which count from 0 as well.
  const auto item = -1 - static_cast<int64_t>(item_idx);
  return std::string(item_prefix(parts_[item_idx].kind)) + derived_name(id_, 0, item, kNameSize);
}

void ResponsesFormat::write_call(const AnswerPart& part, bool is_done, JsonWriter& json) const {
  const ResponseTool* tool = tool_of(part);
  json.string(is_custom(tool) ? "custom_tool_call" : "function_call");
  json.key("call_id").string(part.id);
  json.key("name").string(tool != nullptr ? tool->name : part.name);
  if (tool != nullptr && !tool->space.empty()) json.key("namespace").string(tool->space);
  const std::string arguments = is_done ? part.text : std::string();
  if (is_custom(tool)) {
    json.key("input").string(custom_input(arguments));
  } else {
    json.key("arguments").string(arguments);
  }
}

// Writes the one part that an item with text has.
void ResponsesFormat::write_part(size_t item_idx, bool is_done, JsonWriter& json) const {
  const AnswerPart& part = parts_[item_idx];
  const std::string_view text = is_done ? std::string_view(part.text) : std::string_view();
  json.open_object().key("type");
  if (part.kind == PieceKind::kReasoning) {
    json.string("reasoning_text").key("text").string(text);
  } else {
    json.string("output_text").key("text").string(text);
    json.key("annotations").open_array().close_array();
    json.key("logprobs").raw("[" + (is_done ? logprobs_[item_idx] : std::string()) + "]");
  }
  json.close_object();
}

void ResponsesFormat::write_item(size_t item_idx, bool is_done, JsonWriter& json) const {
  const AnswerPart& part = parts_[item_idx];
  const bool is_last = item_idx + 1 == parts_.size();
  const bool is_cut = is_last && status_ == Status::kIncomplete;
  json.open_object().key("id").string(item_id(item_idx)).key("type");
  if (part.kind == PieceKind::kCallBegin) {
    write_call(part, is_done, json);
  } else {
    const bool is_reasoning = part.kind == PieceKind::kReasoning;
    json.string(is_reasoning ? "reasoning" : "message");
    if (is_reasoning) {
      json.key("summary").open_array().close_array().key("encrypted_content").null();
    } else {
      json.key("role").string("assistant");
    }
    json.key("content").open_array();
    if (is_done) write_part(item_idx, is_done, json);
    json.close_array();
  }
  json.key("status").string(!is_done ? "in_progress" : is_cut ? "incomplete" : "completed");
  json.close_object();
}

// `usage`: null before the end.
std::string ResponsesFormat::response_json(Status status,
                                           const Usage* usage,
                                           const Error* error) const {
  constexpr std::string_view kNames[] = {"in_progress", "completed", "incomplete", "failed"};
  std::string out;
  JsonWriter json(out);
  json.open_object().key("id").string(id_).key("object").string("response");
  json.key("created_at").integer(created_);
  json.key("status").string(kNames[static_cast<size_t>(status)]);
  write_error(error, json.key("error"));
  json.key("incomplete_details");
  if (status == Status::kIncomplete) {
    json.open_object().key("reason").string("max_output_tokens").close_object();
  } else {
    json.null();
  }
  json.key("model").string(model_).key("output").open_array();
  for (size_t i = 0; usage != nullptr && i < parts_.size(); ++i) write_item(i, true, json);
  json.close_array().key("usage");
  if (usage != nullptr) {
    write_usage(*usage, json);
  } else {
    json.null();
  }
  out += record_.settings;
  json.close_object();
  return out;
}

// The conversation continues with this answer.
void ResponsesFormat::store(const std::string& response) const {
  if (record_.store == nullptr) return;
  std::string messages = record_.messages;
  messages.pop_back();  // its bracket
  if (messages.size() > 1) messages += ',';
  JsonWriter json(messages);
  json.open_object().key("role").string("assistant");
  json.key("content").string(record_.begun + joined_text(parts_, PieceKind::kContent));
  const std::string reasoning =
      record_.begun_reasoning + joined_text(parts_, PieceKind::kReasoning);
  if (!reasoning.empty()) json.key("reasoning_content").string(reasoning);
  bool has_calls = false;
  for (const AnswerPart& part : parts_) {
    if (part.kind != PieceKind::kCallBegin) continue;
    if (!has_calls) json.key("tool_calls").open_array();
    has_calls = true;
    json.open_object().key("id").string(part.id).key("type").string("function");
    json.key("function").open_object().key("name").string(part.name);
    json.key("arguments").string(part.text).close_object().close_object();
  }
  if (has_calls) json.close_array();
  json.close_object();
  messages += ']';
  StoredResponse stored{response, std::move(messages), record_.items, {}, record_.input};
  size_t at = 0;
  for (size_t i = 0; i < parts_.size(); ++i) {
    std::string item;
    JsonWriter item_json(item);
    write_item(i, true, item_json);
    at = response.find(item, at);
    stored.output.push_back({item_id(i), at, item.size()});
    at += item.size();
  }
  record_.store->put(record_.tenant, id_, std::move(stored));
}

std::string ResponsesFormat::whole(std::span<const size_t>, const Usage& usage) {
  std::string response = response_json(status_, &usage);
  store(response);
  // It is for the worker that continues with the KV now, and not stored.
  if (!kv_params_.empty()) {
    response.pop_back();
    response += ",\"kv_transfer_params\":" + kv_params_ + '}';
  }
  return response;
}

void ResponsesFormat::begin_event(std::string_view type, std::string& out) {
  out += "event: ";
  out += type;
  out += "\ndata: {\"type\":\"";
  out += type;
  out += "\",\"sequence_number\":" + std::to_string(num_events_++);
}

void ResponsesFormat::append_response(std::string_view type,
                                      const std::string& response,
                                      std::string& out) {
  begin_event(type, out);
  out += ",\"response\":" + response + "}\n\n";
}

void ResponsesFormat::append_start(std::string& out) {
  if (started_) return;
  started_ = true;
  const std::string response = response_json(Status::kInProgress, nullptr);
  append_response("response.created", response, out);
  append_response("response.in_progress", response, out);
}

void ResponsesFormat::append_events(const ChoiceDelta& delta, const Usage&, std::string& out) {
  const bool is_end = delta.finish_reason != FinishReason::kNone;
  if (delta.pieces.empty() && !is_end) return;
  append_start(out);
  for (size_t i = 0; i < delta.pieces.size(); ++i) {
    const Piece& piece = delta.pieces[i];
    append_piece(piece, out);
  }
  note_end(delta);
  if (is_end) end_item(out);
}

void ResponsesFormat::append_piece(const Piece& piece, std::string& out) {
  const bool is_text = piece.kind == PieceKind::kReasoning || piece.kind == PieceKind::kContent;
  const bool is_new = piece.kind == PieceKind::kCallBegin ||
                      (is_text && (!has_open_ || parts_.back().kind != piece.kind));
  if (is_new) end_item(out);
  add(piece);
  if (is_new) begin_item(out);
  switch (piece.kind) {
    case PieceKind::kReasoning:
      return append_text_event("response.reasoning_text.delta", "delta", piece.text, out);
    case PieceKind::kContent:
      return append_text_event("response.output_text.delta", "delta", piece.text, out);
    case PieceKind::kArguments:
      // A custom tool's input is known once its arguments are whole.
      if (is_custom(tool_of(parts_.back()))) return;
      return append_text_event("response.function_call_arguments.delta", "delta", piece.text, out);
    case PieceKind::kCallEnd:
      return end_item(out);
    case PieceKind::kCallBegin:
      break;
  }
}

void ResponsesFormat::append_item(std::string_view type, bool is_done, std::string& out) {
  begin_event(type, out);
  const size_t item_idx = parts_.size() - 1;
  out += ",\"output_index\":" + std::to_string(item_idx) + ",\"item\":";
  JsonWriter json(out);
  write_item(item_idx, is_done, json);
  out += "}\n\n";
}

void ResponsesFormat::begin_item_event(std::string_view type, std::string& out) {
  begin_event(type, out);
  out += ",\"item_id\":\"" + item_id(parts_.size() - 1) +
         "\",\"output_index\":" + std::to_string(parts_.size() - 1);
}

void ResponsesFormat::append_part(std::string_view type, bool is_done, std::string& out) {
  begin_item_event(type, out);
  out += ",\"content_index\":0,\"part\":";
  JsonWriter json(out);
  write_part(parts_.size() - 1, is_done, json);
  out += "}\n\n";
}

void ResponsesFormat::append_text_event(std::string_view type,
                                        std::string_view member,
                                        std::string_view text,
                                        std::string& out) {
  const PieceKind kind = parts_.back().kind;
  begin_item_event(type, out);
  if (kind != PieceKind::kCallBegin) out += ",\"content_index\":0";
  if (kind == PieceKind::kContent) {
    out += ",\"logprobs\":[" + (member == "delta" ? new_logprobs_ : event_logprobs_.back()) + "]";
  }
  out += ",\"";
  out += member;
  out += "\":";
  append_json_string(out, text);
  out += "}\n\n";
}

void ResponsesFormat::end_call(std::string& out) {
  const AnswerPart& part = parts_.back();
  const ResponseTool* tool = tool_of(part);
  if (is_custom(tool)) {
    const std::string input = custom_input(part.text);
    append_text_event("response.custom_tool_call_input.delta", "delta", input, out);
    return append_text_event("response.custom_tool_call_input.done", "input", input, out);
  }
  begin_item_event("response.function_call_arguments.done", out);
  out += ",\"arguments\":";
  append_json_string(out, part.text);
  out += ",\"name\":";
  append_json_string(out, tool != nullptr ? tool->name : part.name);
  out += "}\n\n";
}

void ResponsesFormat::begin_item(std::string& out) {
  has_open_ = true;
  append_item("response.output_item.added", /*is_done=*/false, out);
  if (parts_.back().kind != PieceKind::kCallBegin) {
    append_part("response.content_part.added", /*is_done=*/false, out);
  }
}

void ResponsesFormat::end_item(std::string& out) {
  if (!has_open_) return;
  has_open_ = false;
  const std::string& text = parts_.back().text;
  switch (parts_.back().kind) {
    case PieceKind::kCallBegin:
      end_call(out);
      break;
    case PieceKind::kReasoning:
      append_text_event("response.reasoning_text.done", "text", text, out);
      append_part("response.content_part.done", /*is_done=*/true, out);
      break;
    default:
      append_text_event("response.output_text.done", "text", text, out);
      append_part("response.content_part.done", /*is_done=*/true, out);
      break;
  }
  append_item("response.output_item.done", /*is_done=*/true, out);
}

void ResponsesFormat::append_end(const Usage& usage, std::string& out) {
  const std::string response = response_json(status_, &usage);
  store(response);
  const bool is_cut = status_ == Status::kIncomplete;
  append_response(is_cut ? "response.incomplete" : "response.completed", response, out);
}

void ResponsesFormat::append_error(const Error& error, std::string& out) {
  append_start(out);
  append_response("response.failed", response_json(Status::kFailed, nullptr, &error), out);
}

}  // namespace sluice
