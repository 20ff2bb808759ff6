// SPDX-License-Identifier: Apache-2.0
// Answers of Anthropic's Messages API: a message of content blocks, or its events. Blocks do not
// interleave: each is started, grown and stopped before the next. Lives on the answer's I/O thread.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "server/api/answer_format.h"
#include "server/api/answer_parts.h"
#include "server/api/request_validator.h"

namespace sluice {

class JsonWriter;

class MessagesFormat final : public AnswerFormat {
 public:
  // `omits_thinking`: blocks of thinking have no text.
  MessagesFormat(std::string_view model, bool omits_thinking);

  [[nodiscard]] const std::string& id() const override { return id_; }

  void prepare(const GenerationRequest& request) override;

  void add_prompt(size_t, std::span<const PromptLogprob>) override {}

  void add_token(size_t, const TokenOutput&) override {}

  void keep(const ChoiceDelta& delta) override;
  std::string whole(std::span<const size_t> returned, const Usage& usage) override;
  void append_events(const ChoiceDelta& delta, const Usage& usage, std::string& out) override;
  void append_end(const Usage& usage, std::string& out) override;
  void append_error(const Error& error, std::string& out) override;
  void append_ping(std::string& out) override;

 private:
  void note_end(const ChoiceDelta& delta);
  [[nodiscard]] std::string call_name(const Piece& piece) const;
  void write_block(const AnswerPart& part, JsonWriter& json) const;
  void write_head(JsonWriter& json) const;
  void write_stop(JsonWriter& json) const;
  void append_start(const Usage& usage, std::string& out);
  void append_piece(const Piece& piece, std::string& out);
  void start_block(const Piece& piece, std::string& out);
  void append_delta(std::string_view type,
                    std::string_view member,
                    std::string_view text,
                    std::string& out) const;
  void stop_block(std::string& out);

  const std::string id_;
  const std::string model_;
  const bool omits_thinking_;
  const GenerationRequest* request_ = nullptr;
  AnswerParts parts_;  // for a whole answer
  std::string_view stop_reason_;
  std::optional<std::string> stop_sequence_;
  bool started_ = false;  // message_start is written
  int64_t num_blocks_ = 0;
  std::optional<PieceKind> open_;  // kind of the current block, as in AnswerPart
};

}  // namespace sluice
