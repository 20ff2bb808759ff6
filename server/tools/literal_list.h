// SPDX-License-Identifier: Apache-2.0
// Lists with optional members, and a separator between those that are present: the grammar
// library's tags have no such element. Pure functions; any thread.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string_view>
#include <vector>

#include "server/tools/tag_writer.h"

namespace sluice {

// Appends `items`, an array of elements of a structural tag, to `elements` in their order, with
// `separator` between any two that are present. `required`: one flag per item. The size grows as n
// log n of n items, and with nested lists as the product. kInvalidArgument: see TagWriter::spend().
Expected<void> add_list(const nlohmann::ordered_json& items,
                        const std::vector<bool>& required,
                        std::string_view separator,
                        TagWriter& writer,
                        nlohmann::ordered_json& elements);

}  // namespace sluice
