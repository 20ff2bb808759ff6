// SPDX-License-Identifier: Apache-2.0
// Every request parameter of OpenAI's and Anthropic's APIs and of vLLM, and its treatment:
// implemented, harmless to ignore, or refused unless it has the value that changes nothing.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string_view>

#include "engine/core/status.h"
#include "server/api/endpoint.h"

namespace sluice {

struct Config;
class IgnoredArguments;

enum class Disposition : uint8_t {
  kImplemented,
  kIgnored,      // defined as without effect on a local engine's output
  kNeutralOnly,  // 400 unless the value asks for nothing or `is_neutral`
};

// The knob that bounds a parameter, and the JSON-schema keyword that it becomes.
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
  // Members of the JSON schema of accepted values, besides null. Empty: any value, or for a name of
  // sampling_fields() that row's rule.
  std::string_view schema;
  ParameterLimit limit;
  // kNeutralOnly: an empty list or object asks for something, such as the JSON schema {}; only null
  // and false do not.
  bool empty_asks = false;
  bool false_asks = false;        // kNeutralOnly: false asks for something
  std::string_view instead = {};  // kNeutralOnly: the parameter to use; empty: none
};

[[nodiscard]] constexpr bool is_offered(const Parameter& parameter, Endpoint endpoint) {
  return (static_cast<unsigned>(parameter.endpoints) & static_cast<unsigned>(endpoint)) != 0;
}

// Returns those of requests for tokens.
std::span<const Parameter> request_parameters();
// Returns those of requests for vectors and scores.
std::span<const Parameter> pooling_parameters();
// Returns the one of these that has the endpoint's rows.
std::span<const Parameter> parameters_of(Endpoint endpoint);

// Removes from `body` what changes no answer: neutral values, and names that `endpoint` does not
// know, including members of known objects (known_members.h); it adds those names to `ignored`,
// which may refuse them. kUnsupported: a value that is not offered and would change the answer.
Expected<void> check_parameters(nlohmann::ordered_json& body,
                                Endpoint endpoint,
                                IgnoredArguments& ignored);

}  // namespace sluice
