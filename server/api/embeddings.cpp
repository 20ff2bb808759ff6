// SPDX-License-Identifier: Apache-2.0
// POST /v1/embeddings and /pooling: the vectors of texts, in OpenAI's and vLLM's shapes.
#include <algorithm>
#include <array>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "engine/core/config.h"
#include "server/api/pooled_json.h"
#include "server/api/pooling_run.h"
#include "server/api/request_validator.h"
#include "server/front/front_end.h"
#include "server/json/json_fields.h"
#include "server/json/json_reader.h"
#include "server/json/json_writer.h"

namespace sluice {
namespace {

using Json = nlohmann::ordered_json;

Expected<bool> wants_base64(const Json& body) {
  const Json* const format = find_field(body, "encoding_format");
  if (format == nullptr || *format == "float") return false;
  if (*format == "base64") return true;
  return invalid("encoding_format must be \"float\" or \"base64\", got " + show_value(*format) + ".",
                 "encoding_format");
}

// `every_token`: /pooling with the task token_embed.
std::string embeddings_json(const PooledAnswer& answer,
                            const PoolingInfo& info,
                            const PoolingParams& params,
                            bool is_base64,
                            bool is_pooling) {
  std::string out;
  JsonWriter json(out);
  json.open_object();
  if (is_pooling) json.key("id").string(answer.id);
  json.key("object").string("list");
  json.key("data").open_array();
  for (size_t i = 0; i < answer.vectors.size(); ++i) {
    const std::vector<float>& vector = answer.vectors[i];
    json.open_object().key("object").string(is_pooling ? "pooling" : "embedding");
    json.key("index").integer(static_cast<int64_t>(i)).key(is_pooling ? "data" : "embedding");
    if (is_base64) {
      json.string(base64_of(vector));
    } else if (params.every_token) {
      write_vectors(json, vector, vector_width(info, params));
    } else {
      write_vector(json, vector);
    }
    json.close_object();
  }
  json.close_array().key("model").string(answer.model);
  json.key("usage").open_object().key("prompt_tokens").integer(answer.num_tokens);
  json.key("total_tokens").integer(answer.num_tokens).close_object().close_object();
  return out;
}

// The kind of vector that /pooling is asked for: by `task`, or the model's own.
Expected<bool> wants_every_token(const PoolingInfo& info, const Json& body) {
  const Json* const task = find_field(body, "task");
  if (task == nullptr) return info.type == PoolingType::kEvery;
  if (*task == "token_embed" && !info.is_classifier) return true;
  const bool has_vectors = !info.is_classifier && info.type != PoolingType::kEvery;
  if (*task == "embed" && has_vectors) return false;
  if (*task == "classify" && info.is_classifier) return false;
  const std::string known = info.is_classifier ? "\"classify\""
                            : has_vectors      ? "\"embed\" or \"token_embed\""
                                               : "\"token_embed\"";
  return invalid("task must be " + known + " with this model, got " + show_value(*task) + ".",
                 "task");
}

// Jina's tasks choose one of a model's adapters; models without any make one vector for all.
bool is_of_adapter(const Json* task) {
  constexpr std::array kTasks = {"retrieval.query", "retrieval.passage", "text-matching",
                                 "classification",  "separation",        "code.query",
                                 "code.passage"};
  return task != nullptr && std::ranges::any_of(kTasks, [&](const char* name) {
           return *task == name;
         });
}

// The name, another server's, by which a request asks for vectors of length 1; null: it does not.
const char* name_of_length(const Json& body) {
  for (const char* const name : {"normalize", "normalized", "embd_normalize"}) {
    const Json* const value = find_field(body, name);
    if (value != nullptr && (*value == true || *value == 2)) return name;
  }
  return nullptr;
}

Expected<DecodedPooledRequest> decode(const ValidationContext& context,
                                      Exchange& exchange,
                                      bool is_pooling) {
  SLUICE_TRY(Json body, parse_body(exchange.request.body, context.config.max_json_depth));
  const char* const length = name_of_length(body);
  SLUICE_TRY_VOID(check_parameters(body, Endpoint::kEmbeddings, exchange.ignored));
  SLUICE_TRY(const std::string model, resolve_model(context.model_names, body));
  SLUICE_TRY(const PoolingInfo info,
             pooling_of(context, is_pooling ? PooledKind::kAny : PooledKind::kVectors));
  SLUICE_TRY(const bool is_base64, wants_base64(body));
  PoolingParams params;
  SLUICE_TRY(params.activates, read_bool(body, "use_activation", true));
  params.forces_scale = length != nullptr && !info.is_classifier;
  if (params.forces_scale && !params.activates) {
    return invalid("`" + std::string(length) + "` and use_activation ask for opposite lengths.",
                   length);
  }
  SLUICE_TRY(params.dimensions, read_dimensions(info, body));
  if (is_pooling) {
    SLUICE_TRY(params.every_token, wants_every_token(info, body));
  } else if (const Json* const task = find_field(body, "task"); is_of_adapter(task)) {
    SLUICE_TRY_VOID(exchange.ignored.add("task"));
  } else if (task != nullptr) {
    return unsupported("`task` is not supported; leave it out.", "task");
  }
  SLUICE_TRY(auto prompts, read_texts(context, info, body));
  SLUICE_TRY(PooledRequest request,
             make_pooled_request(context, body, params, std::move(prompts)));
  if (info.type == PoolingType::kEvery) {
    SLUICE_TRY(const TextSide side, read_side(body));
    for (size_t i = 0; i < request.requests.size(); ++i) leave_out(info, side, i, request);
  }
  return DecodedPooledRequest{
      std::move(request), [info, params, is_base64, is_pooling](const PooledAnswer& answer) {
        return embeddings_json(answer, info, params, is_base64, is_pooling);
      }};
}

void handle(FrontEnd& front_end, Exchange exchange, bool is_pooling) {
  start_pooling(front_end,
                std::move(exchange),
                [is_pooling](const ValidationContext& context, Exchange& asked) {
                  return decode(context, asked, is_pooling);
                });
}

}  // namespace

void handle_embeddings(FrontEnd& front_end, Exchange exchange) {
  handle(front_end, std::move(exchange), /*is_pooling=*/false);
}

void handle_pooling(FrontEnd& front_end, Exchange exchange) {
  handle(front_end, std::move(exchange), /*is_pooling=*/true);
}

}  // namespace sluice
