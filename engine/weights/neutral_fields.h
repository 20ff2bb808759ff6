// SPDX-License-Identifier: Apache-2.0
// The fields of quantization_config that change nothing here, whoever writes them: one list for
// all readers.
#pragma once

#include "engine/core/status.h"
#include "engine/weights/known_json_fields.h"

namespace sluice {

// Called by each reader after its own fields, which it alone judges, and before no_more().
// kUnsupported: a field of the list has a value that changes the model.
Expected<void> take_neutral_fields(JsonFields& fields);

}  // namespace sluice
