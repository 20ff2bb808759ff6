// SPDX-License-Identifier: Apache-2.0
// How a list of words becomes one text.
#pragma once

#include <string>
#include <vector>

namespace sluice {

// The parts with `separator` between them, but not in front of the first that is not empty.
inline std::string joined(const std::vector<std::string>& parts, char separator) {
  std::string text;
  for (const std::string& part : parts) {
    if (!text.empty()) text += separator;
    text += part;
  }
  return text;
}

}  // namespace sluice
