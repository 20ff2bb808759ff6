// SPDX-License-Identifier: Apache-2.0
// The name that a client gives its request (x-request-id), which answers and log lines repeat.
#pragma once

#include <string>

namespace sluice {

// `given` where it may stand in a header and a log line: up to 128 letters, digits and -_.: marks.
// Otherwise empty, as if none was given.
std::string safe_request_id(std::string given);

}  // namespace sluice
