// SPDX-License-Identifier: Apache-2.0
#include "engine/spec/spec_config.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

namespace sluice {
namespace {

using Json = nlohmann::ordered_json;

constexpr int32_t kMinDepth = 2;
constexpr int32_t kMaxLookup = 64;
constexpr int32_t kMaxCachedRequests = 1'000'000;
constexpr int32_t kMaxRequests = 1 << 20;
constexpr size_t kMaxLoadRows = 64;
constexpr double kMaxSpecFactor = 64;
constexpr int32_t kMaxModelLen = 1 << 30;
constexpr int32_t kModelTokens = 3;  // drafted by a model without a given number
constexpr char kMethods[] = "ngram, suffix, draft_model, eagle, eagle3, mtp, replay";

std::string shown(const Json& value) {
  return value.dump(-1, ' ', false, Json::error_handler_t::replace);
}

tl::unexpected<Error> config_error(const std::string& what) {
  return make_error(
      ErrorCode::kInvalidArgument, "speculative-config: " + what, "speculative-config");
}

tl::unexpected<Error> value_error(std::string_view key, const std::string& rule, const Json& got) {
  return config_error(std::string(key) + " must be " + rule + ", got " + shown(got));
}

Expected<int32_t> read_int(std::string_view key, const Json& value, int32_t min, int32_t max) {
  const bool fits =
      value.is_number_unsigned() ? value.get<uint64_t>() <= INT32_MAX : value.is_number_integer();
  if (!fits || value.get<int64_t>() < min || value.get<int64_t>() > max) {
    return value_error(
        key, "an integer in [" + std::to_string(min) + ", " + std::to_string(max) + "]", value);
  }
  return value.get<int32_t>();
}

// Reads a number in [min, max].
Expected<double> read_number(std::string_view key, const Json& value, double min, double max) {
  if (!value.is_number() || !(value.get<double>() >= min && value.get<double>() <= max)) {
    return value_error(key, "a number in [" + shown(min) + ", " + shown(max) + "]", value);
  }
  return value.get<double>();
}

// Names of vLLM's unsupported methods.
bool is_unsupported(std::string_view method) {
  static constexpr std::string_view kNames[] = {"medusa",
                                                "mlp_speculator",
                                                "dflash",
                                                "dspark",
                                                "ngram_gpu",
                                                "custom_class",
                                                "extract_hidden_states"};
  return std::ranges::find(kNames, method) != std::end(kNames);
}

Expected<void> set_kind(SpecConfig::ModelKind kind, SpecConfig& config) {
  if (config.model_kind) return config_error("method must name one model at most");
  config.model_kind = kind;
  return {};
}

Expected<void> add_method(std::string_view method, SpecConfig& config) {
  if (method == "ngram" || method == "[ngram]") {
    config.ngram = true;
  } else if (method == "suffix") {
    config.suffix = true;
  } else if (method == "replay") {
    config.replay = true;
  } else if (method == "draft_model") {
    return set_kind(SpecConfig::ModelKind::kDraftModel, config);
  } else if (method == "eagle") {
    return set_kind(SpecConfig::ModelKind::kEagle, config);
  } else if (method == "eagle3") {
    return set_kind(SpecConfig::ModelKind::kEagle3, config);
  } else if (method == "mtp" || method.ends_with("_mtp")) {  // or after a model's name
    return set_kind(SpecConfig::ModelKind::kMtp, config);
  } else {
    return config_error("method " + shown(std::string(method)) +
                        (is_unsupported(method) ? " is not supported" : " is not known") +
                        "; there are " + kMethods);
  }
  return {};
}

Expected<void> set_method(std::string_view, const Json& value, SpecConfig& config) {
  if (!value.is_string()) return value_error("method", "a string", value);
  std::string_view rest = value.get_ref<const std::string&>();
  while (true) {
    const size_t comma = std::min(rest.find(','), rest.size());
    SLUICE_TRY_VOID(add_method(rest.substr(0, comma), config));
    if (comma == rest.size()) return {};
    rest.remove_prefix(comma + 1);
  }
}

Expected<void> set_model(std::string_view, const Json& value, SpecConfig& config) {
  if (!value.is_string() || value.get_ref<const std::string&>().empty()) {
    return value_error("model", "a path", value);
  }
  config.model = value.get<std::string>();
  return {};
}

Expected<void> set_kv_dtype(std::string_view key, const Json& value, SpecConfig& config) {
  if (!value.is_string()) return value_error(key, "a string", value);
  config.draft_kv_cache_dtype = value.get<std::string>();
  return {};
}

// Requires one rank: a draft is computed on one device.
Expected<void> set_ranks(std::string_view key, const Json& value, SpecConfig&) {
  const Expected<int32_t> ranks = read_int(key, value, 1, 1);
  return ranks ? Expected<void>() : tl::unexpected(ranks.error());
}

Expected<void> set_load_rows(std::string_view key, const Json& value, SpecConfig& config) {
  if (!value.is_array() || value.empty() || value.size() > kMaxLoadRows) {
    return value_error(key, "a list of [from, to, tokens]", value);
  }
  int32_t last = 0;
  for (const Json& row : value) {
    if (!row.is_array() || row.size() != 3) {
      return value_error(key, "a list of [from, to, tokens]", value);
    }
    DraftTokensAtLoad bound;
    SLUICE_TRY(bound.min_requests, read_int(key, row[0], last + 1, kMaxRequests));
    SLUICE_TRY(bound.max_requests, read_int(key, row[1], bound.min_requests, kMaxRequests));
    SLUICE_TRY(bound.num_tokens, read_int(key, row[2], 0, kMaxDraftTokens));
    if (last == 0 && bound.min_requests != 1) {
      return value_error(key, "a list that begins with one request", value);
    }
    last = bound.max_requests;
    config.num_tokens_at_load.push_back(bound);
  }
  return {};
}

template <auto kMember>
Expected<void> set_int(
    std::string_view key, const Json& value, int32_t min, int32_t max, SpecConfig& config) {
  SLUICE_TRY(config.*kMember, read_int(key, value, min, max));
  return {};
}

template <auto kMember>
Expected<void> set_number(
    std::string_view key, const Json& value, double min, double max, SpecConfig& config) {
  SLUICE_TRY(config.*kMember, read_number(key, value, min, max));
  return {};
}

Expected<void> set_adaptive(std::string_view key, const Json& value, SpecConfig& config) {
  if (!value.is_boolean()) return value_error(key, "true or false", value);
  config.is_fixed = !value.get<bool>();
  return {};
}

Expected<void> set_seed(std::string_view key, const Json& value, SpecConfig& config) {
  if (!value.is_number_unsigned()) return value_error(key, "an integer from 0 on", value);
  config.replay_seed = value.get<uint64_t>();
  return {};
}

Expected<void> leave_out(std::string_view key, const Json&, SpecConfig& config) {
  config.without_meaning.emplace_back(key);
  return {};
}

using Setter = Expected<void> (*)(std::string_view, const Json&, SpecConfig&);

struct Key {
  std::string_view name;
  Setter set;
};

template <auto kMember, int32_t kMin, int32_t kMax>
constexpr Setter integer() {
  return [](std::string_view key, const Json& value, SpecConfig& config) {
    return set_int<kMember>(key, value, kMin, kMax, config);
  };
}

constexpr Key kKeys[] = {
    {"method", set_method},
    {"model", set_model},
    {"num_speculative_tokens", integer<&SpecConfig::num_speculative_tokens, 1, kMaxDraftTokens>()},
    {"num_speculative_tokens_per_batch_size", set_load_rows},
    {"max_model_len", integer<&SpecConfig::draft_max_model_len, 1, kMaxModelLen>()},
    {"kv_cache_dtype", set_kv_dtype},
    {"draft_tensor_parallel_size", set_ranks},
    {"adaptive", set_adaptive},
    {"prompt_lookup_max", integer<&SpecConfig::prompt_lookup_max, 1, kMaxLookup>()},
    {"prompt_lookup_min", integer<&SpecConfig::prompt_lookup_min, 1, kMaxLookup>()},
    {"suffix_decoding_max_tree_depth",
     integer<&SpecConfig::suffix_max_tree_depth, kMinDepth, kMaxDraftTokens>()},
    {"suffix_decoding_max_cached_requests",
     integer<&SpecConfig::suffix_max_cached_requests, 0, kMaxCachedRequests>()},
    {"suffix_decoding_max_spec_factor",
     [](std::string_view key, const Json& value, SpecConfig& config) {
       return set_number<&SpecConfig::suffix_max_spec_factor>(
           key, value, 0, kMaxSpecFactor, config);
     }},
    {"suffix_decoding_min_token_prob",
     [](std::string_view key, const Json& value, SpecConfig& config) {
       return set_number<&SpecConfig::suffix_min_token_prob>(key, value, 0, 1, config);
     }},
    {"replay_error_rate",
     [](std::string_view key, const Json& value, SpecConfig& config) {
       return set_number<&SpecConfig::replay_error_rate>(key, value, 0, 1, config);
     }},
    {"replay_seed", set_seed},
    // Drafts are accepted and sampled in a single way here, which changes no answer.
    {"rejection_sample_method", leave_out},
    {"draft_sample_method", leave_out},
    {"disable_padded_drafter_batch", leave_out},
    {"disable_eagle_block_drop", leave_out},
};

tl::unexpected<Error> unknown_key(const std::string& name) {
  std::string names;
  for (const Key& key : kKeys) {
    if (key.set != leave_out) names += (names.empty() ? "" : ", ") + std::string(key.name);
  }
  return config_error("key " + shown(name) + " is not supported; there are " + names);
}

// Guesses the kind from the name of a model's file or folder, ignoring the folders above it.
SpecConfig::ModelKind kind_by_name(std::string_view path) {
  path = path.substr(0, path.find_last_not_of('/') + 1);
  std::string name(path.substr(path.find_last_of('/') + 1));
  for (char& c : name) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  if (name.find("eagle3") != std::string::npos) return SpecConfig::ModelKind::kEagle3;
  if (name.find("eagle-") != std::string::npos) return SpecConfig::ModelKind::kEagle;
  return SpecConfig::ModelKind::kDraftModel;
}

// Completes a model without a method: vLLM's name for a proposer, or a kind by its path.
Expected<void> finish_model(SpecConfig& config) {
  if (config.model == "ngram" || config.model == "[ngram]") {
    config.ngram = true;
    config.model.clear();
  }
  if (!config.has_method()) {
    if (config.model.empty()) return config_error(std::string("needs a method: ") + kMethods);
    config.model_kind = kind_by_name(config.model);
  }
  const bool is_own = config.model_kind == SpecConfig::ModelKind::kMtp;
  if (config.has_model() && config.model.empty() && !is_own) {
    return config_error("needs a model: the path of what drafts");
  }
  if (!config.has_model() && !config.model.empty()) {
    return config_error("model needs method draft_model, eagle, eagle3 or mtp beside the others");
  }
  return {};
}

// Checks rules between keys.
Expected<void> finish(const Json& given, SpecConfig& config) {
  SLUICE_TRY_VOID(finish_model(config));
  if (config.replay && (config.ngram || config.suffix || config.has_model())) {
    return config_error("method replay stands alone");
  }
  const auto has = [&](const char* key) { return given.contains(key) && !given[key].is_null(); };
  const bool has_max = has("prompt_lookup_max");
  const bool has_min = has("prompt_lookup_min");
  if (has_max && !has_min) config.prompt_lookup_min = config.prompt_lookup_max;
  if (has_min && !has_max) config.prompt_lookup_max = config.prompt_lookup_min;
  if (config.prompt_lookup_min > config.prompt_lookup_max) {
    return config_error("prompt_lookup_min must be at most prompt_lookup_max (" +
                        std::to_string(config.prompt_lookup_max) + "), got " +
                        std::to_string(config.prompt_lookup_min));
  }
  if (!has("num_speculative_tokens")) {
    if (config.suffix) {
      config.num_speculative_tokens = config.suffix_max_tree_depth;
    } else if (config.has_model() && !config.ngram) {
      config.num_speculative_tokens = kModelTokens;
    }
  }
  return {};
}

}  // namespace

int32_t SpecConfig::max_tokens(int32_t num_running) const {
  int32_t most = num_speculative_tokens;
  for (const DraftTokensAtLoad& row : num_tokens_at_load) {
    if (row.min_requests > num_running) break;
    most = std::min(num_speculative_tokens, row.num_tokens);
  }
  return most;
}

Expected<SpecConfig> parse_spec_config(const std::string& json) {
  SpecConfig config;
  if (json.empty()) return config;
  const Json parsed = Json::parse(json, nullptr, /*allow_exceptions=*/false);
  if (!parsed.is_object()) return config_error("must be a JSON object, got " + shown(json));
  for (const auto& [name, value] : parsed.items()) {
    if (value.is_null()) continue;  // in vLLM, null means absent
    const auto* key = std::ranges::find(kKeys, name, &Key::name);
    if (key == std::end(kKeys)) return unknown_key(name);
    SLUICE_TRY_VOID(key->set(name, value, config));
  }
  SLUICE_TRY_VOID(finish(parsed, config));
  return config;
}

}  // namespace sluice
