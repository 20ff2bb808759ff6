// SPDX-License-Identifier: Apache-2.0
#include "server/router/known_prefixes.h"

namespace sluice {
namespace {

uint64_t mixed(uint64_t hash, uint64_t value) {
  hash ^= value + 0x9E3779B97F4A7C15 + (hash << 6) + (hash >> 2);
  hash = (hash ^ (hash >> 30)) * 0xBF58476D1CE4E5B9;
  hash = (hash ^ (hash >> 27)) * 0x94D049BB133111EB;
  return hash ^ (hash >> 31);
}

}  // namespace

uint64_t chain_root(uint64_t tenant_salt, int32_t adapter_id) {
  return mixed(tenant_salt, static_cast<uint64_t>(adapter_id));
}

uint64_t chain_next(uint64_t hash, std::span<const uint64_t> tokens) {
  for (const uint64_t id : tokens) hash = mixed(hash, id);
  return hash;
}

std::vector<uint64_t> block_chain(const ValidRequest& request, int32_t block_size) {
  std::vector<uint64_t> tokens(request.prompt.begin(), request.prompt.end());
  tokens.insert(tokens.end(), request.generated.begin(), request.generated.end());
  std::vector<uint64_t> chain;
  const auto block = static_cast<size_t>(block_size);
  uint64_t hash = chain_root(request.tenant_salt, request.adapter_id);
  for (size_t end = block; end <= tokens.size(); end += block) {
    hash = chain_next(hash, std::span(tokens).subspan(end - block, block));
    chain.push_back(hash);
  }
  return chain;
}

void KnownPrefixes::set_capacity(size_t most_blocks) {
  most_blocks_ = most_blocks;
  shrink();
}

void KnownPrefixes::add(std::span<const uint64_t> chain) {
  for (size_t i = chain.size(); i-- > 0;) {  // the first block stays longest
    if (const auto found = entries_.find(chain[i]); found != entries_.end()) {
      by_age_.splice(by_age_.end(), by_age_, found->second);
    } else {
      entries_.emplace(chain[i], by_age_.insert(by_age_.end(), chain[i]));
    }
  }
  shrink();
}

void KnownPrefixes::remove(uint64_t block) {
  const auto found = entries_.find(block);
  if (found == entries_.end()) return;
  by_age_.erase(found->second);
  entries_.erase(found);
}

void KnownPrefixes::clear() {
  by_age_.clear();
  entries_.clear();
}

size_t KnownPrefixes::num_known(std::span<const uint64_t> chain) const {
  size_t count = 0;
  while (count < chain.size() && entries_.contains(chain[count])) ++count;
  return count;
}

void KnownPrefixes::shrink() {
  while (entries_.size() > most_blocks_) {
    entries_.erase(by_age_.front());
    by_age_.pop_front();
  }
}

}  // namespace sluice
