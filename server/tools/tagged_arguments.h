// SPDX-License-Identifier: Apache-2.0
// Arguments in tags, a key and a value at a time, constrained to a tool's schema: strings stand
// there without quotes, so that a grammar of JSON cannot keep the schema. Pure functions; any
// thread.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "engine/core/status.h"
#include "server/tools/argument_schema.h"
#include "server/tools/call_form.h"
#include "server/tools/tag_writer.h"

namespace sluice {

// Appends to `elements` the properties of `schema`, an object's, in its order and no others. A
// string is free text, or a value of an `enum` or a `const`; other values are JSON of their schema.
// kUnsupported if `rules` are strict and a schema has other keywords for the object or a string;
// otherwise the arguments are wider than the schema there.
Expected<void> add_tagged_arguments(const TaggedForm& form,
                                    const ArgumentRules& rules,
                                    const nlohmann::ordered_json& schema,
                                    TagWriter& writer,
                                    nlohmann::ordered_json& elements);

}  // namespace sluice
