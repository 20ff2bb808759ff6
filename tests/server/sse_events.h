// SPDX-License-Identifier: Apache-2.0
// The events of a stream as tests read them.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace sluice {

// The data of each event, in order; comments are left out.
inline std::vector<std::string> data_of_events(const std::string& body) {
  std::vector<std::string> events;
  for (size_t at = 0; at < body.size();) {
    const size_t end = body.find("\n\n", at);
    EXPECT_NE(end, std::string::npos) << "an event is cut off";
    if (end == std::string::npos) break;
    const std::string event = body.substr(at, end - at);
    const size_t data = event.starts_with("data: ") ? 0 : event.find("\ndata: ");
    if (data != std::string::npos) events.push_back(event.substr(data + (data == 0 ? 6 : 7)));
    at = end + 2;
  }
  return events;
}

}  // namespace sluice
