// SPDX-License-Identifier: Apache-2.0
// The fields of a JSON object whose names are all known: what is asked for is checked, and what
// nothing asked for is an error. Errors are kUnsupported, one line "place.field: found X, expected
// Y".
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

// Escaped to ASCII and cut, so that a terminal can show it.
std::string shown_json(const nlohmann::json& value);

class JsonFields {
 public:
  // kUnsupported: `value` is no object. It must outlive the result.
  static Expected<JsonFields> create(const nlohmann::json& value, std::string place);

  [[nodiscard]] const std::string& place() const { return place_; }

  // Null where it is missing or null.
  const nlohmann::json* find(const std::string& name);
  // One of some texts, without regard to case where `any_case`: then in lower case.
  Expected<std::string> choice(const std::string& name,
                               std::span<const std::string_view> choices,
                               bool any_case = false);
  // A whole number of at most `most`; a missing one is `otherwise`.
  Expected<int64_t> whole(const std::string& name,
                          int64_t least,
                          int64_t most,
                          std::optional<int64_t> otherwise = std::nullopt);
  Expected<bool> flag(const std::string& name, bool otherwise);
  // A list of texts; a missing one is empty.
  Expected<std::vector<std::string>> names(const std::string& name);
  // Missing, null, false, or an empty list or object.
  Expected<void> none(const std::string& name);

  // Whatever it says changes nothing here.
  void any(const std::string& name) { known_.insert(name); }

  // After all others: there is no other.
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
