// SPDX-License-Identifier: Apache-2.0
// Tools of a request as Kimi's declarations: bytes are their JSON, or choose the members of a
// schema one by one, so that references, cycles, depth and values of the wrong type are reached.
// What passes the request's checks is declared within a bounded text, or left to JSON.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/core/config.h"
#include "server/json/json_reader.h"
#include "server/prompt/tool_list.h"
#include "server/prompt/typescript_tools.h"
#include "server/prompt/validation_context.h"
#include "tests/fuzz/target.h"
#include "tests/support/byte_tokenizer.h"

namespace {

using Json = nlohmann::ordered_json;

void require(bool holds) {
  if (!holds) std::abort();
}

// Makes a schema of chosen members, where each byte is a choice; 0 where there are no more.
class Schemas {
 public:
  explicit Schemas(std::string_view bytes) : bytes_(bytes) {}

  Json make(int levels) {
    if (levels == 0) return odd_value();
    if (chosen(8) == 7) return odd_value();
    Json schema = Json::object();
    for (size_t i = chosen(6); i > 0; --i) add_member(levels, schema);
    return schema;
  }

 private:
  size_t chosen(size_t count) {
    if (bytes_.empty()) return 0;
    const auto byte = static_cast<uint8_t>(bytes_.front());
    bytes_.remove_prefix(1);
    return byte % count;
  }

  Json odd_value() {
    switch (chosen(9)) {
      case 0: return nullptr;
      case 1: return true;
      case 2: return false;
      case 3: return -7;
      case 4: return 1e300;
      case 5: return "#";
      case 6: return Json::array();
      case 7: return Json::object();
      default: return "a\n\n\"b\" // \xc3\xa9";
    }
  }

  Json list_of(int levels) {
    Json list = Json::array();
    for (size_t i = chosen(4); i > 0; --i) list.push_back(make(levels - 1));
    return list;
  }

  Json object_of(int levels) {
    constexpr const char* kNames[] = {"a", "b", "", "d e", "$ref"};
    Json object = Json::object();
    for (size_t i = chosen(4); i > 0; --i) object[kNames[chosen(5)]] = make(levels - 1);
    return object;
  }

  Json type() {
    constexpr const char* kTypes[] = {
        "object", "array", "string", "integer", "number", "boolean", "null", "?"};
    if (chosen(4) != 3) return kTypes[chosen(8)];
    Json types = Json::array();
    for (size_t i = chosen(4); i > 0; --i) types.push_back(kTypes[chosen(8)]);
    return types;
  }

  void add_member(int levels, Json& schema) {
    constexpr const char* kPlain[] = {"description", "default", "maxLength", "pattern", "minItems",
                                      "required",    "enum",    "anyOf",     "items",   "type"};
    constexpr const char* kPlaces[] = {"#", "#/$defs/a", "#/$defs/b", "#/$defs/", "#/a", "$defs"};
    switch (chosen(10)) {
      case 0: schema["type"] = type(); break;
      case 1: schema["properties"] = object_of(levels); break;
      case 2: schema["$defs"] = object_of(levels); break;
      case 3: schema["$ref"] = kPlaces[chosen(6)]; break;
      case 4: schema["anyOf"] = list_of(levels); break;
      case 5: schema["items"] = make(levels - 1); break;
      case 6: schema["additionalProperties"] = make(levels - 1); break;
      case 7: schema["enum"] = list_of(1); break;
      case 8: schema["required"] = Json::array({"a", odd_value()}); break;
      default: schema[kPlain[chosen(10)]] = odd_value(); break;
    }
  }

  std::string_view bytes_;
};

size_t levels_of(const Json& json) {
  size_t most = 0;
  for (const Json& part : json) {
    if (json.is_structured()) most = std::max(most, levels_of(part));
  }
  return json.is_structured() ? most + 1 : 0;
}

std::optional<Json> checked(const Json& body) {
  static const sluice::Config config;
  static const sluice::ModelInfo model;
  static const sluice::ByteTokenizer tokenizer;
  static const sluice::Expected<sluice::ChatTemplate> chat_template =
      sluice::make_error(sluice::ErrorCode::kNotFound, "none");
  static const std::vector<std::string> names;
  auto tools = sluice::read_tool_list({.config = config,
                                       .model = model,
                                       .tokenizer = tokenizer,
                                       .chat_template = chat_template,
                                       .model_names = names,
                                       .unset_seed = 0,
                                       .tenant_salt = 0,
                                       .arrival = {}},
                                      body);
  if (!tools || tools->is_null()) return std::nullopt;
  return std::move(*tools);
}

}  // namespace

static int typescript_tools_input(const uint8_t* data, size_t size) {
  constexpr int kMaxLevels = 32;
  if (size == 0) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  Json body;
  if ((data[0] & 1) == 0) {
    auto parsed = sluice::parse_json(text, sluice::Config().max_json_depth);
    if (!parsed) return 0;
    body["tools"] = std::move(*parsed);
  } else {
    const Json function = {{"name", "f"}, {"parameters", Schemas(text).make(kMaxLevels)}};
    body["tools"] = Json::array({{{"type", "function"}, {"function", function}}});
  }
  const auto tools = checked(body);
  if (!tools) return 0;
  const Json sorted = sluice::with_sorted_keys(*tools);
  require(sluice::with_sorted_keys(sorted) == sorted && sorted.size() == tools->size());
  const auto declared = sluice::typescript_of_tools(sorted);
  if (!declared) return 0;
  require(declared->starts_with("# Tools\n\n## functions\nnamespace functions {\n"));
  require(declared->ends_with(") => any;\n}\n"));
  // Each byte of the JSON begins at most one line, whose indentation is the depth's.
  const size_t written = sorted.dump().size() + 1;
  require(declared->size() <= written * (2 * levels_of(sorted) + 32));
  return 0;
}

const sluice::fuzz::Target typescript_tools_target("typescript_tools_fuzz", typescript_tools_input);
