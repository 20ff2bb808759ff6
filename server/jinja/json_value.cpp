// SPDX-License-Identifier: Apache-2.0
#include "server/jinja/json_value.h"

#include <limits>
#include <nlohmann/json.hpp>

namespace sluice::jinja {
namespace {

using Json = nlohmann::ordered_json;

Value scalar(const Json& json, Origin origin) {
  Value value;
  switch (json.type()) {
    case Json::value_t::boolean:
      value = Value(json.get<bool>());
      break;
    case Json::value_t::number_integer:
      value = Value(json.get<int64_t>());
      break;
    case Json::value_t::number_unsigned: {
      const auto number = json.get<uint64_t>();
      // An integer beyond int64 is a number like one beyond uint64: hardly any template reads it.
      const bool is_large = number > static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
      value = is_large ? Value(static_cast<double>(number)) : Value(static_cast<int64_t>(number));
      break;
    }
    case Json::value_t::number_float:
      value = Value(json.get<double>());
      break;
    default:
      break;
  }
  value.set_origin(origin);
  return value;
}

}  // namespace

Result json_to_value(Runtime& runtime, const Json& json, Origin origin) {
  SLUICE_TRY_VOID(runtime.charge(1));
  const Runtime::Depth depth(runtime);
  if (depth.exceeded()) return runtime.exhausted("the input is nested too deeply");
  if (json.is_string()) return runtime.text(json.get_ref<const std::string&>(), origin);
  if (json.is_array()) {
    std::vector<Value> items;
    SLUICE_TRY_VOID(runtime.reserve(static_cast<int64_t>(json.size() * sizeof(Value))));
    items.reserve(json.size());
    for (const Json& element : json) {
      SLUICE_TRY(Value item, json_to_value(runtime, element, origin));
      items.push_back(std::move(item));
    }
    return runtime.sequence(std::move(items), SequenceKind::kList, origin);
  }
  if (!json.is_object()) return scalar(json, origin);
  SLUICE_TRY(auto dict, runtime.dict(origin));
  SLUICE_TRY_VOID(runtime.grow(*dict, static_cast<int64_t>(2 * json.size() * sizeof(Value))));
  dict->entries.reserve(json.size());
  // JSON objects have unique keys, so no look-up is needed.
  for (const auto& [name, element] : json.items()) {
    SLUICE_TRY(Value key, runtime.text(name, origin));
    SLUICE_TRY(Value value, json_to_value(runtime, element, origin));
    dict->entries.emplace_back(std::move(key), std::move(value));
  }
  return Value(Kind::kDict, dict.get());
}

Result parse_json(Runtime& runtime, std::string_view text, Origin origin, const Value* otherwise) {
  SLUICE_TRY_VOID(runtime.charge(static_cast<int64_t>(text.size())));
  // A parsed element takes at most 16 bytes of tree per byte of text.
  SLUICE_TRY_VOID(runtime.reserve(static_cast<int64_t>(text.size()) * 16));
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded() && otherwise != nullptr) return *otherwise;
  if (json.is_discarded()) return runtime.fail("from_json: the text is not JSON");
  return json_to_value(runtime, json, origin);
}

}  // namespace sluice::jinja
