// SPDX-License-Identifier: Apache-2.0
// The name that a client gives its request (x-request-id), which answers and log lines repeat.
#pragma once

#include <string>

namespace sluice {

// `given` where it may stand in a header and a log line: up to 512 letters, digits and -_.: marks,
// of several names with commas the first. Otherwise empty, as if none was given.
std::string safe_request_id(std::string given);

}  // namespace sluice
