// SPDX-License-Identifier: Apache-2.0
// Arbitrary bytes as a file of torch.save(): every tensor lies inside the bytes or in a copy, and
// the copies together are no larger than the file. Inputs are tried as the pickle of an archive
// too.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "engine/weights/tensor_pickle.h"
#include "engine/weights/torch_file.h"
#include "tests/fuzz/target.h"

static bool lies_in(std::span<const std::byte> part, std::span<const std::byte> whole) {
  return part.data() >= whole.data() && part.data() + part.size() <= whole.data() + whole.size();
}

static int torch_file_input(const uint8_t* data, size_t size) {
  const std::span<const std::byte> bytes(reinterpret_cast<const std::byte*>(data), size);
  if (const auto pickle = sluice::read_tensor_pickle(bytes, "fuzz")) {
    CHECK(pickle->bytes <= size);
    for (const auto& value : pickle->values) {
      for (const uint32_t item : value.items) CHECK(item < pickle->values.size());
    }
    const auto tensors = sluice::tensors_of_state_dict(*pickle, "fuzz");
    if (tensors) {
      for (const auto& tensor : *tensors) CHECK(tensor.shape.size() == tensor.strides.size());
    }
  }
  const auto parsed = sluice::parse_torch_file(bytes, "fuzz");
  if (!parsed) {
    CHECK(parsed.error().message.find(": found ") != std::string::npos);
    return 0;
  }
  size_t copied = 0;
  for (const auto& copy : parsed->copies) copied += copy.size();
  CHECK(copied <= size);
  CHECK(lies_in(parsed->header, bytes));
  for (const sluice::FileTensor& tensor : parsed->tensors) {
    const bool is_copy = std::ranges::any_of(
        parsed->copies, [&](const auto& copy) { return lies_in(tensor.data, copy); });
    CHECK(tensor.data.empty() || is_copy || lies_in(tensor.data, bytes));
  }
  return 0;
}

const sluice::fuzz::Target torch_file_target("torch_file_fuzz", torch_file_input);
