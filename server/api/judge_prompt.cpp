// SPDX-License-Identifier: Apache-2.0
#include "server/api/judge_prompt.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "engine/core/config.h"
#include "server/api/request_validator.h"
#include "server/json/json_fields.h"
#include "server/prompt/prompt.h"

namespace sluice {
namespace {

using Json = nlohmann::ordered_json;
using Spans = std::vector<RenderedSpan>;

// The conversation by which Qwen3-Reranker was trained to answer "yes" or "no".
constexpr std::string_view kQwen3Before =
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query "
    "and the Instruct provided. Note that the answer can only be \"yes\" or \"no\".<|im_end|>\n"
    "<|im_start|>user\n<Instruct>: ";
constexpr std::string_view kQwen3Instruction =
    "Given a web search query, retrieve relevant passages that answer the query";
constexpr std::string_view kQwen3Query = "\n<Query>: ";
constexpr std::string_view kQwen3Between = "\n<Document>: ";
constexpr std::string_view kQwen3After =
    "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n";

Spans qwen3_spans(std::string_view own_instruction,
                  std::string_view query,
                  std::string_view document) {
  std::string before(kQwen3Before);
  before += own_instruction.empty() ? kQwen3Instruction : own_instruction;
  before += kQwen3Query;
  return {{.text = std::move(before), .from_template = true},
          {.text = std::string(query), .from_template = false},
          {.text = std::string(kQwen3Between), .from_template = true},
          {.text = std::string(document), .from_template = false},
          {.text = std::string(kQwen3After), .from_template = true}};
}

struct Turn {
  std::string_view role;
  std::string_view text;
};

Expected<Spans> render(const ValidationContext& context,
                       JudgeForm form,
                       const Turn& first,
                       const Turn& second) {
  Json messages = Json::array();
  const auto add = [&](const Turn& turn) {
    const Json part = {{"type", "text"}, {"text", turn.text}};
    const Json content = form == JudgeForm::kParts ? Json::array({part}) : Json(turn.text);
    messages.push_back({{"role", turn.role}, {"content", content}});
  };
  const std::string& instruction = context.model.pooling->default_prompt;
  if (!instruction.empty()) add({"system", instruction});
  add(first);
  add(second);
  Json variables = Json::object();
  variables["messages"] = std::move(messages);
  variables["tools"] = nullptr;
  variables["documents"] = nullptr;
  variables["add_generation_prompt"] = context.model.pooling->begins_answer;
  add_special_token_names(context.tokenizer, variables);
  return context.chat_template->render(variables);
}

constexpr std::string_view kFirstWord = "mandolin";
constexpr std::string_view kSecondWord = "zeppelin";

bool has_both(const Expected<Spans>& spans) {
  if (!spans) return false;
  std::string inputs;
  for (const RenderedSpan& span : *spans) inputs += span.from_template ? "" : span.text;
  return inputs.find(kFirstWord) != std::string::npos &&
         inputs.find(kSecondWord) != std::string::npos;
}

// A template that shows turns of any role is one of chats, in which no model was trained to judge,
// unless --chat-template names it.
bool is_for_pairs(const ValidationContext& context, JudgeForm form) {
  if (!has_both(render(context, form, {"query", kFirstWord}, {"document", kSecondWord}))) {
    return false;
  }
  if (!context.config.chat_template.empty()) return true;
  return !has_both(render(context, form, {"first", kFirstWord}, {"second", kSecondWord}));
}

}  // namespace

Expected<JudgeForm> judge_form(const ValidationContext& context) {
  if (context.chat_template) {
    for (const JudgeForm form : {JudgeForm::kTexts, JudgeForm::kParts}) {
      if (is_for_pairs(context, form)) return form;
    }
  }
  if (context.model.pooling->is_qwen3_reranker) return JudgeForm::kQwen3;
  return unsupported(
      "The model `" + context.model_names.front() +
          "` does not say how it was trained to score pairs: its chat template has no roles `query` "
          "and `document`. --chat-template names one that has, or --hf-overrides "
          "'{\"is_original_qwen3_reranker\": true}' says that the model is Qwen3-Reranker.",
      "model");
}

Expected<Spans> judge_spans(const ValidationContext& context,
                            JudgeForm form,
                            std::string_view query,
                            std::string_view document) {
  if (form == JudgeForm::kQwen3) {
    return qwen3_spans(context.model.pooling->default_prompt, query, document);
  }
  auto spans = render(context, form, {"query", query}, {"document", document});
  if (spans) return spans;
  return invalid("The chat template failed: " + spans.error().message, "model");
}

}  // namespace sluice
