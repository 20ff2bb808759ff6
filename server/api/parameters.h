// SPDX-License-Identifier: Apache-2.0
// Every request parameter that OpenAI's API or vLLM's extension of it knows, and what becomes of
// it: implemented, harmless to ignore, or refused unless it has the value that changes nothing.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string_view>

#include "engine/core/status.h"

namespace sluice {

struct Config;
class IgnoredArguments;

enum class Endpoint : uint8_t {
  kChat = 1,
  kCompletion = 2,
  kBoth = 3,  // of those two
  kTokenize = 4,
  kChatOrTokenize = 5,
  kBothOrTokenize = 7,
  kDetokenize = 8,
  kMessages = 16,   // Anthropic's, and its count of tokens
  kResponses = 32,  // OpenAI's second API
  kOther = 48,      // the last two
  kOpenAi = 35,     // OpenAI's three
  kAny = 63,
};

enum class Disposition : uint8_t {
  kImplemented,
  kIgnored,      // defined as without effect on a local engine's output
  kNeutralOnly,  // 400 where the value asks for something and is not `is_neutral`
};

// The knob that bounds a parameter, and the JSON-schema keyword which that makes.
struct ParameterLimit {
  int32_t Config::*knob = nullptr;
  std::string_view keyword = {};
};

struct Parameter {
  std::string_view name;
  Endpoint endpoints;
  Disposition disposition;
  // kNeutralOnly: the value asks for nothing; kIgnored: it is of the parameter's type.
  bool (*is_neutral)(const nlohmann::ordered_json&);
  // Members of the JSON schema of the values that are taken, null apart. Empty: any value, or for a
  // name of sampling_fields() what that row says.
  std::string_view schema;
  ParameterLimit limit;
  // Of a value that is an object: the members that are known, with a comma behind each. Empty: any.
  std::string_view members = {};
  // kNeutralOnly: an empty list or object asks for something, such as the JSON schema {}; null and
  // false alone do not.
  bool empty_asks = false;
  bool false_asks = false;        // kNeutralOnly: false asks for something
  std::string_view instead = {};  // kNeutralOnly: the parameter to use; empty: none
};

[[nodiscard]] constexpr bool is_offered(const Parameter& parameter, Endpoint endpoint) {
  return (static_cast<unsigned>(parameter.endpoints) & static_cast<unsigned>(endpoint)) != 0;
}

std::span<const Parameter> request_parameters();

// True: the value asks for nothing. null, false, an empty list, an object with such members alone.
bool asks_nothing(const nlohmann::ordered_json& value);

// Takes out of `body` what changes no answer: values that are neutral, and names that `endpoint`
// does not know, members of known objects too; it adds those names to `ignored`, which may refuse
// them. kUnsupported: a value that is not offered and would change the answer.
Expected<void> check_parameters(nlohmann::ordered_json& body,
                                Endpoint endpoint,
                                IgnoredArguments& ignored);

}  // namespace sluice
