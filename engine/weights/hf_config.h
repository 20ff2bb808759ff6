// SPDX-License-Identifier: Apache-2.0
// Reads config.json in its old and new spellings (rope_scaling and rope_parameters, text_config or
// not) into the keys of metadata.h.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "engine/core/status.h"
#include "engine/weights/file_spec.h"
#include "engine/weights/metadata.h"
#include "engine/weights/quantization.h"

namespace sluice {

struct HfConfig {
  std::string model_type;          // the text model's
  const FileSpec* spec = nullptr;  // of that type; null: no family has it
  bool is_wrapper = false;         // the text model's configuration is inside another one
  bool tied_embeddings = false;
  Quantization quantization;
  Metadata metadata;
};

// kDataLoss with one line "file: field: found X, expected Y". Scalars of the wrong type are
// detected when their keys are read. `overrides`: put over the file's keys, see override_config(),
// whose errors are then possible too.
Expected<HfConfig> parse_hf_config(std::span<const std::byte> json,
                                   const std::string& file_name,
                                   const std::string& overrides = {});

// Parses a file of its own for the quantization, beside a config.json without one. The same errors,
// and those of read_quantization(), which has `usual_method`.
Expected<Quantization> parse_hf_quant_config(std::span<const std::byte> json,
                                             const std::string& file_name,
                                             std::string_view usual_method);

}  // namespace sluice
