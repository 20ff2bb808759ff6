// SPDX-License-Identifier: Apache-2.0
// The blocks of prompts that a worker is known to have in its cache: a chain of hashes, one for
// each whole block, over all tokens up to the block's end, the tenant's salt and the adapter, so
// that equal hashes mean equal prefixes. Bounded; the least recently used are forgotten. One
// thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <span>
#include <unordered_map>
#include <vector>

#include "engine/core/types.h"
#include "engine/request.h"

namespace sluice {

// Return the root of a chain, and the next hash: for one more block of tokens.
uint64_t chain_root(uint64_t tenant_salt, int32_t adapter_id);
uint64_t chain_next(uint64_t hash, std::span<const uint64_t> tokens);

// Returns the hashes of a request's whole blocks in order: the prompt, then generated tokens.
std::vector<uint64_t> block_chain(const ValidRequest& request, int32_t block_size);

class KnownPrefixes {
 public:
  // Bounds the index by the worker's number of blocks, or fewer.
  void set_capacity(size_t most_blocks);

  // Adds a chain: the worker has computed a request with it.
  void add(std::span<const uint64_t> chain);
  // Removes one block, which the worker has evicted.
  void remove(uint64_t block);
  // Forgets everything: the worker has restarted, or its events were incomplete.
  void clear();

  // Returns the number of blocks from the front of the chain that the worker has.
  [[nodiscard]] size_t num_known(std::span<const uint64_t> chain) const;

  [[nodiscard]] size_t size() const { return entries_.size(); }

  [[nodiscard]] size_t capacity() const { return most_blocks_; }

 private:
  void shrink();

  size_t most_blocks_ = 0;
  std::list<uint64_t> by_age_;  // the least recently used first
  std::unordered_map<uint64_t, std::list<uint64_t>::iterator> entries_;
};

}  // namespace sluice
