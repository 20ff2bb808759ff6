// SPDX-License-Identifier: Apache-2.0
#include "tests/support/golden_folder.h"

namespace sluice {

std::string golden_folder() { return SLUICE_GOLDEN_FOLDER; }

}  // namespace sluice
