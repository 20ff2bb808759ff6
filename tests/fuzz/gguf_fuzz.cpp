// SPDX-License-Identifier: Apache-2.0
// Arbitrary bytes as a GGUF file: open, vocabulary and description never crash, and every view lies
// inside the bytes.
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/core/log.h"
#include "engine/weights/describe_gguf.h"
#include "engine/weights/gguf.h"
#include "tests/fuzz/target.h"

namespace {

bool inside(std::span<const std::byte> part, std::span<const std::byte> whole) {
  return part.data() >= whole.data() && part.data() + part.size() <= whole.data() + whole.size();
}

}  // namespace

static int gguf_input(const uint8_t* data, size_t size) {
  const std::span<const std::byte> bytes(reinterpret_cast<const std::byte*>(data), size);
  const auto file = sluice::GgufFile::parse(bytes, "fuzz");
  if (!file) {
    CHECK(file.error().message.find(": found ") != std::string::npos);
    return 0;
  }
  for (const sluice::GgufTensor& tensor : (*file)->tensors()) {
    CHECK(inside(tensor.data, bytes));
  }
  for (const auto& [key, value] : (*file)->metadata()) CHECK((*file)->find(key) == &value);
  if (const auto vocabulary = sluice::read_vocabulary(**file)) {
    CHECK_LT(vocabulary->bos, static_cast<int64_t>(vocabulary->tokens.size()));
    CHECK_LT(vocabulary->eos, static_cast<int64_t>(vocabulary->tokens.size()));
  }
  CHECK(!sluice::describe_gguf(**file, true).empty());
  return 0;
}

const sluice::fuzz::Target gguf_target("gguf_fuzz", gguf_input);
