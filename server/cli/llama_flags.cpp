// SPDX-License-Identifier: Apache-2.0
#include "server/cli/llama_flags.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

namespace sluice {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kOurs = "--speculative-config";

enum class Meaning : uint8_t { kModel, kMost, kLeast };

struct FlagRow {
  std::string_view name;
  Meaning meaning;
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

Expected<void> set_key(const FlagRow& row, const std::string& value, Json& keys) {
  switch (row.meaning) {
    case Meaning::kModel:
      keys["model"] = value;
      return {};
    case Meaning::kMost: {
      const Json number = Json::parse(value, nullptr, /*allow_exceptions=*/false);
      keys["num_speculative_tokens"] = number.is_number() ? number : Json(value);
      return {};
    }
    case Meaning::kLeast:
      break;
  }
  // Whether a short draft is worth its time is measured here.
  if (value == "0") return {};
  return make_error(ErrorCode::kInvalidArgument,
                    "flag " + std::string(row.name) + " must be 0, got \"" + value +
                        "\": how much is drafted follows from what it gains");
}

}  // namespace

Expected<void> join_llama_flags(std::vector<std::string>& arguments) {
  replace_kinds(arguments);
  Json keys = Json::object();
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
  if (keys.empty()) return {};
  for (size_t at = 0; at < arguments.size() && arguments[at] != "--";) {
    if (arguments[at].substr(0, arguments[at].find('=')) != kOurs) {
      ++at;
      continue;
    }
    SLUICE_TRY(const std::string given, take_value(arguments, at));
    Json whole = Json::parse(given, nullptr, /*allow_exceptions=*/false);
    if (!whole.is_object()) {
      return make_error(ErrorCode::kInvalidArgument,
                        std::string(kOurs) + " must be a JSON object, got \"" + given + "\"");
    }
    whole.update(keys);
    keys = std::move(whole);
  }
  const auto end = std::ranges::find(arguments, "--");
  arguments.insert(
      end, std::string(kOurs) + "=" + keys.dump(-1, ' ', false, Json::error_handler_t::replace));
  return {};
}

}  // namespace sluice
