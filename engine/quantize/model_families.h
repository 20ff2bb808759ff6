// SPDX-License-Identifier: Apache-2.0
// Names of architectures in GGUF and in Hugging Face's layout.
#pragma once

#include <string_view>

#include "engine/models/model.h"
#include "engine/weights/checkpoint.h"

namespace sluice {

struct ModelFamily {
  std::string_view gguf;        // general.architecture
  std::string_view model_type;  // in config.json
  std::string_view class_name;  // in its "architectures"
};

// Returns the family of a checkpoint with this configuration; null: the other layout has none.
const ModelFamily* find_family(const Checkpoint& checkpoint, const ModelConfig& config);

// Returns the first difference in computation between two configurations, as "FIELD: found A,
// expected B"; empty: none. Rotary factors and scales may differ by a rounding; the order of q and
// k rows and the offset of norms depend on the layout and are ignored.
std::string difference_of(const ModelConfig& found, const ModelConfig& expected);

}  // namespace sluice
