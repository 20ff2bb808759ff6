// SPDX-License-Identifier: Apache-2.0
// Where expected values and small models are. A function, so that the folder's name is compiled
// once: a compiler cache finds all other objects of tests again for a clone in another folder.
#pragma once

#include <string>

namespace sluice {

// tests/golden, absolute; relative to where they run in programs that are carried to a GPU.
std::string golden_folder();

}  // namespace sluice
