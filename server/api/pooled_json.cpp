// SPDX-License-Identifier: Apache-2.0
#include "server/api/pooled_json.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <nlohmann/json.hpp>

#include "engine/core/config.h"
#include "engine/tokenizer/text/base64.h"
#include "server/api/parameters.h"
#include "server/api/request_validator.h"
#include "server/json/json_fields.h"
#include "server/json/json_reader.h"

namespace sluice {

using Json = nlohmann::ordered_json;

Expected<Json> read_tei_body(const ValidationContext& context, Exchange& exchange) {
  SLUICE_TRY(Json body, parse_body(exchange.request.body, context.config.max_json_depth));
  Json parameters = Json::object();
  if (const Json* const nested = find_field(body, "parameters"); nested != nullptr) {
    if (!nested->is_object()) {
      return invalid("parameters must be an object, got " + show_value(*nested) + ".",
                     "parameters");
    }
    parameters = *nested;
  }
  body.erase("parameters");
  // Few members are left of either.
  SLUICE_TRY_VOID(check_parameters(body, Endpoint::kTei, exchange.ignored));
  SLUICE_TRY_VOID(check_parameters(parameters, Endpoint::kTei, exchange.ignored));
  for (const auto& [name, value] : parameters.items()) {
    if (find_field(body, name) == nullptr) body[name] = value;
  }
  if (find_field(body, "inputs") == nullptr) return invalid("inputs is missing.", "inputs");
  return body;
}

Expected<int32_t> read_dimensions(const PoolingInfo& info,
                                  const Json& body,
                                  const std::string& name) {
  SLUICE_TRY(const auto wanted, read_integer(body, name, 1, info.width));
  if (!wanted) return 0;
  const auto dimensions = static_cast<int32_t>(*wanted);
  if (info.is_classifier) {
    return invalid(name + " is for vectors, and this model makes scores.", name);
  }
  if (dimensions == info.width) return 0;
  if (!info.is_matryoshka) {
    return invalid(
        "This model's vectors are not made to be cut, so " + name +
            " is not supported; --hf-overrides '{\"is_matryoshka\": true}' allows it.",
        name);
  }
  const auto& trained = info.matryoshka_dimensions;
  if (!trained.empty() && std::ranges::find(trained, dimensions) == trained.end()) {
    std::string list;
    for (const int32_t each : trained) list += (list.empty() ? "" : ", ") + std::to_string(each);
    return invalid(
        name + " must be one of " + list + ", got " + std::to_string(dimensions) + ".", name);
  }
  return dimensions;
}

size_t vector_width(const PoolingInfo& info, const PoolingParams& params) {
  return static_cast<size_t>(params.dimensions > 0 ? params.dimensions : info.width);
}

std::string base64_of(const std::vector<float>& values) {
  static_assert(std::endian::native == std::endian::little);
  std::string bytes(values.size() * sizeof(float), '\0');
  if (!values.empty()) std::memcpy(bytes.data(), values.data(), bytes.size());
  return encode_base64(bytes);
}

void write_vector(JsonWriter& json, std::span<const float> vector) {
  json.open_array();
  for (const float value : vector) json.number(value);
  json.close_array();
}

void write_vectors(JsonWriter& json, std::span<const float> vectors, size_t width) {
  json.open_array();
  for (size_t begin = 0; begin < vectors.size(); begin += width) {
    write_vector(json, vectors.subspan(begin, width));
  }
  json.close_array();
}

}  // namespace sluice
