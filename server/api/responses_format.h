// SPDX-License-Identifier: Apache-2.0
// Answers of OpenAI's Responses API: a response object with its output items, or its numbered
// events. Items do not interleave: each is added, grown and done before the next. Lives on the
// answer's I/O thread.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "server/api/answer_format.h"
#include "server/api/answer_parts.h"
#include "server/api/logprobs.h"
#include "server/api/request_validator.h"
#include "server/api/response_tools.h"
#include "server/front/response_store.h"

namespace sluice {

class JsonWriter;

// The answer's copy of the request's settings, and the store that keeps it.
struct ResponseRecord {
  std::string settings;  // JSON members that repeat the request, with a comma before each
  std::string messages;  // JSON: the conversation so far, an array, without instructions
  std::string begun;     // text of an answer that the request has begun, and this one goes on with
  std::string begun_reasoning;      // thoughts of that answer
  std::string items;                // JSON: the request's own input items, an array
  std::vector<StoredItem> input;    // its elements
  std::vector<ResponseTool> tools;  // the request's, for the client's names of calls
  uint64_t tenant = 0;
  ResponseStore* store = nullptr;  // null: the answer is not kept
};

// Returns ResponseRecord::settings. `body`: see chat_of_responses(); `sampling`: how its tokens are
// chosen; `is_bounded`: the client or the server bounds the answer within the context.
std::string response_settings(const nlohmann::ordered_json& body,
                              bool is_stored,
                              const SamplingParams& sampling,
                              bool is_bounded);

class ResponsesFormat final : public AnswerFormat {
 public:
  ResponsesFormat(const Tokenizer& tokenizer,
                  const GenerationRequest& request,
                  ResponseRecord record);

  [[nodiscard]] const std::string& id() const override { return id_; }

  void prepare(const GenerationRequest& request) override { request_ = &request; }

  void add_prompt(size_t, std::span<const PromptLogprob>) override {}

  void add_token(size_t, const TokenOutput& output) override;

  void keep(const ChoiceDelta& delta) override;
  std::string whole(std::span<const size_t> returned, const Usage& usage) override;
  void append_events(const ChoiceDelta& delta, const Usage& usage, std::string& out) override;
  void append_end(const Usage& usage, std::string& out) override;
  void append_error(const Error& error, std::string& out) override;

 private:
  enum class Status : uint8_t { kInProgress, kCompleted, kIncomplete, kFailed };

  void note_end(const ChoiceDelta& delta);
  void add(const Piece& piece);
  [[nodiscard]] const ResponseTool* tool_of(const AnswerPart& part) const;
  void write_call(const AnswerPart& part, bool is_done, JsonWriter& json) const;
  void write_part(size_t item_idx, bool is_done, JsonWriter& json) const;
  void begin_item_event(std::string_view type, std::string& out);
  void end_call(std::string& out);
  [[nodiscard]] std::string item_id(size_t item_idx) const;
  void write_item(size_t item_idx, bool is_done, JsonWriter& json) const;
  [[nodiscard]] std::string response_json(Status status,
                                          const Usage* usage,
                                          const Error* error = nullptr) const;
  void store(const std::string& response) const;
  void begin_event(std::string_view type, std::string& out);
  void append_response(std::string_view type, const std::string& response, std::string& out);
  void append_start(std::string& out);
  void append_piece(const Piece& piece, std::string& out);
  void begin_item(std::string& out);
  void append_item(std::string_view type, bool is_done, std::string& out);
  void append_part(std::string_view type, bool is_done, std::string& out);
  void append_text_event(std::string_view type,
                         std::string_view member,
                         std::string_view text,
                         std::string& out);
  void end_item(std::string& out);

  const std::string id_;
  const std::string model_;
  const int64_t created_;
  const ResponseRecord record_;
  const GenerationRequest* request_ = nullptr;
  AnswerParts parts_;    // one for each item
  LogprobsText tokens_;  // since the last piece; in the next too, in the form of events
  LogprobsText event_tokens_;
  std::string new_logprobs_;                 // of the last piece, for its event: JSON list items
  std::vector<std::string> logprobs_;        // of each part
  std::vector<std::string> event_logprobs_;  // of each part, for its last event
  Status status_ = Status::kInProgress;
  std::string kv_params_;  // JSON; empty: none
  bool started_ = false;   // response.created is written
  bool has_open_ = false;  // the last item is still growing
  int64_t num_events_ = 0;
};

}  // namespace sluice
