// SPDX-License-Identifier: Apache-2.0
#include "server/prompt/tool_list.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "server/json/json_fields.h"
#include "server/prompt/validation_context.h"

namespace sluice {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kMaxToolBytes = 1 << 20;  // of all tools' JSON
constexpr size_t kMaxNameBytes = 128;

bool is_name(const Json& value) {
  if (!value.is_string()) return false;
  const auto& name = value.get_ref<const std::string&>();
  const auto is_plain = [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' ||
           c == '-' || c == '.';
  };
  return !name.empty() && name.size() <= kMaxNameBytes && std::ranges::all_of(name, is_plain);
}

Expected<void> check_function(const Json& function, const std::string& place) {
  const Json* parameters = find_field(function, "parameters");
  if (parameters != nullptr && !parameters->is_object()) {
    return invalid(place + ".function.parameters must be a JSON schema, an object, got " +
                       show_value(*parameters) + ".",
                   "tools");
  }
  const Json* description = find_field(function, "description");
  if (description != nullptr && !description->is_string()) {
    return invalid(place + ".function.description must be a string.", "tools");
  }
  SLUICE_TRY_VOID(read_bool(function, "strict", false));
  return {};
}

}  // namespace

const Json* find_tools(const Json& body) {
  const Json* tools = find_field(body, "tools");
  return tools == nullptr || (tools->is_array() && tools->empty()) ? nullptr : tools;
}

Expected<const Json*> function_of(const Json& value,
                                  const std::string& place,
                                  const std::string& param) {
  if (!value.is_object()) return invalid(place + " must be an object.", param);
  const Json* type = find_field(value, "type");
  if (type == nullptr || !type->is_string()) {
    return invalid(place + ".type must be \"function\".", param);
  }
  if (*type != "function") {
    return unsupported(
        place + ".type " + show_value(*type) + " is not supported; only \"function\" is.", param);
  }
  const Json* function = find_field(value, "function");
  if (function == nullptr || !function->is_object()) {
    return invalid(place + ".function must be an object.", param);
  }
  const Json* name = find_field(*function, "name");
  if (name == nullptr || !is_name(*name)) {
    return invalid(
        place + ".function.name must be 1 to 128 characters of a-z, A-Z, 0-9, _, - and .", param);
  }
  return function;
}

bool may_call(const Json& body) {
  const Json* choice = find_field(body, "tool_choice");
  return choice == nullptr || *choice != "none";
}

Expected<Json> read_tool_list(const ValidationContext& context, const Json& body) {
  const Json* tools = find_tools(body);
  if (tools == nullptr) return Json();
  if (!tools->is_array() || tools->size() > kMaxTools) {
    return invalid("tools must be an array of at most " + std::to_string(kMaxTools) + " tools.",
                   "tools");
  }
  std::set<std::string> names;
  for (size_t i = 0; i < tools->size(); ++i) {
    const std::string place = "tools[" + std::to_string(i) + "]";
    SLUICE_TRY(const Json* function, function_of((*tools)[i], place, "tools"));
    SLUICE_TRY_VOID(check_function(*function, place));
    if (!names.insert((*function)["name"].get<std::string>()).second) {
      return invalid(place + ".function.name is another tool's as well.", "tools");
    }
  }
  const size_t num_bytes = tools->dump(-1, ' ', false, Json::error_handler_t::replace).size();
  if (num_bytes > kMaxToolBytes) {
    return invalid("tools may have at most " + std::to_string(kMaxToolBytes) + " bytes, got " +
                       std::to_string(num_bytes) + ".",
                   "tools");
  }
  const bool is_shown = !context.chat_template || context.chat_template->forms().prints_tools ||
                        context.chat_template->forms().system_tools;
  if (may_call(body) && !context.describes_tools && !is_shown) {
    return unsupported("The chat template does not describe tools to the model.", "tools");
  }
  return *tools;
}

}  // namespace sluice
