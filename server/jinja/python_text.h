// SPDX-License-Identifier: Apache-2.0
// JSON documents as Python writes them, outside a render: what a chat template, or the code that
// models are published with, puts into a prompt. Pure functions; any thread.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

namespace sluice::jinja {

// json.dumps(value, ensure_ascii=False), which is a template's tojson.
std::string python_json(const nlohmann::ordered_json& json);
// str(value): None, True, 1.0, and a string as it is.
std::string python_str(const nlohmann::ordered_json& json);

}  // namespace sluice::jinja
