// SPDX-License-Identifier: Apache-2.0
// POST /v2/embed and /v1/embed: the vectors of texts in Cohere's shapes, as floats and smaller
// numbers.
#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

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

// A code of an element in [-1, 1]: as far from 0, in steps of 1 / 127. Elements beyond are cut,
// before they are rounded: a large one has no integer.
int64_t int8_of(float x) {
  const double steps = std::clamp(static_cast<double>(x) * 127, -128.0, 127.0);
  return static_cast<int64_t>(std::lround(steps));
}

void write_int8(JsonWriter& json, const std::vector<float>& vector) {
  json.open_array();
  for (const float x : vector) json.integer(int8_of(x));
  json.close_array();
}

void write_uint8(JsonWriter& json, const std::vector<float>& vector) {
  json.open_array();
  for (const float x : vector) json.integer(int8_of(x) + 128);
  json.close_array();
}

// The signs of eight elements a byte, the first in the highest bit, 1 above 0; `offset` is added.
void write_signs(JsonWriter& json, const std::vector<float>& vector, int64_t offset) {
  json.open_array();
  for (size_t begin = 0; begin < vector.size(); begin += 8) {
    int64_t byte = 0;
    for (size_t i = begin; i < std::min(begin + 8, vector.size()); ++i) {
      if (vector[i] > 0) byte |= int64_t{0x80} >> (i - begin);
    }
    json.integer(byte + offset);
  }
  json.close_array();
}

struct VectorType {
  std::string_view name;
  void (*write)(JsonWriter& json, const std::vector<float>& vector);
};

constexpr std::array kTypes = {
    VectorType{"float",
               [](JsonWriter& json, const std::vector<float>& v) { write_vector(json, v); }},
    VectorType{"int8", write_int8},
    VectorType{"uint8", write_uint8},
    VectorType{"binary",
               [](JsonWriter& json, const std::vector<float>& v) { write_signs(json, v, -128); }},
    VectorType{"ubinary",
               [](JsonWriter& json, const std::vector<float>& v) { write_signs(json, v, 0); }},
    VectorType{
        "base64",
        [](JsonWriter& json, const std::vector<float>& v) { json.string(base64_of(v)); }},
};

Expected<std::vector<const VectorType*>> read_types(const Json& body) {
  const Json* const listed = find_field(body, "embedding_types");
  if (listed == nullptr) return std::vector<const VectorType*>{&kTypes.front()};
  if (!listed->is_array() || listed->empty()) {
    return invalid("embedding_types must be a list of types, and not empty.", "embedding_types");
  }
  std::vector<const VectorType*> types;
  for (const Json& each : *listed) {
    const auto found = std::ranges::find_if(kTypes, [&](const VectorType& type) {
      return each.is_string() && each.get_ref<const std::string&>() == type.name;
    });
    if (found == kTypes.end()) {
      return invalid(
          "embedding_types may have float, int8, uint8, binary, ubinary and base64, got " +
              show_value(each) + ".",
          "embedding_types");
    }
    if (std::ranges::find(types, &*found) == types.end()) types.push_back(&*found);
  }
  return types;
}

// The text of one of Cohere's `inputs`: {"content": [{"type": "text", "text": ...}]}.
Expected<std::string> read_parts(const Json& input, size_t index) {
  const std::string place = "inputs[" + std::to_string(index) + "]";
  const Json* const content = input.is_object() ? find_field(input, "content") : nullptr;
  if (content == nullptr || !content->is_array()) {
    return invalid(place + " must have a list `content`.", "inputs");
  }
  std::string text;
  for (const Json& part : *content) {
    const Json* const said = part.is_object() ? find_field(part, "text") : nullptr;
    if (said == nullptr || !said->is_string()) {
      return invalid(place + " may have parts of text alone, got " + show_value(part) + ".",
                     "inputs");
    }
    text += said->get_ref<const std::string&>();
  }
  return text;
}

