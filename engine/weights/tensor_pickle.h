// SPDX-License-Identifier: Apache-2.0
// Reads what torch.save() writes of tensors with Python's pickle, as data: a machine of the opcodes
// and the names that tensors need. It runs nothing; every other name in a file is refused, by name.
// Source of method: Python's pickletools (protocol 2), torch/_utils.py, torch/serialization.py.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/core/status.h"

namespace sluice {

// An object of the pickle. Objects are named by their index in TensorPickle::values, and those
// inside others may be any, also the same.
struct PickleValue {
  enum class Kind : uint8_t {
    kNone,
    kNumber,   // `number`; also a truth value
    kText,     // `text`; also a whole number that has no 64 bits, as its bytes
    kTuple,    // `items`
    kList,     // `items`
    kDict,     // `items`: key, value, key, value
    kName,     // a type or function that PyTorch has: `number`, its row among the known
    kStorage,  // `text`: key; `number`: elements; `items`: its type's name
    kTensor,   // `number`: the first element; `items`: storage, shape, strides, type's name
  };

  Kind kind = Kind::kNone;
  int64_t number = 0;
  std::string_view text = {};  // inside the bytes read
  std::vector<uint32_t> items = {};
};

struct TensorPickle {
  std::vector<PickleValue> values;
  uint32_t root = 0;
  size_t bytes = 0;  // as long as the pickle is
};

// A tensor of a state dict. Sizes, places and strides are what the file says, unchecked.
struct PickledTensor {
  std::string name;
  std::string_view dtype;         // in safetensors' spelling: "BF16"
  uint64_t element_bytes = 0;     // of that
  std::string_view storage;       // its key, inside the bytes read
  uint64_t storage_elements = 0;  // of `storage_unit` bytes
  uint64_t storage_unit = 0;
  uint64_t first = 0;  // element of the storage, in those of `element_bytes`
  std::vector<uint64_t> shape;
  std::vector<uint64_t> strides;  // in elements; as many as dimensions
};

// Reads the pickle at the front of `bytes`. kUnsupported for names and opcodes that tensors do not
// need, kDataLoss for what is broken, with one line "file: pickle: found X, expected Y".
Expected<TensorPickle> read_tensor_pickle(std::span<const std::byte> bytes,
                                          const std::string& file_name);

// Takes the root as a state dict: tensors by unique names and nothing else. Errors as above.
Expected<std::vector<PickledTensor>> tensors_of_state_dict(const TensorPickle& pickle,
                                                           const std::string& file_name);

}  // namespace sluice
