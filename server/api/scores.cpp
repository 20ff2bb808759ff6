// SPDX-License-Identifier: Apache-2.0
// POST /v1/rerank and its other names, /score, /similarity and /classify: how texts belong together
// and what they are, in the shapes of Jina, Cohere, vLLM and TEI. A model of vectors answers all
// but the last with the cosine of the texts' vectors, or, where each token has one, with their late
// interaction (ColBERT): the sum, over the query's tokens, of the best product with a token of the
// document.
#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engine/core/config.h"
#include "engine/tokenizer/detokenizer.h"
#include "server/api/pooled_json.h"
#include "server/api/pooling_run.h"
#include "server/api/request_validator.h"
#include "server/api/text_pairs.h"
#include "server/front/front_end.h"
#include "server/json/json_fields.h"
#include "server/json/json_reader.h"
#include "server/json/json_writer.h"

namespace sluice {
namespace {

using Json = nlohmann::ordered_json;
using Prompts = std::vector<std::vector<TokenId>>;

float cosine(std::span<const float> a, std::span<const float> b) {
  double dot = 0;
  double square_a = 0;
  double square_b = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    dot += static_cast<double>(a[i]) * static_cast<double>(b[i]);
    square_a += static_cast<double>(a[i]) * static_cast<double>(a[i]);
    square_b += static_cast<double>(b[i]) * static_cast<double>(b[i]);
  }
  const double lengths = std::sqrt(square_a) * std::sqrt(square_b);
  return lengths > 0 ? static_cast<float>(dot / lengths) : 0;
}

// Products that late interaction may take for one answer: about a second of an I/O thread.
constexpr int64_t kMostProducts = int64_t{1} << 30;

float late_interaction(std::span<const float> query,
                       std::span<const float> document,
                       size_t width) {
  double sum = 0;
  for (size_t q = 0; q < query.size(); q += width) {
    double best = -std::numeric_limits<double>::infinity();
    for (size_t d = 0; d < document.size(); d += width) {
      double dot = 0;
      for (size_t i = 0; i < width; ++i) {
        dot += static_cast<double>(query[q + i]) * static_cast<double>(document[d + i]);
      }
      best = std::max(best, dot);
    }
    sum += best;
  }
  return static_cast<float>(sum);
}

// Pairs of texts, and the input that each becomes: one of both, or one of each text where vectors
// are compared.
struct Pairs {
  std::vector<std::string> first;   // as many as `second`, or one for all
  std::vector<std::string> second;
  std::string first_name;  // the field of `first`, for errors
};

Expected<std::string> text_of(const Json& value, const std::string& place, std::string_view param) {
  if (value.is_string()) return value.get<std::string>();
  const Json* const text = value.is_object() ? find_field(value, "text") : nullptr;
  if (text != nullptr && text->is_string()) return text->get<std::string>();
  return invalid(place + " must be a string or an object with a text, got " + show_value(value) + ".",
                 param);
}

Expected<std::vector<std::string>> texts_of(const ValidationContext& context,
                                            const Json& value,
                                            const std::string& name) {
  std::vector<std::string> texts;
  if (!value.is_array()) {
    SLUICE_TRY(std::string text, text_of(value, name, name));
    texts.push_back(std::move(text));
    return texts;
  }
  SLUICE_TRY_VOID(check_num_texts(context, name, value.size()));
  for (size_t i = 0; i < value.size(); ++i) {
    SLUICE_TRY(std::string text, text_of(value[i], name + "[" + std::to_string(i) + "]", name));
    texts.push_back(std::move(text));
  }
  return texts;
}

// What is asked for is a text; a document may have none.
Expected<void> check_queries(const std::vector<std::string>& texts, const std::string& name) {
  if (std::ranges::none_of(texts, &std::string::empty)) return {};
  return invalid(name + " must not be empty.", name);
}

// kInvalidArgument: late interaction of these would take too long.
Expected<void> check_products(const PoolingInfo& info,
                              const Prompts& prompts,
                              size_t num_first,
                              const std::string& param) {
  if (info.type != PoolingType::kEvery) return {};
  int64_t products = 0;
  for (size_t i = num_first; i < prompts.size(); ++i) {
    const size_t query = prompts[num_first == 1 ? 0 : i - num_first].size();
    products += static_cast<int64_t>(query * prompts[i].size()) * info.width;
  }
  if (products <= kMostProducts) return {};
  return invalid("The texts would take " + std::to_string(products) +
                     " products to compare, the most are " + std::to_string(kMostProducts) +
                     "; send fewer or shorter ones.",
                 param);
}

Expected<Prompts> encode_pairs(const ValidationContext& context,
                               const PoolingInfo& info,
                               const InputRules& rules,
                               const Pairs& pairs) {
  Prompts prompts;
  if (!info.is_classifier) {
    for (const TextSide side : {TextSide::kQuery, TextSide::kDocument}) {
      const bool is_query = side == TextSide::kQuery;
      const auto& texts = is_query ? pairs.first : pairs.second;
      InputRules own = rules;
      own.takes_empty = !is_query;
      if (is_query) own.param = pairs.first_name;
      if (!is_query) own.cuts = rules.cuts || rules.cuts_documents;
      if (info.type == PoolingType::kEvery) apply_side(info, side, own);
      for (size_t i = 0; i < texts.size(); ++i) {
        const bool is_only = is_query && texts.size() == 1;
        const int64_t index = is_only ? -1 : static_cast<int64_t>(i);
        SLUICE_TRY(auto ids, encode_input(context, own, texts[i], index));
        prompts.push_back(std::move(ids));
      }
    }
    SLUICE_TRY_VOID(check_products(info, prompts, pairs.first.size(), rules.param));
    return prompts;
  }
  const size_t num_sharing = pairs.second.size() / pairs.first.size();
  PairFront front;
  std::optional<JudgeForm> form;
  for (size_t i = 0; i < pairs.second.size(); ++i) {
    if (i < pairs.first.size()) {
      SLUICE_TRY(front, pair_front(context, rules, form, pairs.first[i], num_sharing));
    }
    SLUICE_TRY(auto ids,
               encode_pair(context, rules, front, pairs.second[i], static_cast<int64_t>(i)));
    prompts.push_back(std::move(ids));
  }
  return prompts;
}

// Makes the engine's requests of encoded pairs.
Expected<PooledRequest> request_of(const ValidationContext& context,
                                   const Json& body,
                                   const PoolingInfo& info,
                                   const PoolingParams& params,
                                   size_t num_first,
                                   Prompts prompts) {
  SLUICE_TRY(PooledRequest request, make_pooled_request(context, body, params, std::move(prompts)));
  if (info.type != PoolingType::kEvery) return request;
  for (size_t i = 0; i < request.requests.size(); ++i) {
    leave_out(info, i < num_first ? TextSide::kQuery : TextSide::kDocument, i, request);
  }
  return request;
}

// Returns the score of each pair. `num_first`: of the texts whose vectors are first.
std::vector<float> scores_of(const PoolingInfo& info,
                             const std::vector<std::vector<float>>& vectors,
                             size_t num_first) {
  std::vector<float> scores;
  if (info.is_classifier) {
    for (const std::vector<float>& vector : vectors) scores.push_back(vector.front());
    return scores;
  }
  for (size_t i = num_first; i < vectors.size(); ++i) {
    const size_t first = num_first == 1 ? 0 : i - num_first;
    scores.push_back(info.type == PoolingType::kEvery
                         ? late_interaction(
                               vectors[first], vectors[i], static_cast<size_t>(info.width))
                         : cosine(vectors[first], vectors[i]));
  }
  return scores;
}

// Scores need one label; with more, which one is meant is not known.
Expected<PoolingInfo> scoring_of(const ValidationContext& context) {
  SLUICE_TRY(PoolingInfo info, pooling_of(context, PooledKind::kAny));
  if (info.is_classifier && info.width != 1) {
    return make_error(ErrorCode::kUnsupported,
                      "The model `" + context.model_names.front() + "` has " +
                          std::to_string(info.width) +
                          " labels; scores of pairs need a model with one. /classify answers all.",
                      "model");
  }
  return info;
}

// --- Rerank ----------------------------------------------------------------------------------

struct RerankForm {
  bool is_tei = false;      // a bare list
  bool has_meta = false;    // Cohere's units
  bool has_texts = false;   // the answer repeats the documents
  size_t top_n = 0;         // 0: all
  std::vector<std::string> documents;  // where has_texts
};

std::string rerank_json(const PooledAnswer& answer,
                        const std::vector<float>& scores,
                        const RerankForm& form) {
  std::vector<size_t> order(scores.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::stable_sort(order, [&](size_t a, size_t b) { return scores[a] > scores[b]; });
  if (form.top_n > 0) order.resize(std::min(order.size(), form.top_n));
  std::string out;
  JsonWriter json(out);
  if (!form.is_tei) {
    json.open_object().key("id").string(answer.id).key("model").string(answer.model);
    json.key("object").string("list");
    json.key("usage").open_object().key("prompt_tokens").integer(answer.num_tokens);
    json.key("total_tokens").integer(answer.num_tokens).close_object();
    if (form.has_meta) {
      json.key("meta").raw(R"({"api_version":{"version":"2"},"billed_units":{"search_units":1}})");
    }
    json.key("results");
  }
  json.open_array();
  for (const size_t i : order) {
    json.open_object().key("index").integer(static_cast<int64_t>(i));
    json.key(form.is_tei ? "score" : "relevance_score").number(scores[i]);
    if (form.has_texts && form.is_tei) json.key("text").string(form.documents[i]);
    if (form.has_texts && !form.is_tei) {
      json.key("document").open_object().key("text").string(form.documents[i]).close_object();
    }
    json.close_object();
  }
  json.close_array();
  if (!form.is_tei) json.close_object();
  return out;
}

// The path alone does not tell TEI's requests.
bool is_tei(const Json& body) { return find_field(body, "texts") != nullptr; }

// Some clients send the switch as a string.
Expected<bool> wants_documents(const Json& body, bool usual) {
  const Json* const value = find_field(body, "return_documents");
  if (value != nullptr && (*value == "true" || *value == "false")) return *value == "true";
  return read_bool(body, "return_documents", usual);
}

// vLLM and Jina return the documents by default, Cohere and TEI on request.
Expected<RerankForm> read_rerank_form(const Json& body, bool is_cohere) {
  RerankForm form;
  form.is_tei = is_tei(body);
  form.has_meta = is_cohere;
  if (form.is_tei) {
    SLUICE_TRY(form.has_texts, read_bool(body, "return_text", false));
  } else {
    SLUICE_TRY(form.has_texts, wants_documents(body, !is_cohere));
  }
  SLUICE_TRY(const auto top_n, read_integer(body, "top_n", 0, INT32_MAX));
  form.top_n = static_cast<size_t>(top_n.value_or(0));
  return form;
}

// Cuts the documents alone: the query counts fully.
Expected<void> limit_documents(const ValidationContext& context,
                               const Json& body,
                               std::vector<std::string>& documents) {
  SLUICE_TRY(const auto most, read_integer(body, "max_tokens_per_doc", 0, INT32_MAX));
  if (!most || *most == 0) return {};
  for (std::string& document : documents) {
    std::vector<TokenId> ids;
    SLUICE_TRY_VOID(context.tokenizer.encode(document, SpecialText::kText, ids));
    if (ids.size() <= static_cast<size_t>(*most)) continue;
    ids.resize(static_cast<size_t>(*most));
    document = decode_tokens(context.tokenizer, ids);
  }
  return {};
}

Expected<DecodedPooledRequest> decode_rerank(const ValidationContext& context, Exchange& exchange) {
  SLUICE_TRY(Json body, parse_body(exchange.request.body, context.config.max_json_depth));
  if (is_tei(body)) exchange.error_form = ErrorForm::kTei;
  SLUICE_TRY_VOID(check_parameters(body, Endpoint::kRerank, exchange.ignored));
  SLUICE_TRY(const std::string model, resolve_model(context.model_names, body));
  SLUICE_TRY(const PoolingInfo info, scoring_of(context));
  const bool is_cohere = exchange.request.path.starts_with("/v2/");
  SLUICE_TRY(RerankForm form, read_rerank_form(body, is_cohere));
  const std::string name = form.is_tei ? "texts" : "documents";
  const Json* const documents = find_field(body, name);
  const Json* const query = find_field(body, "query");
  if (query == nullptr) return invalid("query is missing.", "query");
  if (documents == nullptr || !documents->is_array()) {
    return invalid(name + " must be a list of texts.", name);
  }
  Pairs pairs;
  pairs.first_name = "query";
  SLUICE_TRY(std::string first, text_of(*query, "query", "query"));
  pairs.first.push_back(std::move(first));
  SLUICE_TRY_VOID(check_queries(pairs.first, "query"));
  SLUICE_TRY(pairs.second, texts_of(context, *documents, name));
  if (form.has_texts) form.documents = pairs.second;
  SLUICE_TRY_VOID(limit_documents(context, body, pairs.second));
  PoolingParams params;
  SLUICE_TRY(params.activates, read_bool(body, "use_activation", true));
  SLUICE_TRY(const bool is_raw, read_bool(body, "raw_scores", !params.activates));
  params.activates = !is_raw;
  params.forces_scale = form.is_tei && info.is_classifier && params.activates;
  SLUICE_TRY(InputRules rules, read_input_rules(context, info, body, name));
  rules.cuts_documents = is_cohere && !form.is_tei && find_field(body, "truncate") == nullptr;
  SLUICE_TRY(Prompts prompts, encode_pairs(context, info, rules, pairs));
  SLUICE_TRY(PooledRequest request,
             request_of(context, body, info, params, 1, std::move(prompts)));
  return DecodedPooledRequest{
      std::move(request), [info, form = std::move(form)](const PooledAnswer& answer) {
        return rerank_json(answer, scores_of(info, answer.vectors, 1), form);
      }};
}

// --- Score -----------------------------------------------------------------------------------

// Returns the first of these fields that is there.
const Json* first_field(const Json& body,
                        std::initializer_list<const char*> names,
                        std::string& name) {
  for (const char* each : names) {
    name = each;
    if (const Json* const found = find_field(body, each)) return found;
  }
  name = *names.begin();
  return nullptr;
}

Expected<Pairs> read_pairs(const ValidationContext& context, const Json& body) {
  Pairs pairs;
  std::string name;
  const Json* const first = first_field(body, {"queries", "text_1", "data_1"}, name);
  if (first == nullptr) return invalid("queries is missing.", "queries");
  SLUICE_TRY(pairs.first, texts_of(context, *first, name));
  SLUICE_TRY_VOID(check_queries(pairs.first, name));
  pairs.first_name = name;
  const Json* const second = first_field(body, {"documents", "items", "text_2", "data_2"}, name);
  if (second == nullptr) return invalid("documents is missing.", "documents");
  SLUICE_TRY(pairs.second, texts_of(context, *second, name));
  if (pairs.first.size() != 1 && pairs.first.size() != pairs.second.size()) {
    return invalid("There must be one query, or as many queries as documents; got " +
                       std::to_string(pairs.first.size()) + " and " +
                       std::to_string(pairs.second.size()) + ".",
                   name);
  }
  return pairs;
}

void write_usage(JsonWriter& json, const PooledAnswer& answer) {
  json.key("usage").open_object().key("prompt_tokens").integer(answer.num_tokens);
  json.key("total_tokens").integer(answer.num_tokens).key("completion_tokens").integer(0);
  json.close_object();
}

std::string score_json(const PooledAnswer& answer, const std::vector<float>& scores) {
  std::string out;
  JsonWriter json(out);
  json.open_object().key("id").string(answer.id).key("object").string("list");
  json.key("model").string(answer.model).key("data").open_array();
  for (size_t i = 0; i < scores.size(); ++i) {
    json.open_object().key("index").integer(static_cast<int64_t>(i));
    json.key("object").string("score").key("score").number(scores[i]).close_object();
  }
  json.close_array();
  write_usage(json, answer);
  json.close_object();
  return out;
}

Expected<DecodedPooledRequest> decode_score(const ValidationContext& context, Exchange& exchange) {
  SLUICE_TRY(Json body, parse_body(exchange.request.body, context.config.max_json_depth));
  SLUICE_TRY_VOID(check_parameters(body, Endpoint::kScore, exchange.ignored));
  SLUICE_TRY(const std::string model, resolve_model(context.model_names, body));
  SLUICE_TRY(const PoolingInfo info, scoring_of(context));
  SLUICE_TRY(const Pairs pairs, read_pairs(context, body));
  SLUICE_TRY(const InputRules rules, read_input_rules(context, info, body, "documents"));
  SLUICE_TRY(Prompts prompts, encode_pairs(context, info, rules, pairs));
  PoolingParams params;
  SLUICE_TRY(params.activates, read_bool(body, "use_activation", true));
  SLUICE_TRY(PooledRequest request,
             request_of(context, body, info, params, pairs.first.size(), std::move(prompts)));
  return DecodedPooledRequest{std::move(request),
                              [info, num_first = pairs.first.size()](const PooledAnswer& answer) {
                                return score_json(answer,
                                                  scores_of(info, answer.vectors, num_first));
                              }};
}

// --- Classify --------------------------------------------------------------------------------

std::string classify_json(const PooledAnswer& answer, const PoolingInfo& info) {
  std::string out;
  JsonWriter json(out);
  json.open_object().key("id").string(answer.id).key("object").string("list");
  json.key("model").string(answer.model).key("data").open_array();
  for (size_t i = 0; i < answer.vectors.size(); ++i) {
    const std::vector<float>& scores = answer.vectors[i];
    const auto best = static_cast<size_t>(std::ranges::max_element(scores) - scores.begin());
    json.open_object().key("index").integer(static_cast<int64_t>(i));
    json.key("label").string(info.labels[best]).key("probs").open_array();
    for (const float score : scores) json.number(score);
    json.close_array().key("num_classes").integer(static_cast<int64_t>(scores.size()));
    json.close_object();
  }
  json.close_array();
  write_usage(json, answer);
  json.close_object();
  return out;
}

Expected<DecodedPooledRequest> decode_classify(const ValidationContext& context,
                                               Exchange& exchange) {
  SLUICE_TRY(Json body, parse_body(exchange.request.body, context.config.max_json_depth));
  SLUICE_TRY_VOID(check_parameters(body, Endpoint::kClassify, exchange.ignored));
  SLUICE_TRY(const std::string model, resolve_model(context.model_names, body));
  SLUICE_TRY(const PoolingInfo info, pooling_of(context, PooledKind::kScores));
  SLUICE_TRY(Prompts prompts, read_texts(context, info, body));
  PoolingParams params;
  SLUICE_TRY(params.activates, read_bool(body, "use_activation", true));
  SLUICE_TRY(PooledRequest request,
             make_pooled_request(context, body, params, std::move(prompts)));
  return DecodedPooledRequest{
      std::move(request),
      [info](const PooledAnswer& answer) { return classify_json(answer, info); }};
}

// --- TEI's similarity ------------------------------------------------------------------------

// `inputs`: {"source_sentence": ..., "sentences": [...]}.
Expected<DecodedPooledRequest> decode_similarity(const ValidationContext& context,
                                                 Exchange& exchange) {
  SLUICE_TRY(const Json body, read_tei_body(context, exchange));
  SLUICE_TRY(const PoolingInfo info, pooling_of(context, PooledKind::kTokens));
  const Json& inputs = *find_field(body, "inputs");
  const Json* const source = inputs.is_object() ? find_field(inputs, "source_sentence") : nullptr;
  const Json* const sentences = inputs.is_object() ? find_field(inputs, "sentences") : nullptr;
  if (source == nullptr || sentences == nullptr || !sentences->is_array()) {
    return invalid("inputs must have a source_sentence and a list of sentences.", "inputs");
  }
  Pairs pairs;
  pairs.first_name = "inputs";
  SLUICE_TRY(std::string first, text_of(*source, "inputs.source_sentence", "inputs"));
  pairs.first.push_back(std::move(first));
  SLUICE_TRY(pairs.second, texts_of(context, *sentences, "inputs"));
  PoolingParams params;
  SLUICE_TRY(params.dimensions, read_dimensions(info, body));
  SLUICE_TRY(InputRules rules, read_input_rules(context, info, body, "inputs"));
  SLUICE_TRY(rules.prompt, read_prompt(info, body));
  SLUICE_TRY(Prompts prompts, encode_pairs(context, info, rules, pairs));
  SLUICE_TRY(PooledRequest request,
             request_of(context, body, info, params, 1, std::move(prompts)));
  return DecodedPooledRequest{std::move(request), [info](const PooledAnswer& answer) {
                                std::string out;
                                JsonWriter json(out);
                                json.open_array();
                                for (const float score : scores_of(info, answer.vectors, 1)) {
                                  json.number(score);
                                }
                                json.close_array();
                                return out;
                              }};
}

}  // namespace

void handle_tei_similarity(FrontEnd& front_end, Exchange exchange) {
  start_pooling(front_end, std::move(exchange), decode_similarity);
}

void handle_rerank(FrontEnd& front_end, Exchange exchange) {
  start_pooling(front_end, std::move(exchange), decode_rerank);
}

void handle_score(FrontEnd& front_end, Exchange exchange) {
  start_pooling(front_end, std::move(exchange), decode_score);
}

void handle_classify(FrontEnd& front_end, Exchange exchange) {
  start_pooling(front_end, std::move(exchange), decode_classify);
}

}  // namespace sluice
