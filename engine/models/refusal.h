// SPDX-License-Identifier: Apache-2.0
// What is said of a model whose family is not supported.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "engine/weights/checkpoint.h"

namespace sluice {

// One line: the family's name, the kinds of layers that its tensors show and nothing here computes,
// and the nearest of the `supported` names, all of which follow.
std::string refusal_of_family(const Checkpoint& checkpoint,
                              std::span<const std::string_view> supported);

}  // namespace sluice
