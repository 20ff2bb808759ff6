// SPDX-License-Identifier: Apache-2.0
#include "engine/weights/known_json_fields.h"

#include <algorithm>
#include <cctype>
#include <limits>
#include <nlohmann/json.hpp>

namespace sluice {
namespace {

using Json = nlohmann::json;

std::string listed(std::span<const std::string_view> choices) {
  std::string text;
  for (size_t i = 0; i < choices.size(); ++i) {
    if (i > 0) text += i + 1 == choices.size() ? " or " : ", ";
    text += "\"" + std::string(choices[i]) + "\"";
  }
  return text;
}

}  // namespace

std::string shown_json(const Json& value) {
  constexpr size_t kMost = 60;
  std::string text = value.dump(-1, ' ', true, Json::error_handler_t::replace);
  if (text.size() > kMost) text = text.substr(0, kMost) + "...";
  return text;
}

Expected<JsonFields> JsonFields::create(const Json& value, std::string place) {
  if (value.is_object()) return JsonFields(value, std::move(place));
  return make_error(ErrorCode::kUnsupported,
                    place + ": found " + shown_json(value) + ", expected an object");
}

const Json* JsonFields::find(const std::string& name) {
  known_.insert(name);
  const auto found = object_->find(name);
  return found == object_->end() || found->is_null() ? nullptr : &*found;
}

tl::unexpected<Error> JsonFields::wrong(const std::string& name,
                                        const std::string& expected) const {
  const auto found = object_->find(name);
  return make_error(ErrorCode::kUnsupported,
                    place_ + "." + name + ": found " +
                        (found == object_->end() ? "nothing" : shown_json(*found)) + ", expected " +
                        expected);
}

Expected<std::string> JsonFields::choice(const std::string& name,
                                         std::span<const std::string_view> choices,
                                         bool any_case) {
  const Json* value = find(name);
  if (value == nullptr || !value->is_string()) return wrong(name, listed(choices));
  auto text = value->get<std::string>();
  if (any_case) {
    std::ranges::transform(text, text.begin(), [](unsigned char c) { return std::tolower(c); });
  }
  if (std::ranges::find(choices, text) == choices.end()) return wrong(name, listed(choices));
  return text;
}

Expected<int64_t> JsonFields::whole(const std::string& name,
                                    int64_t least,
                                    int64_t most,
                                    std::optional<int64_t> otherwise) {
  const Json* value = find(name);
  if (value == nullptr && otherwise) return *otherwise;
  // A number beyond int64_t would change its value.
  const bool is_beyond = value != nullptr && value->is_number_unsigned() &&
                         value->get<uint64_t>() > uint64_t{std::numeric_limits<int64_t>::max()};
  if (value != nullptr && value->is_number_integer() && !is_beyond) {
    const auto number = value->get<int64_t>();
    if (number >= least && number <= most) return number;
  }
  return wrong(name,
               least == most ? std::to_string(least)
                             : std::to_string(least) + " to " + std::to_string(most));
}

Expected<bool> JsonFields::flag(const std::string& name, bool otherwise) {
  const Json* value = find(name);
  if (value == nullptr) return otherwise;
  if (!value->is_boolean()) return wrong(name, "true or false");
  return value->get<bool>();
}

Expected<std::vector<std::string>> JsonFields::names(const std::string& name) {
  const Json* value = find(name);
  std::vector<std::string> texts;
  if (value == nullptr) return texts;
  if (!value->is_array()) return wrong(name, "a list of names");
  for (const Json& text : *value) {
    if (!text.is_string()) return wrong(name, "a list of names");
    texts.push_back(text.get<std::string>());
  }
  return texts;
}

Expected<void> JsonFields::none(const std::string& name) {
  const Json* value = find(name);
  if (value == nullptr || *value == false) return {};
  if ((value->is_object() || value->is_array()) && value->empty()) return {};
  return wrong(name, "null");
}

Expected<void> JsonFields::no_more() {
  for (const auto& [name, value] : object_->items()) {
    if (known_.contains(name)) continue;
    return make_error(
        ErrorCode::kUnsupported,
        place_ + ": found field " + shown_json(Json(name)) + ", expected none of that name");
  }
  return {};
}

}  // namespace sluice
