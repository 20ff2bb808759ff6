// SPDX-License-Identifier: Apache-2.0
#include <nlohmann/json.hpp>
#include <utility>

#include "engine/tokenizer/json_parts.h"

namespace sluice {

using Json = nlohmann::json;

tl::unexpected<Error> json_error(std::string_view where, const std::string& what) {
  // A place is a part of tokenizer.json, or one of the files beside it.
  const std::string file = where.ends_with(".json") ? "" : "tokenizer.json: ";
  return make_error(ErrorCode::kDataLoss, file + std::string(where) + ": " + what);
}

tl::unexpected<Error> json_unsupported(std::string_view where,
                                       std::string_view found,
                                       std::string_view supported) {
  return make_error(ErrorCode::kUnsupported,
                    "tokenizer.json: " + std::string(where) + " \"" +
                        std::string(found.substr(0, 64)) +
                        "\" is not supported; supported: " + std::string(supported));
}

const Json* json_field(const Json& object, std::string_view key) {
  if (!object.is_object()) return nullptr;
  const auto at = object.find(key);
  return at == object.end() || at->is_null() ? nullptr : &*at;
}

Expected<std::string> json_string(const Json& object,
                                  std::string_view key,
                                  std::string_view where) {
  const Json* field = json_field(object, key);
  if (field == nullptr || !field->is_string()) {
    return json_error(where, "\"" + std::string(key) + "\" has to be a string");
  }
  return field->get<std::string>();
}

Expected<std::string> json_string_or(const Json& object,
                                     std::string_view key,
                                     std::string_view where,
                                     std::string fallback) {
  if (json_field(object, key) == nullptr) return fallback;
  return json_string(object, key, where);
}

Expected<bool> json_bool_or(const Json& object,
                            std::string_view key,
                            std::string_view where,
                            bool fallback) {
  const Json* field = json_field(object, key);
  if (field == nullptr) return fallback;
  if (!field->is_boolean()) {
    return json_error(where, "\"" + std::string(key) + "\" has to be true or false");
  }
  return field->get<bool>();
}

Expected<int64_t> json_integer_or(const Json& object,
                                  std::string_view key,
                                  std::string_view where,
                                  int64_t fallback) {
  const Json* field = json_field(object, key);
  if (field == nullptr) return fallback;
  if (!field->is_number_integer()) {
    return json_error(where, "\"" + std::string(key) + "\" has to be an integer");
  }
  return field->get<int64_t>();
}

}  // namespace sluice
