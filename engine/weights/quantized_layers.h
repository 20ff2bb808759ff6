// SPDX-License-Identifier: Apache-2.0
// Collects the tensors of quantized layers, which may be in several files, and makes them matrices
// of codes.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "engine/core/status.h"
#include "engine/weights/file_tensor.h"
#include "engine/weights/quantization.h"

namespace sluice {

struct QuantizedLayer {
  // A name as directories have it: "model.layers.0.self_attn.q_proj.weight", whatever its codes'
  // tensor is called; of a stack's expert "model.layers.0.mlp.experts.7.down_proj.weight".
  std::string name;
  std::string file;  // that of its codes
  std::shared_ptr<const CodedMatrix> matrix;
};

class QuantizedLayers {
 public:
  // `quantization` must outlive this object. `takes_stacks`: the family's experts may be one tensor
  // "experts.gate_up_proj", whose rows are gate's, then up's, of each expert, and "down_proj".
  QuantizedLayers(const Quantization& quantization, bool takes_stacks)
      : quantization_(quantization), takes_stacks_(takes_stacks) {}

  // Returns whether the tensor belongs to a quantized layer or describes a cache's quantization; it
  // is then kept, or left out. `path` names the file. kDataLoss: two tensors of one name.
  Expected<bool> take(const FileTensor& tensor, const std::string& path);

  // Called after the last take(). kDataLoss, kUnsupported: "file: tensor "name": found X, expected
  // Y".
  [[nodiscard]] Expected<std::vector<QuantizedLayer>> join() const;

 private:
  struct Part {
    FileTensor tensor;
    std::string path;
  };

  struct Layer {
    const LayerScheme* scheme = nullptr;
    SchemeNames names;
    bool is_stack = false;
    std::map<std::string, Part, std::less<>> parts;  // by the suffix after the layer's name
  };

  static tl::unexpected<Error> wrong(const Part& at,
                                     const std::string& found,
                                     const std::string& expected);
  static std::string stored_name(const std::string& layer_name,
                                 const Layer& layer,
                                 std::string_view suffix);
  static Expected<const Part*> codes_of(const std::string& name, const Layer& layer);
  static Expected<const Part*> companion_of(const std::string& name,
                                            const Layer& layer,
                                            size_t role);
  static Expected<QuantizedLayer> join_one(const std::string& name, const Layer& layer);
  static Expected<std::vector<QuantizedLayer>> split_stack(const std::string& name,
                                                           const Layer& layer);

  const Quantization& quantization_;
  bool takes_stacks_;
  std::map<std::string, Layer, std::less<>> layers_;
  bool has_cache_scales_ = false;
};

}  // namespace sluice
