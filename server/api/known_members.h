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

// Removes from `body` the members of nested objects that nobody knows and adds their paths, such as
// "response_format.json_schema.x", to `ignored`, which may refuse them; what an API knows and this
// server leaves out by design is named and stays. The objects of a list have the list's path. What
// clients fill as they like stays whole: schemas, arguments, variables of templates, and the
// messages and tools of a chat, which its template is given as they are.
Expected<void> leave_out_unknown_members(nlohmann::ordered_json& body,
                                         Endpoint endpoint,
                                         IgnoredArguments& ignored);

}  // namespace sluice
