// SPDX-License-Identifier: Apache-2.0
// Two files as the parts of one model, and a path as a part's name.
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/weights/gguf_split.h"
#include "tests/fuzz/target.h"

using namespace sluice;

// The first two bytes: where the second file begins.
static int gguf_split_input(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  if (const auto name = parse_gguf_part_name(text)) {
    CHECK(name->path_of(name->part) == text);
  }
  if (size < 2) return 0;
  const std::span<const std::byte> bytes(reinterpret_cast<const std::byte*>(data + 2), size - 2);
  uint16_t border = 0;
  std::memcpy(&border, data, sizeof border);
  const size_t first = std::min<size_t>(border, bytes.size());
  std::vector<std::unique_ptr<GgufFile>> parts;
  for (const auto& part : {bytes.first(first), bytes.subspan(first)}) {
    auto file = GgufFile::parse(part, "fuzz");
    if (!file) return 0;
    parts.push_back(std::move(*file));
  }
  const auto checked = check_gguf_parts(parts);
  if (!checked) {
    CHECK(checked.error().message.find(": found ") != std::string::npos);
    return 0;
  }
  std::set<std::string_view> names;
  for (const auto& part : parts) {
    for (const GgufTensor& tensor : part->tensors()) CHECK(names.insert(tensor.name).second);
  }
  CHECK(parts[0]->get_uint("split.tensors.count") == names.size());
  return 0;
}

const sluice::fuzz::Target gguf_split_target("gguf_split_fuzz", gguf_split_input);
