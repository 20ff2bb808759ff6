// SPDX-License-Identifier: Apache-2.0
#include "server/json/json_fields.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "server/json/json_writer.h"

namespace sluice {

using Json = nlohmann::ordered_json;

tl::unexpected<Error> invalid(std::string message, std::string_view param) {
  return make_error(ErrorCode::kInvalidArgument, std::move(message), std::string(param));
}

tl::unexpected<Error> unsupported(std::string message, std::string_view param) {
  return make_error(ErrorCode::kUnsupported, std::move(message), std::string(param));
}

const Json* find_field(const Json& body, std::string_view name) {
  const auto found = body.find(std::string(name));
  return found == body.end() || found->is_null() ? nullptr : &*found;
}

Json& append_member(Json& object, std::string name, Json value) {
  auto& members = static_cast<Json::object_t::Container&>(object.get_ref<Json::object_t&>());
  members.emplace_back(std::move(name), std::move(value));
  return members.back().second;
}

Expected<void> keep_members(Json& object, const KeepsMember& keeps) {
  auto& members = object.get_ref<Json::object_t&>();
  std::vector<bool> is_kept;
  is_kept.reserve(members.size());
  for (auto& [name, value] : members) {
    SLUICE_TRY(const bool keep, keeps(name, value));
    is_kept.push_back(keep);
  }
  if (std::ranges::find(is_kept, false) == is_kept.end()) return {};
  Json kept = Json::object();
  size_t index = 0;
  for (auto& [name, value] : members) {
    if (is_kept[index++]) append_member(kept, name, std::move(value));
  }
  object = std::move(kept);
  return {};
}

std::string show_value(const Json& value) {
  constexpr size_t kMaxShown = 80;
  if (value.is_structured()) return value.is_array() ? "an array" : "an object";
  std::string text = value.dump(-1, ' ', false, Json::error_handler_t::replace);
  if (text.size() > kMaxShown) text = to_valid_utf8(text.substr(0, kMaxShown)) + "...";
  return text;
}

std::string show_text(std::string_view text) {
  constexpr size_t kMaxShown = 128;
  const Json shown = to_valid_utf8(text.substr(0, kMaxShown));
  const std::string quoted = shown.dump(-1, ' ', false, Json::error_handler_t::replace);
  return quoted.substr(1, quoted.size() - 2);
}

std::string string_member(const Json& value, std::string_view name) {
  const Json* member = value.is_object() ? find_field(value, name) : nullptr;
  return member != nullptr && member->is_string() ? member->get<std::string>() : std::string();
}

Expected<bool> read_bool(const Json& body, std::string_view name, bool fallback) {
  const Json* value = find_field(body, name);
  if (value == nullptr) return fallback;
  if (!value->is_boolean()) {
    return invalid(std::string(name) + " must be a boolean, got " + show_value(*value) + ".", name);
  }
  return value->get<bool>();
}

Expected<int64_t> to_integer(const Json& value, const std::string& name, int64_t min, int64_t max) {
  const auto out_of_range = [&] {
    return invalid(name + " must be in [" + std::to_string(min) + ", " + std::to_string(max) +
                       "], got " + show_value(value) + ".",
                   name);
  };
  int64_t number = 0;
  if (value.is_number_unsigned()) {
    const auto unsigned_number = value.get<uint64_t>();
    if (unsigned_number > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
      return out_of_range();
    }
    number = static_cast<int64_t>(unsigned_number);
  } else if (value.is_number_integer()) {
    number = value.get<int64_t>();
  } else if (value.is_number_float()) {
    const double real = value.get<double>();
    constexpr double kMaxExact = 9007199254740992.0;  // 2^53
    if (real != std::floor(real)) {
      return invalid(name + " must be an integer, got " + show_value(value) + ".", name);
    }
    if (std::abs(real) > kMaxExact) return out_of_range();
    number = static_cast<int64_t>(real);
  } else {
    return invalid(name + " must be an integer, got " + show_value(value) + ".", name);
  }
  if (number < min || number > max) return out_of_range();
  return number;
}

Expected<std::optional<int64_t>> read_integer(const Json& body,
                                              std::string_view name,
                                              int64_t min,
                                              int64_t max) {
  const Json* value = find_field(body, name);
  if (value == nullptr) return std::optional<int64_t>();
  SLUICE_TRY(const int64_t number, to_integer(*value, std::string(name), min, max));
  return std::optional<int64_t>(number);
}

Expected<std::vector<TokenId>> to_token_ids(const Json& array,
                                            const std::string& name,
                                            int32_t vocab_size) {
  if (!array.is_array()) {
    return invalid(name + " must be an array of token ids, got " + show_value(array) + ".", name);
  }
  std::vector<TokenId> ids;
  ids.reserve(array.size());
  for (size_t i = 0; i < array.size(); ++i) {
    const auto id = to_integer(array[i], name, 0, vocab_size - 1);
    if (!id) {
      const std::string place = name + "[" + std::to_string(i) + "]";
      Error error = to_integer(array[i], place, 0, vocab_size - 1).error();
      error.param = name;
      return tl::unexpected(std::move(error));
    }
    ids.push_back(static_cast<TokenId>(*id));
  }
  return ids;
}

}  // namespace sluice
