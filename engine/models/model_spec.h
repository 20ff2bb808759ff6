// SPDX-License-Identifier: Apache-2.0
// A family of models: what its files are like, and how one of it is made. A new one is a file in
// this folder and a row in registry.cpp.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "engine/core/status.h"
#include "engine/models/model.h"
#include "engine/weights/file_spec.h"
#include "kernels/device.h"

namespace sluice {

class Checkpoint;
class WeightStore;

struct ModelOptions {
  int32_t activation_bits = 8;
  int32_t max_model_len = 0;  // rows of the rope table
  // Operators' memory; a device's has a copy of the rope table.
  kernels::DeviceMemory* memory = &kernels::host_memory();
  std::vector<int32_t> taps = {};           // HeadConfig::taps of the head that reads them
  const PackedWeight* embedding = nullptr;  // the target's, for a head without one
  const Projection* output = nullptr;       // the target's, for a head without one
};

// One family: all that bears its name. `configure` sets what goes beyond the common keys; `build`
// takes its tensors from the store, which remembers what was taken.
struct ModelSpec {
  FileSpec files = {};
  Expected<void> (*configure)(const Checkpoint& checkpoint, ModelConfig& config) = nullptr;
  Expected<std::unique_ptr<Model>> (*build)(ModelConfig config,
                                            const ModelOptions& options,
                                            WeightStore& weights) = nullptr;
  // Whether a GGUF model of `files.gguf` with this configuration becomes a directory of this family
  // although another one reads the file; null: never.
  bool (*takes_gguf)(const ModelConfig& config) = nullptr;
  // Keys that a written config.json (engine/quantize/hf_keys.cpp) and GGUF file (gguf_keys.cpp) of
  // this family have beside those of all families.
  std::span<const std::string_view> hf_keys = {};
  std::span<const std::string_view> gguf_keys = {};
  bool is_head = false;  // may use another model's embedding
};

// All families.
std::span<const ModelSpec* const> model_specs();

// kUnsupported names the architecture found and those supported.
Expected<const ModelSpec*> find_model_spec(const Checkpoint& checkpoint);

// Reads the common keys, then the architecture's own.
Expected<ModelConfig> read_model_config(const ModelSpec& spec, const Checkpoint& checkpoint);

}  // namespace sluice
