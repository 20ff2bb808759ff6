// SPDX-License-Identifier: Apache-2.0
// The fixture Validator: bodies of requests against a model of bytes.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <vector>

#include "engine/core/config.h"
#include "server/api/parameters.h"
#include "server/api/request_validator.h"
#include "tests/support/byte_tokenizer.h"

namespace sluice {

class Validator : public ::testing::Test {
 protected:
  Validator() {
    model_.vocab_size = ByteTokenizer::kVocabSize;
    model_.max_model_len = 100;
  }

  Expected<GenerationRequest> validate(const std::string& body, Endpoint endpoint) {
    const ValidationContext context{
        config_, model_, tokenizer_, template_, names_, 7, 0, std::chrono::steady_clock::now()};
    return validate_generation(context, body, endpoint, ignored_);
  }

  // Members beside a valid prompt.
  Expected<GenerationRequest> completion(const std::string& members) {
    return validate(R"({"prompt":"x",)" + members + "}", Endpoint::kCompletion);
  }

  Expected<GenerationRequest> chat(const std::string& members) {
    return validate(R"({"messages":[{"role":"user","content":"x"}],)" + members + "}",
                    Endpoint::kChat);
  }

  Config config_;
  IgnoredArguments ignored_{UnknownArguments::kRefuse};
  ModelInfo model_;
  ByteTokenizer tokenizer_;
  std::vector<std::string> names_ = {"m", "n"};
  Expected<ChatTemplate> template_ = ChatTemplate::compile(
      "{% for m in messages %}{{ m.role }}:{{ m.content }}{% endfor %}"
      "{% if add_generation_prompt %}>{% endif %}");
};

}  // namespace sluice
