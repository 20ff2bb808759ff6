// SPDX-License-Identifier: Apache-2.0
// Answers of /v1/completions: a text for each choice. Lives on the answer's I/O thread.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "server/api/openai_format.h"

namespace sluice {

class CompletionsFormat final : public OpenAiFormat {
 public:
  CompletionsFormat(std::shared_ptr<const ServedModel> served, std::string_view model);

  void prepare(const GenerationRequest& request) override;
  void keep(const ChoiceDelta& delta) override;
  void append_events(const ChoiceDelta& delta, const Usage& usage, std::string& out) override;

 private:
  void write_choice(size_t choice_idx, size_t prompt_idx, JsonWriter& json) override;

  void write_after_choices(JsonWriter&) override {}

  std::vector<std::string> texts_;  // by choice, for a whole answer
  std::vector<bool> has_begun_;     // by choice, for a stream: an event is written
};

}  // namespace sluice
