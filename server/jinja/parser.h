// SPDX-License-Identifier: Apache-2.0
// Source text to syntax tree. Grammar and precedence as in Jinja 3.1 with the loop controls and the
// `generation` block of Hugging Face; extends, include and import parse, and fail when reached.
#pragma once

#include <cstdint>
#include <string_view>

#include "engine/core/status.h"
#include "server/jinja/ast.h"

namespace sluice::jinja {

// kInvalidArgument with the line, also where nesting is deeper than `max_depth`.
Expected<Block> parse(std::string_view source, int32_t max_depth);

}  // namespace sluice::jinja
