// SPDX-License-Identifier: Apache-2.0
// Typed access to the fields of a request body. Absent and null are the same; a wrong type or range
// is an Error that names the field. nlohmann's ordered objects are vectors, in which adding and
// erasing a member is linear: two functions do both for all members at once.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/core/status.h"
#include "engine/core/types.h"

namespace sluice {

// What is wrong with the field, by its path.
tl::unexpected<Error> invalid(std::string message, std::string_view param);
tl::unexpected<Error> unsupported(std::string message, std::string_view param);

// Returns null if the field is absent or null.
const nlohmann::ordered_json* find_field(const nlohmann::ordered_json& body, std::string_view name);

// Returns the text of a member; empty: there is none, it is not a string, or `value` is not an
// object.
std::string string_member(const nlohmann::ordered_json& value, std::string_view name);

Expected<bool> read_bool(const nlohmann::ordered_json& body, std::string_view name, bool fallback);
Expected<std::optional<int64_t>> read_integer(const nlohmann::ordered_json& body,
                                              std::string_view name,
                                              int64_t min,
                                              int64_t max);
// Reads one value as an integer; 3.0 counts as 3.
Expected<int64_t> to_integer(const nlohmann::ordered_json& value,
                             const std::string& name,
                             int64_t min,
                             int64_t max);
Expected<std::vector<TokenId>> to_token_ids(const nlohmann::ordered_json& array,
                                            const std::string& name,
                                            int32_t vocab_size);

// Appends a member whose name the object is known not to have yet, without a look-up. Returns it.
nlohmann::ordered_json& append_member(nlohmann::ordered_json& object,
                                      std::string name,
                                      nlohmann::ordered_json value);

using KeepsMember =
    std::function<Expected<bool>(const std::string& name, nlohmann::ordered_json& value)>;

// Removes the members that `keeps`, called once for each in their order, does not keep. An error of
// its own ends that, and nothing is removed.
Expected<void> keep_members(nlohmann::ordered_json& object, const KeepsMember& keeps);

// Returns a value in the form of an error message: JSON, shortened.
std::string show_value(const nlohmann::ordered_json& value);
// Returns a client's text for the inside of a sentence: one line of valid UTF-8, shortened.
std::string show_text(std::string_view text);

}  // namespace sluice
