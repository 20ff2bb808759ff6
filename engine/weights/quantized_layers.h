// SPDX-License-Identifier: Apache-2.0
// Collects the tensors of quantized layers, which may be in several files, and makes them matrices
// of codes.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "engine/core/status.h"
#include "engine/weights/quantization.h"
#include "engine/weights/safetensors.h"

namespace sluice {

struct QuantizedLayer {
  std::string name;  // stored name: "model.layers.0.self_attn.q_proj"
  std::string file;  // that of its codes
  std::shared_ptr<const CodedMatrix> matrix;
};

class QuantizedLayers {
 public:
  // `quantization` must outlive this object.
  explicit QuantizedLayers(const Quantization& quantization) : quantization_(quantization) {}

  // Returns whether the tensor belongs to a quantized layer or describes a cache's quantization; it
  // is then kept, or left out. `path` names the file. kDataLoss: two tensors of one name.
  Expected<bool> take(const SafetensorsTensor& tensor, const std::string& path);

  // Called after the last take(). kDataLoss, kUnsupported: "file: tensor "name": found X, expected
  // Y".
  [[nodiscard]] Expected<std::vector<QuantizedLayer>> join() const;

 private:
  struct Part {
    SafetensorsTensor tensor;
    std::string path;
  };

  struct Layer {
    const LayerScheme* scheme = nullptr;
    std::map<std::string, Part, std::less<>> parts;  // by the suffix after the layer's name
  };

  static Expected<QuantizedLayer> join_one(const std::string& name, const Layer& layer);

  const Quantization& quantization_;
  std::map<std::string, Layer, std::less<>> layers_;
  bool has_cache_scales_ = false;
};

}  // namespace sluice
