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

enum class Endpoint : uint8_t { kChat = 1, kCompletion = 2, kBoth = 3 };

enum class Disposition : uint8_t {
  kImplemented,
  kIgnored,      // defined as without effect on a local engine's output
  kNeutralOnly,  // 400 unless `is_neutral`
};

// The knob that bounds a parameter, and the JSON-schema keyword which that makes.
struct ParameterLimit {
  int32_t Config::* knob = nullptr;
  std::string_view keyword = {};
};

struct Parameter {
  std::string_view name;
  Endpoint endpoints;
  Disposition disposition;
  bool (*is_neutral)(const nlohmann::ordered_json&);  // kNeutralOnly; null is always neutral
  // Members of the JSON schema of the values that are taken, null apart. Empty: any value, or for a
  // name of sampling_fields() what that row says.
  std::string_view schema;
  ParameterLimit limit;
};

[[nodiscard]] constexpr bool is_offered(const Parameter& parameter, Endpoint endpoint) {
  return (static_cast<unsigned>(parameter.endpoints) & static_cast<unsigned>(endpoint)) != 0;
}

std::span<const Parameter> request_parameters();

// Refuses what is not offered on `endpoint`: unknown names and values that are not neutral.
Expected<void> check_parameters(const nlohmann::ordered_json& body, Endpoint endpoint);

}  // namespace sluice
