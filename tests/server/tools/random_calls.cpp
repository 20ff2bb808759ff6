// SPDX-License-Identifier: Apache-2.0
#include <iterator>

#include "tests/server/tools/call_generator.h"

namespace sluice {
namespace {

using Json = nlohmann::ordered_json;

const char* type_name(const Json& value) {
  if (value.is_string()) return "string";
  if (value.is_number_integer()) return "integer";
  if (value.is_number()) return "number";
  if (value.is_boolean()) return "boolean";
  if (value.is_null()) return "null";
  return value.is_object() ? "object" : "array";
}

std::string random_text(std::mt19937& random, std::string_view markers) {
  constexpr std::string_view kParts[] = {
      "a",      "word", " ", "\n",  "\"", "\\",   "é",     "日本",  "😀",     "{",    "}",
      "[1, 2]", "<",    ">", "</x", "'",  ",",    "\\u00", "\t",    "03106", "true", "```a",
      ";",      ":",    "=", "(",   ")",  "null", "&lt;",  "x\\ny", "#",     "\r"};
  std::string text;
  for (uint32_t i = random() % 8; i > 0; --i) {
    if (!markers.empty() && random() % 6 == 0) {
      text += markers;
    } else {
      text += kParts[random() % std::size(kParts)];
    }
  }
  return text;
}

Json random_value(std::mt19937& random, std::string_view markers, int depth) {
  switch (random() % (depth > 0 ? 8 : 6)) {
    case 0:
      return static_cast<int64_t>(random()) - (1 << 30);
    case 1:
      return random() % 2 == 0;
    case 2:
      return nullptr;
    case 3:
      return static_cast<double>(random() % 1000) / 8;
    case 4:
    case 5:
      return random_text(random, markers);
    case 6: {
      Json items = Json::array();
      for (uint32_t i = random() % 4; i > 0; --i)
        items.push_back(random_value(random, markers, depth - 1));
      return items;
    }
    default: {
      Json items = Json::object();
      for (uint32_t i = random() % 4; i > 0; --i) {
        items["k" + std::to_string(i)] = random_value(random, markers, depth - 1);
      }
      return items;
    }
  }
}

}  // namespace

TestTools tools_of(const std::vector<TestCall>& calls) {
  Json parameters = Json::object();
  for (const TestCall& call : calls) {
    Json properties = Json::object();
    for (const auto& [key, value] : call.arguments.items()) {
      properties[key] = {{"type", type_name(value)}};
    }
    parameters[call.name] = {{"type", "object"}, {"properties", properties}};
  }
  return make_tools(parameters);
}

TestCall random_call(std::mt19937& random, std::string_view markers) {
  TestCall call{"tool_" + std::to_string(random()), Json::object()};
  for (uint32_t i = random() % 4; i > 0; --i) {
    call.arguments["key" + std::to_string(i)] = random_value(random, markers, 2);
  }
  return call;
}

}  // namespace sluice
