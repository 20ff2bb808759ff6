// SPDX-License-Identifier: Apache-2.0
// The members of objects inside a request: what the APIs' own types know. Called by the check of
// parameters, on the request's I/O thread.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "engine/core/status.h"
#include "server/api/endpoint.h"

namespace sluice {

class IgnoredArguments;

// Tells whether the value asks for nothing: null, false, an empty list, an object with such members
// only.
bool asks_nothing(const nlohmann::ordered_json& value);

// Removes unknown members of nested objects from `body` and adds their paths, such as
// "response_format.json_schema.x", to `ignored`, which may reject them. A member that an API
// defines and this server omits by design is reported and kept. The objects of a list have the
// list's path. Values of free form are kept whole: schemas, arguments, variables of templates, and
// the messages and tools of a chat, which its template receives unchanged.
Expected<void> leave_out_unknown_members(nlohmann::ordered_json& body,
                                         Endpoint endpoint,
                                         IgnoredArguments& ignored);

}  // namespace sluice
