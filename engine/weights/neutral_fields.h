// SPDX-License-Identifier: Apache-2.0
// The fields of quantization_config that change nothing here, whoever writes them: one list for
// all readers.
#pragma once

#include "engine/core/status.h"
#include "engine/weights/known_json_fields.h"

namespace sluice {

// Called by each reader behind its own fields, which it alone judges, and before no_more().
// kUnsupported: a field of the list that does change something at its value.
Expected<void> take_neutral_fields(JsonFields& fields);

}  // namespace sluice
