// SPDX-License-Identifier: Apache-2.0
// Which blocks of prompts a worker is known to have in its cache: a chain of hashes over whole
// blocks, each of all tokens in front of its end, of the tenant's salt and of the adapter, so that
// equal hashes are equal prefixes. Bounded; what was used longest ago is forgotten. One thread.
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

// Where a chain begins, and its next hash: of one more block of tokens.
uint64_t chain_root(uint64_t tenant_salt, int32_t adapter_id);
uint64_t chain_next(uint64_t hash, std::span<const uint64_t> tokens);

// The hashes of a request's whole blocks, the first one first; prompt, then what was generated.
std::vector<uint64_t> block_chain(const ValidRequest& request, int32_t block_size);

class PrefixIndex {
 public:
  // What a worker cannot hold it does not have: its own blocks, or fewer.
  void set_capacity(size_t most_blocks);

  // The worker has these: it has computed a request with this chain.
  void add(std::span<const uint64_t> chain);
  // It has evicted one.
  void remove(uint64_t block);
  // Nothing is known any more: it has restarted, or what it told was not all.
  void clear();

  // Blocks from the front of the chain that it has.
  [[nodiscard]] size_t num_known(std::span<const uint64_t> chain) const;

  [[nodiscard]] size_t size() const { return entries_.size(); }

 private:
  void shrink();

  size_t most_blocks_ = 0;
  std::list<uint64_t> by_age_;  // the oldest first
  std::unordered_map<uint64_t, std::list<uint64_t>::iterator> entries_;
};

}  // namespace sluice
