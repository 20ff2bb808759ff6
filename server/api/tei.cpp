// SPDX-License-Identifier: Apache-2.0
// The endpoints of text-embeddings-inference (TEI): /embed, /embed_all, /predict, / and /info.
#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/core/config.h"
#include "server/api/pooled_json.h"
#include "server/api/pooling_run.h"
#include "server/api/request_validator.h"
#include "server/api/text_pairs.h"
#include "server/front/front_end.h"
#include "server/front/served_model.h"
#include "server/json/json_fields.h"
#include "server/json/json_reader.h"
#include "server/json/json_writer.h"

namespace sluice {
namespace {

using Json = nlohmann::ordered_json;

// Members that TEI's other endpoints have.
Expected<void> refuse_members(const Json& body, std::initializer_list<const char*> names) {
  for (const char* name : names) {
    if (find_field(body, name) == nullptr) continue;
    return unsupported("`" + std::string(name) + "` is not supported here; leave it out.", name);
  }
  return {};
}

Expected<DecodedPooledRequest> decode_embed(const ValidationContext& context,
                                            Exchange& exchange,
                                            bool every_token) {
  SLUICE_TRY(const Json body, read_tei_body(context, exchange));
  const PooledKind kind = every_token ? PooledKind::kTokens : PooledKind::kVectors;
  SLUICE_TRY(const PoolingInfo info, pooling_of(context, kind));
  PoolingParams params;
  params.every_token = every_token;
  // TEI's /embed_all gives states as they are; its vectors of texts have length 1, whatever files
  // say.
  SLUICE_TRY(params.activates, read_bool(body, "normalize", !every_token));
  params.forces_scale = params.activates;
  SLUICE_TRY(params.dimensions, read_dimensions(info, body));
  SLUICE_TRY(InputRules rules, read_input_rules(context, info, body, "inputs"));
  SLUICE_TRY(rules.prompt, read_prompt(info, body));
  SLUICE_TRY(auto prompts, read_inputs(context, rules, *find_field(body, "inputs")));
  SLUICE_TRY(PooledRequest request,
             make_pooled_request(context, body, params, std::move(prompts)));
  const size_t width = vector_width(info, params);
  return DecodedPooledRequest{std::move(request), [every_token, width](const PooledAnswer& answer) {
                                std::string out;
                                JsonWriter json(out);
                                json.open_array();
                                for (const std::vector<float>& vector : answer.vectors) {
                                  if (every_token) {
                                    write_vectors(json, vector, width);
                                  } else {
                                    write_vector(json, vector);
                                  }
                                }
                                json.close_array();
                                return out;
                              }};
}

// The labels of one text, the best first.
void write_labels(JsonWriter& json, const PoolingInfo& info, const std::vector<float>& scores) {
  std::vector<size_t> order(scores.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::stable_sort(order, [&](size_t a, size_t b) { return scores[a] > scores[b]; });
  json.open_array();
  for (const size_t i : order) {
    json.open_object().key("score").number(scores[i]);
    json.key("label").string(info.labels[i]).close_object();
  }
  json.close_array();
}

// TEI's `inputs` of /predict: a text, a pair, or a list of lists of one or two texts.
Expected<std::vector<std::vector<TokenId>>> read_predicted(const ValidationContext& context,
                                                           const InputRules& rules,
                                                           const Json& inputs,
                                                           bool& is_single) {
  const bool is_list = inputs.is_array() && !inputs.empty() && inputs.front().is_array();
  is_single = !is_list;
  const Json list = is_list ? inputs : Json::array({inputs});
  SLUICE_TRY_VOID(check_num_texts(context, "inputs", list.size()));
  std::vector<std::vector<TokenId>> prompts;
  std::optional<JudgeForm> form;
  for (size_t i = 0; i < list.size(); ++i) {
    const Json& item = list[i];
    const auto index = is_list ? static_cast<int64_t>(i) : -1;
    const bool is_pair =
        item.is_array() && item.size() == 2 && item[0].is_string() && item[1].is_string();
    const bool is_text =
        item.is_string() || (item.is_array() && item.size() == 1 && item[0].is_string());
    if (!is_pair && !is_text) {
      return invalid("inputs must be a text, a pair of texts, or a list of such lists, got " +
                         show_value(item) + ".",
                     "inputs");
    }
    if (is_pair) {
      SLUICE_TRY(const PairFront front,
                 pair_front(context, rules, form, item[0].get_ref<const std::string&>()));
      SLUICE_TRY(
          auto ids,
          encode_pair(context, rules, front, item[1].get_ref<const std::string&>(), index));
      prompts.push_back(std::move(ids));
    } else {
      const Json& text = item.is_string() ? item : item[0];
      SLUICE_TRY(auto ids,
                 encode_input(context, rules, text.get_ref<const std::string&>(), index));
      prompts.push_back(std::move(ids));
    }
  }
  return prompts;
}

Expected<DecodedPooledRequest> decode_predict(const ValidationContext& context,
                                              Exchange& exchange) {
  SLUICE_TRY(const Json body, read_tei_body(context, exchange));
  SLUICE_TRY(const PoolingInfo info, pooling_of(context, PooledKind::kScores));
  SLUICE_TRY_VOID(refuse_members(body, {"prompt_name", "dimensions"}));
  SLUICE_TRY(const bool is_raw, read_bool(body, "raw_scores", false));
  SLUICE_TRY(const InputRules rules, read_input_rules(context, info, body, "inputs"));
  bool is_single = false;
  SLUICE_TRY(auto prompts,
             read_predicted(context, rules, *find_field(body, "inputs"), is_single));
  PoolingParams params;
  params.activates = !is_raw;
  params.forces_scale = params.activates;
  SLUICE_TRY(PooledRequest request,
             make_pooled_request(context, body, params, std::move(prompts)));
  return DecodedPooledRequest{
      std::move(request), [info, is_single](const PooledAnswer& answer) {
        std::string out;
        JsonWriter json(out);
        if (!is_single) json.open_array();
        for (const std::vector<float>& scores : answer.vectors) write_labels(json, info, scores);
        if (!is_single) json.close_array();
        return out;
      }};
}

void handle_embed(FrontEnd& front_end, Exchange exchange, bool every_token) {
  start_pooling(front_end,
                std::move(exchange),
                [every_token](const ValidationContext& context, Exchange& asked) {
                  return decode_embed(context, asked, every_token);
                });
}

}  // namespace

// What a client whose URL has no path means depends on the model.
void handle_tei_embed(FrontEnd& front_end, Exchange exchange) {
  const auto served = front_end.usual_model();  // another thread may let go of its version
  const std::optional<PoolingInfo>& pooling = served->engine.model().pooling;
  if (exchange.request.path == "/" && pooling && pooling->is_classifier) {
    return pooling->labels.size() == 1 ? handle_rerank(front_end, std::move(exchange))
                                       : handle_tei_predict(front_end, std::move(exchange));
  }
  handle_embed(front_end, std::move(exchange), /*every_token=*/false);
}

void handle_tei_embed_all(FrontEnd& front_end, Exchange exchange) {
  handle_embed(front_end, std::move(exchange), /*every_token=*/true);
}

void handle_tei_predict(FrontEnd& front_end, Exchange exchange) {
  start_pooling(front_end, std::move(exchange), decode_predict);
}

// What TEI's clients and routers ask first.
void handle_tei_info(FrontEnd& front_end, Exchange exchange) {
  const auto served = front_end.usual_model();
  const ModelInfo& model = served->engine.model();
  HttpResponse response;
  JsonWriter json(response.body);
  json.open_object().key("model_id").string(served->names.front());
  json.key("model_sha").null().key("model_dtype").string("float32");
  json.key("model_type").open_object();
  if (!model.pooling) {
    json.key("generation").open_object().close_object();
  } else if (model.pooling->is_classifier) {
    json.key(model.pooling->labels.size() == 1 ? "reranker" : "classifier").open_object();
    json.key("id2label").open_object();
    for (size_t i = 0; i < model.pooling->labels.size(); ++i) {
      json.key(std::to_string(i)).string(model.pooling->labels[i]);
    }
    json.close_object().close_object();
  } else {
    json.key("embedding").open_object();
    json.key("pooling").string(to_string(model.pooling->type)).close_object();
  }
  json.close_object();
  json.key("max_concurrent_requests").integer(front_end.config.max_num_queued_reqs);
  json.key("max_input_length")
      .integer(model.pooling ? model.pooling->max_tokens : model.max_model_len);
  json.key("max_batch_tokens").integer(front_end.config.max_num_batched_tokens);
  json.key("max_client_batch_size").integer(front_end.config.max_client_batch_size);
  json.key("auto_truncate").boolean(front_end.config.auto_truncate);
  json.key("tokenization_workers").integer(front_end.config.io_threads);
  json.key("version").string(SLUICE_VERSION).close_object();
  front_end.respond(exchange, std::move(response));
}

}  // namespace sluice
