// SPDX-License-Identifier: Apache-2.0
// Puts kept output items in the places where a request of the Responses API names them by id.
// Any thread.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>

#include "engine/core/status.h"

namespace sluice {

class ResponseStore;

// Replaces each {"type": "item_reference", "id": ...} of `input` by the item of that id in an
// answer that `store` keeps for the tenant; the type may be left out. `input` that is no array is
// left as it is. kNotFound: no kept answer has the item. kInvalidArgument: an id is no string, or
// the items have more than `max_bytes` of JSON in all.
Expected<void> resolve_references(ResponseStore& store,
                                  uint64_t tenant,
                                  int64_t max_bytes,
                                  nlohmann::ordered_json& input);

}  // namespace sluice
