// SPDX-License-Identifier: Apache-2.0
// The table of `is` tests.
#pragma once

#include <string_view>

#include "server/jinja/value.h"

namespace sluice::jinja {

using TestFunction = Expected<bool> (*)(Runtime& runtime, const Value& self, const CallArgs& args);

// Null when there is no such test.
TestFunction find_test(std::string_view name);

}  // namespace sluice::jinja
