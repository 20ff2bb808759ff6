// SPDX-License-Identifier: Apache-2.0
#include "engine/handoff/handoff_config.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "engine/core/config.h"

namespace sluice {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::array kRoles = {HandoffRole::kBoth, HandoffRole::kPrefill, HandoffRole::kDecode};
constexpr std::string_view kDefaultConnector = "NixlConnector";
constexpr std::array<std::string_view, 2> kSpoken = {kDefaultConnector, "MooncakeConnector"};
// Caches below or beside one engine, and transfers whose requests carry nothing that is read here.
constexpr std::array<std::string_view, 15> kOthers = {"DecodeBenchConnector",
                                                      "ExampleConnector",
                                                      "FlexKVConnectorV1",
                                                      "HF3FSKVConnector",
                                                      "LMCacheConnectorV1",
                                                      "LMCacheMPConnector",
                                                      "MoRIIOConnector",
                                                      "MooncakeStoreConnector",
                                                      "MultiConnector",
                                                      "OffloadingConnector",
                                                      "P2pConnector",
                                                      "P2pNcclConnector",
                                                      "SharedStorageConnector",
                                                      "SimpleCPUOffloadConnector",
                                                      "TPUConnector"};
constexpr std::array<std::string_view, 9> kNoMeaning = {"kv_buffer_device",
                                                         "kv_buffer_size",
                                                         "kv_rank",
                                                         "kv_parallel_size",
                                                         "kv_ip",
                                                         "kv_port",
                                                         "kv_connector_extra_config",
                                                         "kv_connector_module_path",
                                                         "enable_permute_local_kv"};

template <size_t kSize>
bool has(const std::array<std::string_view, kSize>& names, const std::string& name) {
  return std::ranges::find(names, name) != names.end();
}

tl::unexpected<Error> invalid(const std::string& what) {
  return make_error(
      ErrorCode::kInvalidArgument, "kv-transfer-config: " + what, "kv-transfer-config");
}

Expected<std::string> text_of(const std::string& name, const Json& value) {
  if (value.is_string()) return value.get<std::string>();
  return invalid(name + " must be a string, got " + value.dump());
}

Expected<HandoffRole> role_of(const std::string& name) {
  for (const HandoffRole role : kRoles) {
    if (kv_role_name(role) == name) return role;
  }
  return invalid("kv_role must be one of kv_producer, kv_consumer, kv_both, got \"" + name + "\"");
}

Expected<KvFailurePolicy> policy_of(const std::string& name) {
  if (name == "recompute") return KvFailurePolicy::kRecompute;
  if (name == "fail") return KvFailurePolicy::kFail;
  return invalid("kv_load_failure_policy must be one of recompute, fail, got \"" + name + "\"");
}

// Reads the JSON; its role, if it names one, is returned in `role`.
Expected<HandoffConfig> parse(const std::string& text, std::optional<HandoffRole>& role) {
  HandoffConfig out;
  const Json parsed = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!parsed.is_object()) return invalid("must be a JSON object, got '" + text + "'");
  for (const auto& [name, value] : parsed.items()) {
    if (value.is_null()) continue;
    if (name == "kv_connector") {
      SLUICE_TRY(out.connector, text_of(name, value));
    } else if (name == "kv_role") {
      SLUICE_TRY(const std::string given, text_of(name, value));
      SLUICE_TRY(role, role_of(given));
    } else if (name == "kv_load_failure_policy") {
      SLUICE_TRY(const std::string given, text_of(name, value));
      SLUICE_TRY(out.failure_policy, policy_of(given));
    } else if (name == "engine_id") {
      SLUICE_TRY(out.engine_id, text_of(name, value));
    } else if (has(kNoMeaning, name)) {
      out.without_meaning.push_back(name);
    } else {
      return invalid("unknown member \"" + name + "\"");
    }
  }
  return out;
}

}  // namespace

std::string_view kv_role_name(HandoffRole role) {
  switch (role) {
    case HandoffRole::kBoth:
      return "kv_both";
    case HandoffRole::kPrefill:
      return "kv_producer";
    case HandoffRole::kDecode:
      return "kv_consumer";
  }
  return "";
}

Expected<HandoffConfig> handoff_config(const Config& config) {
  HandoffConfig out;
  for (const HandoffRole role : kRoles) {
    if (to_string(role) == config.role) out.role = role;
  }
  if (config.kv_transfer_config.empty()) {
    if (out.role != HandoffRole::kBoth) out.connector = kDefaultConnector;
    return out;
  }
  std::optional<HandoffRole> given;
  SLUICE_TRY(HandoffConfig parsed, parse(config.kv_transfer_config, given));
  parsed.role = given.value_or(out.role);
  if (out.role != HandoffRole::kBoth && parsed.role != out.role) {
    return invalid("kv_role is " + std::string(kv_role_name(parsed.role)) + ", but --role is " +
                   config.role);
  }
  if (parsed.connector.empty()) {
    if (given) return invalid("kv_role needs a kv_connector");
    return parsed;
  }
  if (!given) return invalid("kv_connector needs a kv_role");
  if (has(kSpoken, parsed.connector)) return parsed;
  if (!has(kOthers, parsed.connector)) {
    return invalid("unknown kv_connector \"" + parsed.connector +
                   "\"; KV moves between two workers with NixlConnector or MooncakeConnector");
  }
  parsed.without_meaning.push_back("kv_connector " + parsed.connector);
  parsed.connector.clear();
  parsed.role = out.role;
  return parsed;
}

}  // namespace sluice
