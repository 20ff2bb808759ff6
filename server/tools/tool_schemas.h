// SPDX-License-Identifier: Apache-2.0
// The types of the parameters of a request's tools, for families whose arguments are text in tags:
// "03106" is a string where the schema declares it. Made once per request; immutable after, read by
// any thread.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <unordered_map>

namespace sluice {

// A set of JSON types, as bits.
using JsonTypes = uint8_t;
inline constexpr JsonTypes kJsonString = 1;
inline constexpr JsonTypes kJsonInteger = 2;
inline constexpr JsonTypes kJsonNumber = 4;  // one with a fraction or an exponent
inline constexpr JsonTypes kJsonBoolean = 8;
inline constexpr JsonTypes kJsonNull = 16;
inline constexpr JsonTypes kJsonObject = 32;
inline constexpr JsonTypes kJsonArray = 64;
inline constexpr JsonTypes kJsonAny = 127;  // also: nothing is known

class ToolSchemas {
 public:
  // Between the steps of a path into a parameter: the name of a property, or nothing for the items
  // of an array.
  static constexpr char kPathSeparator = '\x1f';

  // `parameters`: a JSON schema, any value; null: no parameters. Later ones of a name win. Types of
  // a parameter are read from `type`, `const` and `enum`, through `$ref` within the schema,
  // `anyOf`, `oneOf` and `allOf`; a schema without them allows all. So do parameters that are left
  // after a million steps through all schemas, which only repeated references or very long names
  // take.
  void add(std::string name, const nlohmann::ordered_json& parameters);

  [[nodiscard]] bool has(std::string_view name) const { return tools_.contains(std::string(name)); }

  // The only tool that a call's id can mean if its separators were dropped or replaced, or its
  // index was joined to the name; empty: none, or several.
  [[nodiscard]] std::string_view meant_by(std::string_view id) const;

  // Types that parameter `path` of tool `name`, or what the path leads to in it, may have; kJsonAny
  // where tool or place are unknown.
  [[nodiscard]] JsonTypes types_of(std::string_view name, std::string_view path) const;

 private:
  struct Tool {
    std::unordered_map<std::string, JsonTypes> parameters;  // by path
    JsonTypes other = kJsonAny;  // parameters that the schema does not name
  };

  std::unordered_map<std::string, Tool> tools_;
  int64_t budget_ = 1'000'000;  // steps through schemas that are left
};

}  // namespace sluice
