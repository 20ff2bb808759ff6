// SPDX-License-Identifier: Apache-2.0
#include "server/api/call_id.h"

#include "server/keys/digest.h"

namespace sluice {

std::string derived_name(std::string_view answer_id,
                         size_t choice_idx,
                         int64_t item_idx,
                         size_t num_characters) {
  constexpr std::string_view kCharacters =
      "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
  const Digest digest = digest_of(std::string(answer_id) + '/' + std::to_string(choice_idx) + '/' +
                                  std::to_string(item_idx));
  std::string name;
  for (size_t i = 0; i < num_characters; ++i) {
    name += kCharacters[static_cast<unsigned char>(digest[i]) % kCharacters.size()];
  }
  return name;
}

std::string call_id(const Piece& begin,
                    const ToolPlan& tools,
                    std::string_view answer_id,
                    size_t choice_idx,
                    std::string_view prefix) {
  constexpr size_t kLongName = 24;
  constexpr size_t kShortName = 9;
  if (!begin.model_id.empty()) return begin.model_id;
  switch (tools.id_rule) {
    case CallIdRule::kCounted:
      return "functions." + begin.text + ":" +
             std::to_string(tools.num_earlier_calls + begin.call_idx);
    case CallIdRule::kNineAlphanumeric:
      return derived_name(answer_id, choice_idx, begin.call_idx, kShortName);
    case CallIdRule::kAny:
      break;
  }
  return std::string(prefix) + derived_name(answer_id, choice_idx, begin.call_idx, kLongName);
}

}  // namespace sluice
