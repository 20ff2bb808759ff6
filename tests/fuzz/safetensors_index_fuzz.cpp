// SPDX-License-Identifier: Apache-2.0
// Arbitrary bytes as a safetensors index: file names stay in the directory.
#include <cstddef>
#include <cstdint>
#include <span>

#include "engine/weights/safetensors.h"
#include "tests/fuzz/target.h"

static int safetensors_index_input(const uint8_t* data, size_t size) {
  const std::span<const std::byte> bytes(reinterpret_cast<const std::byte*>(data), size);
  const auto files = sluice::parse_safetensors_index(bytes, "fuzz");
  if (!files) {
    CHECK(files.error().message.find(": found ") != std::string::npos);
    return 0;
  }
  for (const auto& [tensor, file] : *files) CHECK(file.find('/') == std::string::npos);
  return 0;
}

const sluice::fuzz::Target safetensors_index_target("safetensors_index_fuzz",
                                                    safetensors_index_input);
