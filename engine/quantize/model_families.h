// SPDX-License-Identifier: Apache-2.0
// Architectures by their names in GGUF and in Hugging Face's layout.
#pragma once

#include <string_view>

#include "engine/models/model.h"
#include "engine/weights/checkpoint.h"

namespace sluice {

struct ModelFamily {
  std::string_view gguf;        // general.architecture
  std::string_view model_type;  // of config.json
  std::string_view class_name;  // in its "architectures"
};

// Of a checkpoint with this configuration; null: the other layout has no such architecture.
const ModelFamily* find_family(const Checkpoint& checkpoint, const ModelConfig& config);

// What one of two configurations computes otherwise than the other, as "FIELD: found A, expected
// B"; empty: nothing. Rotary factors and scales may differ by a rounding; how rows of q and k lie
// and what is added to norms is the layouts' own.
std::string difference_of(const ModelConfig& found, const ModelConfig& expected);

}  // namespace sluice
