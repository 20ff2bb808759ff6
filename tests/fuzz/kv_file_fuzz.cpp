// SPDX-License-Identifier: Apache-2.0
// A file of the disk tier: whatever it holds, it is refused, or is the sealed block of its name.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kvcache/store/kv_file.h"
#include "tests/fuzz/target.h"

using namespace sluice;

static int kv_file_input(const uint8_t* data, size_t size) {
  const std::vector<TokenId> tokens = {1, 2, 3, 4};
  const KvKey parent = kv_root_key("fuzz", {});
  const KvFileName name{kv_next_key(parent, tokens), parent, tokens};
  const std::span bytes(reinterpret_cast<const std::byte*>(data), size);
  if (check_kv_file(name, bytes)) {
    std::vector<std::byte> sealed(bytes.begin(), bytes.end());
    seal_kv_file(name, sealed);
    CHECK(std::equal(bytes.begin(), bytes.end(), sealed.begin()));
  }
  // A payload of these bytes is sealed and accepted.
  std::vector<std::byte> file(static_cast<size_t>(kv_file_header_bytes(4)));
  file.insert(file.end(), bytes.begin(), bytes.end());
  seal_kv_file(name, file);
  CHECK(check_kv_file(name, file).has_value());
  return 0;
}

const sluice::fuzz::Target kv_file_target("kv_file_fuzz", kv_file_input);
