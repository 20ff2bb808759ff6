// SPDX-License-Identifier: Apache-2.0
#include "server/tools/output_families.h"

#include <vector>

#include "engine/core/config.h"
#include "server/json/json_fields.h"
#include "server/tools/family_names.h"

namespace sluice {
namespace {

constexpr std::string_view kDetect = "auto";
constexpr std::string_view kGeneric = "hermes";

// vLLM's default is the empty name.
bool is_none(const std::string& name) { return name.empty() || name == "none"; }

tl::unexpected<Error> unknown(const std::string& flag,
                              const std::string& name,
                              const std::vector<std::string_view>& known) {
  std::string names;
  for (const std::string_view one : known) names += ", " + std::string(one);
  return make_error(
      ErrorCode::kInvalidArgument,
      "--" + flag + " must be one of auto, none" + names + ", got '" + show_text(name) + "'.",
      flag);
}

}  // namespace

Expected<void> check_family_names(const Config& config) {
  const std::string& calls = config.tool_call_parser;
  if (calls != kDetect && !is_none(calls) && find_call_family(calls) == nullptr) {
    return unknown("tool-call-parser", calls, call_family_names());
  }
  const std::string& reasoning = config.reasoning_parser;
  if (reasoning != kDetect && !is_none(reasoning) && find_reasoning_family(reasoning) == nullptr) {
    return unknown("reasoning-parser", reasoning, reasoning_family_names());
  }
  return {};
}

Expected<OutputFamilies> choose_families(const Config& config,
                                         std::string_view template_source,
                                         bool prints_tools,
                                         const Tokenizer& tokenizer) {
  SLUICE_TRY_VOID(check_family_names(config));
  OutputFamilies chosen;
  const DetectedFamilies detected = detect_families(template_source, tokenizer);
  chosen.sorts_tools = detected.calls != nullptr && sorts_tools(*detected.calls);
  const bool detects = config.tool_call_parser == kDetect;
  chosen.describes_tools =
      !template_source.empty() && !prints_tools &&
      (detects || find_call_family(config.tool_call_parser) == find_call_family(kGeneric));
  if (detects) {
    // The form that generic_tools.h describes.
    chosen.calls = chosen.describes_tools ? find_call_family(kGeneric) : detected.calls;
  } else if (is_none(config.tool_call_parser)) {
    chosen.reads_calls = false;
  } else {
    chosen.calls = find_call_family(config.tool_call_parser);
  }
  if (config.reasoning_parser == kDetect) {
    chosen.reasoning = detected.reasoning;
  } else if (!is_none(config.reasoning_parser)) {
    chosen.reasoning = find_reasoning_family(config.reasoning_parser);
  }
  if (chosen.calls != nullptr || chosen.reasoning != nullptr) {
    chosen.format = resolve_format(chosen.calls, chosen.reasoning, tokenizer);
  }
  return chosen;
}

}  // namespace sluice
