// SPDX-License-Identifier: Apache-2.0
#include "server/api/item_references.h"

#include <nlohmann/json.hpp>
#include <string>

#include "engine/core/memory_reserve.h"
#include "server/front/response_store.h"
#include "server/json/json_fields.h"

namespace sluice {
namespace {

using Json = nlohmann::ordered_json;

bool is_reference(const Json& item) {
  if (!item.is_object()) return false;
  const std::string type = string_member(item, "type");
  return type == "item_reference" || (type.empty() && item.size() == 1 && item.contains("id"));
}

}  // namespace

Expected<void> resolve_references(ResponseStore& store,
                                  uint64_t tenant,
                                  int64_t max_bytes,
                                  Json& input) {
  if (!input.is_array()) return {};
  int64_t num_bytes = 0;
  for (size_t i = 0; i < input.size(); ++i) {
    if (!is_reference(input[i])) continue;
    const std::string id = string_member(input[i], "id");
    if (id.empty()) {
      return invalid("input[" + std::to_string(i) + "].id must be the id of an item.", "input");
    }
    const std::string text = store.find_item(tenant, id);
    if (text.empty()) {
      return make_error(ErrorCode::kNotFound,
                        "Item with id '" + show_text(id) +
                            "' not found. Items are kept for a while, in memory, where `store` is "
                            "not false; send the item itself.",
                        "input");
    }
    num_bytes += static_cast<int64_t>(text.size());
    if (num_bytes > max_bytes) {
      return invalid("The items that input names by id have more than " +
                         std::to_string(max_bytes) + " bytes, the limit of a request.",
                     "input");
    }
    SLUICE_TRY_VOID(keep_memory_for(text.size()));
    input[i] = Json::parse(text);
  }
  return {};
}

}  // namespace sluice
