// SPDX-License-Identifier: Apache-2.0
// Arguments that a family writes in tags, a key and a value at a time, bound to a tool's schema:
// strings stand there as they are, so that the schema cannot be left to a grammar of JSON. Pure
// functions; any thread.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "engine/core/status.h"
#include "server/api/argument_schema.h"
#include "server/api/tag_writer.h"
#include "server/parse/call_form.h"

namespace sluice {

// Appends to `elements` the properties of `schema`, an object's, in its order and no others. A
// string is free text, one of an `enum` or a `const`; other values are JSON of their schema.
// kUnsupported, where `rules` are strict: a schema says more of the object or of a string;
// otherwise the arguments are wider than the schema there.
Expected<void> add_tagged_arguments(const TaggedForm& form,
                                    const ArgumentRules& rules,
                                    const nlohmann::ordered_json& schema,
                                    TagWriter& writer,
                                    nlohmann::ordered_json& elements);

}  // namespace sluice
