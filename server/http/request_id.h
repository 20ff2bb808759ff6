// SPDX-License-Identifier: Apache-2.0
// The name that a client gives its request (x-request-id); answers and log lines repeat it.
#pragma once

#include <string>

namespace sluice {

// Returns `given` if it is allowed in a header and a log line: up to 512 letters, digits and -_.:
// marks; the first of several names with commas. Otherwise empty, as if none was given.
std::string safe_request_id(std::string given);

}  // namespace sluice
