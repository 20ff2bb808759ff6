// SPDX-License-Identifier: Apache-2.0
#include "server/cli/llama_flags.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

namespace sluice {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kSpeculation = "--speculative-config";
constexpr std::string_view kOverrides = "--hf-overrides";

enum class Meaning : uint8_t { kModel, kMost, kLeast, kScaling, kScale, kInverse, kBase };

struct FlagRow {
  std::string_view name;
  Meaning meaning;
  const char* key = nullptr;  // of kScale: within rope_scaling
};

constexpr FlagRow kFlags[] = {
    {"-md", Meaning::kModel},
    {"--model-draft", Meaning::kModel},
    {"--spec-draft-model", Meaning::kModel},
    {"--draft", Meaning::kMost},
    {"--draft-n", Meaning::kMost},
    {"--draft-max", Meaning::kMost},
    {"--spec-draft-n-max", Meaning::kMost},
    {"--draft-min", Meaning::kLeast},
    {"--draft-n-min", Meaning::kLeast},
    {"--spec-draft-n-min", Meaning::kLeast},
    {"--rope-scaling", Meaning::kScaling},
    {"--rope-scale", Meaning::kScale, "factor"},
    {"--rope-freq-scale", Meaning::kInverse},
    {"--yarn-orig-ctx", Meaning::kScale, "original_max_position_embeddings"},
    {"--yarn-beta-fast", Meaning::kScale, "beta_fast"},
    {"--yarn-beta-slow", Meaning::kScale, "beta_slow"},
    {"--rope-freq-base", Meaning::kBase},
};

// Flags without a value, and what they are here.
struct KindRow {
  std::string_view name;
  std::string_view conversion;
};

constexpr KindRow kKinds[] = {{"--embedding", "embed"},
                              {"--embeddings", "embed"},
                              {"--rerank", "classify"},
                              {"--reranking", "classify"}};

// Puts the flags that a model of this kind needs in the place of such a flag.
void replace_kinds(std::vector<std::string>& arguments) {
  for (size_t at = 0; at < arguments.size() && arguments[at] != "--"; ++at) {
    const auto* row = std::ranges::find(kKinds, arguments[at], &KindRow::name);
    if (row == std::end(kKinds)) continue;
    arguments[at] = "--runner=pooling";
    arguments.insert(arguments.begin() + static_cast<ptrdiff_t>(at) + 1,
                     "--convert=" + std::string(row->conversion));
  }
}

// Takes the flag at `at` and its value out.
Expected<std::string> take_value(std::vector<std::string>& arguments, size_t at) {
  const std::string flag = arguments[at];
  const size_t equals = flag.find('=');
  arguments.erase(arguments.begin() + static_cast<ptrdiff_t>(at));
  if (equals != std::string::npos) return flag.substr(equals + 1);
  if (at == arguments.size()) {
    return make_error(ErrorCode::kInvalidArgument, "flag " + flag + " needs a value");
  }
  std::string value = std::move(arguments[at]);
  arguments.erase(arguments.begin() + static_cast<ptrdiff_t>(at));
  return value;
}

// The keys of both objects.
struct JoinedKeys {
  Json speculation = Json::object();
  Json overrides = Json::object();
  Json scaling = Json::object();  // of rope_scaling in the overrides
  std::string_view scaled_by;     // the last flag that says how far
};

// The type of scaling, as llama-server names it, or vLLM's whole object.
Expected<void> set_scaling(const std::string& value, JoinedKeys& keys) {
  const Json whole = Json::parse(value, nullptr, /*allow_exceptions=*/false);
  if (whole.is_object()) {
    keys.scaling.update(whole);
    return {};
  }
  if (value == "none" || value == "linear" || value == "yarn") {
    keys.scaling["rope_type"] = value;
    return {};
  }
  return make_error(
      ErrorCode::kInvalidArgument,
      "flag --rope-scaling must be none, linear, yarn or a JSON object, got \"" + value + "\"");
}

// Numbers that are not above zero are the file's own, as in llama-server.
Expected<void> set_rotation(const FlagRow& row, const std::string& value, JoinedKeys& keys) {
  if (row.meaning == Meaning::kScaling) return set_scaling(value, keys);
  const Json number = Json::parse(value, nullptr, /*allow_exceptions=*/false);
  if (!number.is_number()) {
    return make_error(ErrorCode::kInvalidArgument,
                      "flag " + std::string(row.name) + " must be a number, got \"" + value + "\"");
  }
  if (number.get<double>() <= 0) return {};
  if (row.meaning == Meaning::kBase) {
    keys.overrides["rope_theta"] = number;
    return {};
  }
  keys.scaled_by = row.name;
  if (row.meaning == Meaning::kInverse) {
    keys.scaling["factor"] = 1 / number.get<double>();
  } else {
    keys.scaling[row.key] = number;
  }
  return {};
}

Expected<void> set_key(const FlagRow& row, const std::string& value, JoinedKeys& keys) {
  switch (row.meaning) {
    case Meaning::kModel:
      keys.speculation["model"] = value;
      return {};
    case Meaning::kMost: {
      const Json number = Json::parse(value, nullptr, /*allow_exceptions=*/false);
      keys.speculation["num_speculative_tokens"] = number.is_number() ? number : Json(value);
      return {};
    }
    case Meaning::kLeast:
      break;
    default:
      return set_rotation(row, value, keys);
  }
  // Whether a short draft is worth its time is measured here.
  if (value == "0") return {};
  return make_error(ErrorCode::kInvalidArgument,
                    "flag " + std::string(row.name) + " must be 0, got \"" + value +
                        "\": how much is drafted follows from what it gains");
}

// Adds the keys to the objects that `ours` is given, if any: the last of them counts.
Expected<void> join_into(std::string_view ours, Json keys, std::vector<std::string>& arguments) {
  if (keys.empty()) return {};
  Json all = Json::object();
  for (size_t at = 0; at < arguments.size() && arguments[at] != "--";) {
    if (arguments[at].substr(0, arguments[at].find('=')) != ours) {
      ++at;
      continue;
    }
    SLUICE_TRY(const std::string given, take_value(arguments, at));
    const Json one = Json::parse(given, nullptr, /*allow_exceptions=*/false);
    if (!one.is_object()) {
      return make_error(ErrorCode::kInvalidArgument,
                        std::string(ours) + " must be a JSON object, got \"" + given + "\"");
    }
    all = one;
  }
  all.update(keys);
  const auto end = std::ranges::find(arguments, "--");
  arguments.insert(
      end, std::string(ours) + "=" + all.dump(-1, ' ', false, Json::error_handler_t::replace));
  return {};
}

}  // namespace

Expected<void> join_llama_flags(std::vector<std::string>& arguments) {
  replace_kinds(arguments);
  JoinedKeys keys;
  for (size_t at = 0; at < arguments.size() && arguments[at] != "--";) {
    const std::string name = arguments[at].substr(0, arguments[at].find('='));
    const auto* row = std::ranges::find(kFlags, name, &FlagRow::name);
    if (row == std::end(kFlags)) {
      ++at;
      continue;
    }
    SLUICE_TRY(const std::string value, take_value(arguments, at));
    SLUICE_TRY_VOID(set_key(*row, value, keys));
  }
  const bool has_type = keys.scaling.contains("rope_type") || keys.scaling.contains("type");
  if (!keys.scaled_by.empty() && !has_type) {
    return make_error(ErrorCode::kInvalidArgument,
                      "flag " + std::string(keys.scaled_by) + " needs --rope-scaling");
  }
  if (!keys.scaling.empty()) keys.overrides["rope_scaling"] = std::move(keys.scaling);
  SLUICE_TRY_VOID(join_into(kSpeculation, std::move(keys.speculation), arguments));
  return join_into(kOverrides, std::move(keys.overrides), arguments);
}

}  // namespace sluice
