// SPDX-License-Identifier: Apache-2.0
// A GGUF file from another one: its metadata, with the type of the new file, then tensors that come
// one at a time.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "engine/core/status.h"
#include "engine/quantize/output_file.h"
#include "engine/quantize/plan.h"

namespace sluice {

class GgufWriter {
 public:
  // `input`: the file, or a part of one that is split. Errors as GgufFile::open and OutputFile.
  static Expected<GgufWriter> create(const std::string& input,
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
