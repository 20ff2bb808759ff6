// SPDX-License-Identifier: Apache-2.0
// Answers of /v1/chat/completions: a message for each choice, or its deltas, each with one kind of
// piece. Lives on the answer's I/O thread.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "server/api/answer_parts.h"
#include "server/api/openai_format.h"

namespace sluice {

class ChatFormat final : public OpenAiFormat {
 public:
  ChatFormat(std::shared_ptr<const ServedModel> served, std::string_view model);

  void prepare(const GenerationRequest& request) override;
  void keep(const ChoiceDelta& delta) override;
  void append_events(const ChoiceDelta& delta, const Usage& usage, std::string& out) override;

 private:
  void write_choice(size_t choice_idx, size_t prompt_idx, JsonWriter& json) override;
  void write_after_choices(JsonWriter& json) override;
  void append_role_event(size_t choice_idx, const Usage& usage, std::string& out);
  void write_delta(size_t choice_idx, const Piece& piece, JsonWriter& json) const;

  std::vector<AnswerParts> messages_;  // by choice, for a whole answer
  std::vector<bool> has_role_;         // by choice: its role event is written
};

}  // namespace sluice
