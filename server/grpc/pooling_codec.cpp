// SPDX-License-Identifier: Apache-2.0
#include "server/grpc/pooling_codec.h"

#include <worker.pb.h>

#include <string>

namespace sluice {

void encode(const PoolingParams& from, worker::v1::PoolingParams& to) {
  const auto& [every_token, activates, dimensions] = from;
  to.set_every_token(every_token);
  to.set_activates(activates);
  to.set_dimensions(dimensions);
}

PoolingParams decode(const worker::v1::PoolingParams& from) {
  PoolingParams to;
  auto& [every_token, activates, dimensions] = to;
  every_token = from.every_token();
  activates = from.activates();
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
               label_tokens] = from;
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
         label_tokens] = to;
  is_classifier = from.is_classifier();
  if (from.type() > static_cast<uint32_t>(PoolingType::kEvery) ||
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
  return to;
}

}  // namespace sluice
