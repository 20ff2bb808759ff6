// SPDX-License-Identifier: Apache-2.0
// Reads a JSON object whose field names are all known: requested fields are checked, and fields
// that were not requested are an error. Errors are kUnsupported, one line "place.field: found X,
// expected Y".
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/core/status.h"

namespace sluice {

// Formats a value for a terminal: escaped to ASCII and cut.
std::string shown_json(const nlohmann::json& value);

class JsonFields {
 public:
  // kUnsupported: `value` is not an object. `value` must outlive the result.
  static Expected<JsonFields> create(const nlohmann::json& value, std::string place);

  [[nodiscard]] const std::string& place() const { return place_; }

  // Returns null where the field is missing or null.
  const nlohmann::json* find(const std::string& name);
  // Reads one of `choices`; with `any_case` case is ignored and the result lower case.
  Expected<std::string> choice(const std::string& name,
                               std::span<const std::string_view> choices,
                               bool any_case = false);
  // Reads an integer in [least, most]; `otherwise` if missing.
  Expected<int64_t> whole(const std::string& name,
                          int64_t least,
                          int64_t most,
                          std::optional<int64_t> otherwise = std::nullopt);
  Expected<bool> flag(const std::string& name, bool otherwise);
  // Reads a list of texts; empty if missing.
  Expected<std::vector<std::string>> names(const std::string& name);
  // Requires the field to be missing, null, false, or an empty list or object.
  Expected<void> none(const std::string& name);

  // Whether the field was requested.
  [[nodiscard]] bool is_known(const std::string& name) const { return known_.contains(name); }

  // Accepts any value of a field that changes nothing here.
  void any(const std::string& name) { known_.insert(name); }

  // Called last: fails if there is a field that was not requested.
  Expected<void> no_more();

  [[nodiscard]] tl::unexpected<Error> wrong(const std::string& name,
                                            const std::string& expected) const;

 private:
  JsonFields(const nlohmann::json& object, std::string place)
      : object_(&object), place_(std::move(place)) {}

  const nlohmann::json* object_;
  std::string place_;
  std::set<std::string> known_;
};

}  // namespace sluice
