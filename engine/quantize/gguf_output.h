// SPDX-License-Identifier: Apache-2.0
// Writes a GGUF file: metadata, including the file's type, then tensors one at a time.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "engine/core/status.h"
#include "engine/quantize/gguf_metadata.h"
#include "engine/quantize/output_file.h"
#include "engine/quantize/plan.h"

namespace sluice {

class GgufWriter {
 public:
  // Errors as in OutputFile.
  static Expected<GgufWriter> create(GgufMetadata metadata,
                                     const std::string& output,
                                     const QuantizePlan& plan);

  Expected<void> write(const std::string& name, std::span<const std::byte> bytes);
  Expected<void> finish();

 private:
  explicit GgufWriter(OutputFile file) : file_(std::move(file)) {}

  OutputFile file_;
  std::map<std::string, int64_t> offsets_;
};

}  // namespace sluice
