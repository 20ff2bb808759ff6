// SPDX-License-Identifier: Apache-2.0
// Bytes of an HTTP client through what reads requests for vectors and scores: parameters, rules,
// texts and pairs. The first byte picks the endpoint.
#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "server/api/pooled_inputs.h"
#include "server/api/text_pairs.h"
#include "server/json/json_fields.h"
#include "server/json/json_reader.h"
#include "tests/fuzz/request_oracle.h"
#include "tests/fuzz/target.h"

namespace sluice {
namespace {

using Json = nlohmann::ordered_json;

const ModelInfo& pooled_model() {
  static const ModelInfo model = [] {
    ModelInfo info = fuzz_context().model;
    PoolingInfo& pooling = info.pooling.emplace();
    pooling.width = 8;
    pooling.max_tokens = 64;
    pooling.has_segments = true;
    return info;
  }();
  return model;
}

// The context of requests with a model that makes vectors of texts of at most 64 tokens.
const ValidationContext& pooled_context() {
  const ValidationContext& base = fuzz_context();
  static const ValidationContext context{base.config,
                                         pooled_model(),
                                         base.tokenizer,
                                         base.chat_template,
                                         base.model_names,
                                         1,
                                         0,
                                         {},
                                         base.families};
  return context;
}

void check_error(const Error& error) {
  require(!error.message.empty() && error.message.find('\n') == std::string::npos);
}

void check_ids(const std::vector<TokenId>& ids) {
  const PoolingInfo& info = *pooled_model().pooling;
  require(!ids.empty() && ids.size() <= static_cast<size_t>(info.max_tokens));
  const int32_t segments = info.has_segments ? 2 : 1;
  for (const TokenId id : ids) require(id >= 0 && id < segments * pooled_model().vocab_size);
}

void read_pair(const Json& body, const InputRules& rules) {
  const Json* const query = find_field(body, "query");
  const Json* const document = find_field(body, "document");
  if (query == nullptr || document == nullptr || !query->is_string() || !document->is_string()) {
    return;
  }
  std::optional<JudgeForm> form;
  const auto front =
      pair_front(pooled_context(), rules, form, query->get_ref<const std::string&>());
  if (!front) return check_error(front.error());
  const auto pair = encode_pair(
      pooled_context(), rules, *front, document->get_ref<const std::string&>(), -1);
  return pair ? check_ids(*pair) : check_error(pair.error());
}

void read(Json& body) {
  const ValidationContext& context = pooled_context();
  const auto info = pooling_of(context, PooledKind::kAny);
  require(info.has_value());
  const auto rules = read_input_rules(context, *info, body, "document");
  if (rules) read_pair(body, *rules);
  auto texts = read_texts(context, *info, body);
  if (!texts) return check_error(texts.error());
  for (const std::vector<TokenId>& ids : *texts) check_ids(ids);
  const auto request = make_pooled_request(context, body, {}, std::move(*texts));
  if (!request) check_error(request.error());
}

}  // namespace
}  // namespace sluice

static int pooled_request_input(const uint8_t* data, size_t size) {
  using namespace sluice;
  if (size == 0) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  auto body = parse_json(text, pooled_context().config.max_json_depth);
  if (!body || !body->is_object()) return 0;
  constexpr Endpoint kEndpoints[] = {
      Endpoint::kEmbeddings, Endpoint::kRerank, Endpoint::kScore, Endpoint::kCohereEmbed};
  IgnoredArguments ignored(UnknownArguments::kIgnore);
  const auto checked = check_parameters(*body, kEndpoints[data[0] % 4], ignored);
  check_header_value(ignored);
  if (checked) {
    read(*body);
  } else {
    check_error(checked.error());
  }
  return 0;
}

const sluice::fuzz::Target pooled_request_target("pooled_request_fuzz", pooled_request_input);
