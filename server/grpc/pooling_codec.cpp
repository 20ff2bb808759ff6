// SPDX-License-Identifier: Apache-2.0
#include "server/grpc/pooling_codec.h"

#include <worker.pb.h>

#include <string>

namespace sluice {
namespace {

void encode(const ComparedSide& from, worker::v1::ComparedSide& to) {
  const auto& [prompt, marker, max_tokens, skipped] = from;
  to.set_prompt(prompt);
  to.set_marker(marker);
  to.set_max_tokens(max_tokens);
  to.mutable_skipped()->Add(skipped.begin(), skipped.end());
}

ComparedSide decode(const worker::v1::ComparedSide& from) {
  ComparedSide to;
  auto& [prompt, marker, max_tokens, skipped] = to;
  prompt = from.prompt();
  marker = from.marker();
  max_tokens = from.max_tokens();
  skipped.assign(from.skipped().begin(), from.skipped().end());
  return to;
}

}  // namespace

void encode(const PoolingParams& from, worker::v1::PoolingParams& to) {
  const auto& [every_token, activates, forces_scale, dimensions] = from;
  to.set_every_token(every_token);
  to.set_activates(activates);
  to.set_forces_scale(forces_scale);
  to.set_dimensions(dimensions);
}

PoolingParams decode(const worker::v1::PoolingParams& from) {
  PoolingParams to;
  auto& [every_token, activates, forces_scale, dimensions] = to;
  every_token = from.every_token();
  activates = from.activates();
  forces_scale = from.forces_scale();
  dimensions = from.dimensions();
  return to;
}

void encode(const PoolingInfo& from, worker::v1::PoolingInfo& to) {
  const auto& [is_classifier,
               type,
               normalizes,
               width,
               max_tokens,
               has_segments,
               is_matryoshka,
               matryoshka_dimensions,
               function,
               labels,
               label_tokens,
               is_qwen3_reranker,
               begins_answer,
               prompts,
               default_prompt,
               comparison] = from;
  to.set_is_classifier(is_classifier);
  to.set_type(static_cast<uint32_t>(type));
  to.set_normalizes(normalizes);
  to.set_width(width);
  to.set_max_tokens(max_tokens);
  to.set_has_segments(has_segments);
  to.set_is_matryoshka(is_matryoshka);
  to.mutable_matryoshka_dimensions()->Add(matryoshka_dimensions.begin(),
                                          matryoshka_dimensions.end());
  to.set_function(static_cast<uint32_t>(function));
  for (const std::string& label : labels) to.add_labels(label);
  to.mutable_label_tokens()->Add(label_tokens.begin(), label_tokens.end());
  to.set_is_qwen3_reranker(is_qwen3_reranker);
  to.set_begins_answer(begins_answer);
  for (const NamedPrompt& prompt : prompts) {
    worker::v1::NamedPrompt& added = *to.add_prompts();
    added.set_name(prompt.name);
    added.set_text(prompt.text);
  }
  to.set_default_prompt(default_prompt);
  const auto& [query, document, expansion, expanded_tokens] = comparison;
  encode(query, *to.mutable_query());
  encode(document, *to.mutable_document());
  to.set_expansion(expansion);
  to.set_expanded_tokens(expanded_tokens);
}

Expected<PoolingInfo> decode(const worker::v1::PoolingInfo& from) {
  PoolingInfo to;
  auto& [is_classifier,
         type,
         normalizes,
         width,
         max_tokens,
         has_segments,
         is_matryoshka,
         matryoshka_dimensions,
         function,
         labels,
         label_tokens,
         is_qwen3_reranker,
         begins_answer,
         prompts,
         default_prompt,
         comparison] = to;
  is_classifier = from.is_classifier();
  if (from.type() > static_cast<uint32_t>(PoolingType::kWeightedMean) ||
      from.function() > static_cast<uint32_t>(ScoreFunction::kSoftmax)) {
    return make_error(ErrorCode::kInvalidArgument,
                      "A message between router and worker has an unknown way to pool.");
  }
  type = static_cast<PoolingType>(from.type());
  normalizes = from.normalizes();
  width = from.width();
  max_tokens = from.max_tokens();
  has_segments = from.has_segments();
  is_matryoshka = from.is_matryoshka();
  matryoshka_dimensions.assign(from.matryoshka_dimensions().begin(),
                               from.matryoshka_dimensions().end());
  function = static_cast<ScoreFunction>(from.function());
  labels.assign(from.labels().begin(), from.labels().end());
  label_tokens.assign(from.label_tokens().begin(), from.label_tokens().end());
  is_qwen3_reranker = from.is_qwen3_reranker();
  begins_answer = from.begins_answer();
  for (const worker::v1::NamedPrompt& prompt : from.prompts()) {
    prompts.push_back({.name = prompt.name(), .text = prompt.text()});
  }
  default_prompt = from.default_prompt();
  auto& [query, document, expansion, expanded_tokens] = comparison;
  query = decode(from.query());
  document = decode(from.document());
  expansion = from.expansion();
  expanded_tokens = from.expanded_tokens();
  return to;
}

}  // namespace sluice