// Returns the list of texts, of which the field's name is set.
Expected<Json> read_text_list(const Json& body, std::string& name) {
  const Json* const texts = find_field(body, "texts");
  const Json* const inputs = find_field(body, "inputs");
  if ((texts == nullptr) == (inputs == nullptr)) {
    return invalid("There must be texts or inputs, and not both.", "texts");
  }
  name = texts != nullptr ? "texts" : "inputs";
  const Json& list = texts != nullptr ? *texts : *inputs;
  if (!list.is_array() || list.empty()) {
    return invalid(name + " must be a list, and not empty.", name);
  }
  Json found = Json::array();
  for (size_t i = 0; i < list.size(); ++i) {
    if (inputs != nullptr) {
      SLUICE_TRY(std::string text, read_parts(list[i], i));
      found.push_back(std::move(text));
    } else if (list[i].is_string()) {
      found.push_back(list[i]);
    } else {
      return invalid("texts[" + std::to_string(i) + "] must be a string, got " +
                         show_value(list[i]) + ".",
                     name);
    }
  }
  return found;
}

// Cohere cuts texts that are too long, at their ends, unless `truncate` says otherwise.
Expected<InputRules> read_cut(const PoolingInfo& info, const Json& body, std::string name) {
  InputRules rules;
  rules.most = info.max_tokens;
  rules.param = std::move(name);
  rules.cuts = true;
  SLUICE_TRY(rules.prompt, read_prompt(info, body, /*must_exist=*/false));
  SLUICE_TRY(const auto most, read_integer(body, "max_tokens", 1, INT32_MAX));
  if (most) rules.most = static_cast<int32_t>(std::min<int64_t>(*most, rules.most));
  SLUICE_TRY_VOID(read_cut_side(body, rules));
  return rules;
}

struct AnswerForm {
  std::vector<const VectorType*> types;
  bool is_first_version = false;
  bool is_bare = false;  // the first version's answer to a request without types: floats alone
  Json texts;
};

void write_vectors_of(const VectorType& type, const PooledAnswer& answer, JsonWriter& json) {
  json.open_array();
  for (const std::vector<float>& vector : answer.vectors) type.write(json, vector);
  json.close_array();
}

std::string embed_json(const PooledAnswer& answer, const AnswerForm& form) {
  std::string out;
  JsonWriter json(out);
  json.open_object().key("id").string(answer.id);
  json.key("embeddings");
  if (form.is_bare) {
    write_vectors_of(kTypes.front(), answer, json);
  } else {
    json.open_object();
    for (const VectorType* type : form.types) {
      json.key(type->name);
      write_vectors_of(*type, answer, json);
    }
    json.close_object();
  }
  json.key("texts").open_array();
  for (const Json& text : form.texts) json.string(text.get_ref<const std::string&>());
  json.close_array().key("response_type");
  json.string(form.is_bare ? "embeddings_floats" : "embeddings_by_type");
  json.key("meta").open_object().key("api_version").open_object();
  json.key("version").string(form.is_first_version ? "1" : "2").close_object();
  json.key("billed_units").open_object().key("input_tokens").integer(answer.num_tokens);
  json.close_object().close_object().close_object();
  return out;
}

Expected<DecodedPooledRequest> decode(const ValidationContext& context, Exchange& exchange) {
  SLUICE_TRY(Json body, parse_body(exchange.request.body, context.config.max_json_depth));
  SLUICE_TRY_VOID(check_parameters(body, Endpoint::kCohereEmbed, exchange.ignored));
  SLUICE_TRY(const std::string model, resolve_model(context.model_names, body));
  SLUICE_TRY(const PoolingInfo info, pooling_of(context, PooledKind::kVectors));
  AnswerForm form;
  SLUICE_TRY(form.types, read_types(body));
  form.is_first_version = exchange.request.path.starts_with("/v1/");
  form.is_bare = form.is_first_version && find_field(body, "embedding_types") == nullptr;
  PoolingParams params;
  SLUICE_TRY(params.dimensions, read_dimensions(info, body, "output_dimension"));
  std::string name;
  SLUICE_TRY(form.texts, read_text_list(body, name));
  SLUICE_TRY(const InputRules rules, read_cut(info, body, name));
  SLUICE_TRY(auto prompts, read_inputs(context, rules, form.texts));
  SLUICE_TRY(PooledRequest request,
             make_pooled_request(context, body, params, std::move(prompts)));
  return DecodedPooledRequest{
      std::move(request),
      [form = std::move(form)](const PooledAnswer& answer) { return embed_json(answer, form); }};
}

}  // namespace

void handle_cohere_embed(FrontEnd& front_end, Exchange exchange) {
  start_pooling(front_end, std::move(exchange), decode);
}

}  // namespace sluice
