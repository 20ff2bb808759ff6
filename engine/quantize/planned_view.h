// SPDX-License-Identifier: Apache-2.0
// What a conversion will write, before it is written.
#pragma once

#include <algorithm>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "engine/quantize/source_rows.h"
#include "engine/weights/checkpoint.h"

namespace sluice {

// The planned output as a reader of its kind would see it.
class PlannedView final : public Checkpoint {
 public:
  PlannedView(std::string path, CheckpointKind kind, std::string architecture, Metadata metadata)
      : Checkpoint(std::move(path), kind, std::move(architecture)) {
    metadata_ = std::move(metadata);
  }

  Expected<void> add(const std::vector<SourceTensor>& tensors) {
    for (const SourceTensor& source : tensors) {
      for (const std::string& name : source.read_names) {
        CheckpointTensor tensor;
        tensor.name = name;
        tensor.stored_name = source.stored_name;
        tensor.num_dims = source.num_dims;
        std::copy(std::begin(source.dims), std::end(source.dims), std::begin(tensor.dims));
        add_tensor(std::move(tensor));
      }
    }
    return index_tensors();
  }

  [[nodiscard]] std::vector<CheckpointFile> files() const override { return {}; }

  [[nodiscard]] Expected<CheckpointText> text() const override { return CheckpointText{}; }

  [[nodiscard]] std::string describe(bool) const override { return {}; }
};

}  // namespace sluice
