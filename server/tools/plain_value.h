// SPDX-License-Identifier: Apache-2.0
// Values of calls written between tags as plain text.
#pragma once

#include <string_view>

#include "server/tools/argument_writer.h"
#include "server/tools/tool_schemas.h"

namespace sluice {

// Writes to a value that `arguments` has begun: JSON if the text is of one of the types, or if it
// is Python's of an object or array that it must be, else a string.
void write_plain(std::string_view text,
                 JsonTypes types,
                 const ArgumentWriter& arguments,
                 PieceWriter& out);

}  // namespace sluice
