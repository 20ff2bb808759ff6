// SPDX-License-Identifier: Apache-2.0
// Arguments written as literals of code (styles kPython and kGemma of ArgumentStyle), constrained
// to a tool's schema. Pure functions; any thread.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "engine/core/status.h"
#include "server/tools/argument_schema.h"
#include "server/tools/call_form.h"
#include "server/tools/tag_writer.h"

namespace sluice {

// Appends to `elements` the properties of `schema`, an object's, in its order and no others.
// kPython: a value is JSON of its schema, or True, False or None if its type is boolean or null.
// kGemma: strings are free text or a value of an `enum` or a `const`, numbers follow their schema,
// lists and objects hold such values in turn. kUnsupported if `rules` are strict and a schema has
// other keywords; otherwise arguments are wider than the schema there.
Expected<void> add_literal_arguments(const CallForm& form,
                                     const ArgumentRules& rules,
                                     const nlohmann::ordered_json& schema,
                                     TagWriter& writer,
                                     nlohmann::ordered_json& elements);

}  // namespace sluice
