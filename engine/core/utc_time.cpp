// SPDX-License-Identifier: Apache-2.0
#include "engine/core/utc_time.h"

#include <array>
#include <ctime>

namespace sluice {

std::string utc_text(int64_t unix_seconds) {
  const auto time = static_cast<std::time_t>(unix_seconds);
  std::tm parts{};
  gmtime_r(&time, &parts);
  std::array<char, 32> text{};
  return {text.data(), std::strftime(text.data(), text.size(), "%Y-%m-%dT%H:%M:%SZ", &parts)};
}

}  // namespace sluice
