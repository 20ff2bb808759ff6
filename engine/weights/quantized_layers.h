// SPDX-License-Identifier: Apache-2.0
// The tensors of a checkpoint's quantized layers, which may lie in several files: kept by layer
// while files are read, then made matrices of codes.
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
  std::string name;  // in the file: "model.layers.0.self_attn.q_proj"
  std::shared_ptr<const CodedMatrix> matrix;
};

class QuantizedLayers {
 public:
  // `quantization` must outlive it.
  explicit QuantizedLayers(const Quantization& quantization) : quantization_(quantization) {}

  // Whether it belongs to a quantized layer, or says how a cache is quantized: then it is kept, or
  // left out. `path`: of the file. kDataLoss: two of one name.
  Expected<bool> take(const SafetensorsTensor& tensor, const std::string& path);

  // Once all are taken. kDataLoss, kUnsupported: "file: tensor "name": found X, expected Y".
  [[nodiscard]] Expected<std::vector<QuantizedLayer>> join() const;

 private:
  struct Part {
    SafetensorsTensor tensor;
    std::string path;
  };

  struct Layer {
    const LayerScheme* scheme = nullptr;
    std::map<std::string, Part, std::less<>> parts;  // by what is behind the layer's name
  };

  static Expected<QuantizedLayer> join_one(const std::string& name, const Layer& layer);

  const Quantization& quantization_;
  std::map<std::string, Layer, std::less<>> layers_;
  bool has_cache_scales_ = false;
};

}  // namespace sluice
