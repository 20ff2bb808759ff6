// SPDX-License-Identifier: Apache-2.0
// A keyword of a schema that its grammar leaves out.
#pragma once

#include <string>

namespace sluice {

struct LeftOutKeyword {
  std::string keyword;
  std::string place;  // JSON pointer of the schema that has it: "#/properties/x"

  friend bool operator==(const LeftOutKeyword&, const LeftOutKeyword&) = default;
};

}  // namespace sluice
