// SPDX-License-Identifier: Apache-2.0
// Arbitrary bytes as a safetensors file: every tensor lies inside the bytes.
#include <cstddef>
#include <cstdint>
#include <span>

#include "engine/weights/safetensors.h"
#include "tests/fuzz/target.h"

static int safetensors_input(const uint8_t* data, size_t size) {
  const std::span<const std::byte> bytes(reinterpret_cast<const std::byte*>(data), size);
  const auto tensors = sluice::parse_safetensors(bytes, "fuzz");
  if (!tensors) {
    CHECK(tensors.error().message.find(": found ") != std::string::npos);
    return 0;
  }
  for (const sluice::FileTensor& tensor : *tensors) {
    CHECK(tensor.data.data() >= bytes.data());
    CHECK(tensor.data.data() + tensor.data.size() <= bytes.data() + bytes.size());
  }
  return 0;
}

const sluice::fuzz::Target safetensors_target("safetensors_fuzz", safetensors_input);
