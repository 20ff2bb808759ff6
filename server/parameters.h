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

enum class Endpoint : uint8_t { kChat = 1, kCompletion = 2, kBoth = 3 };

enum class Disposition : uint8_t {
  kImplemented,
  kIgnored,      // defined as without effect on a local engine's output
  kNeutralOnly,  // 400 unless `is_neutral`
};

struct Parameter {
  std::string_view name;
  Endpoint endpoints;
  Disposition disposition;
  bool (*is_neutral)(const nlohmann::ordered_json&);  // kNeutralOnly; null is always neutral
};

std::span<const Parameter> request_parameters();

// Refuses what is not offered on `endpoint`: unknown names and values that are not neutral.
Expected<void> check_parameters(const nlohmann::ordered_json& body, Endpoint endpoint);

}  // namespace sluice
