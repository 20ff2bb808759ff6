// SPDX-License-Identifier: Apache-2.0
#include "server/router/prefix_index.h"

namespace sluice {
namespace {

uint64_t mixed(uint64_t hash, uint64_t value) {
  hash ^= value + 0x9E3779B97F4A7C15 + (hash << 6) + (hash >> 2);
  hash = (hash ^ (hash >> 30)) * 0xBF58476D1CE4E5B9;
  hash = (hash ^ (hash >> 27)) * 0x94D049BB133111EB;
  return hash ^ (hash >> 31);
}

}  // namespace

std::vector<uint64_t> block_chain(const ValidRequest& request, int32_t block_size) {
  std::vector<uint64_t> chain;
  const size_t num_prompt = request.prompt.size();
  const size_t num_tokens = num_prompt + request.generated.size();
  const auto block = static_cast<size_t>(block_size);
  uint64_t hash = mixed(request.tenant_salt, static_cast<uint64_t>(request.adapter_id));
  for (size_t end = block; end <= num_tokens; end += block) {
    for (size_t i = end - block; i < end; ++i) {
      const TokenId id = i < num_prompt ? request.prompt[i] : request.generated[i - num_prompt];
      hash = mixed(hash, static_cast<uint64_t>(id));
    }
    chain.push_back(hash);
  }
  return chain;
}

void PrefixIndex::set_capacity(size_t most_blocks) {
  most_blocks_ = most_blocks;
  shrink();
}

void PrefixIndex::add(std::span<const uint64_t> chain) {
  for (size_t i = chain.size(); i-- > 0;) {  // the first block stays longest
    if (const auto found = entries_.find(chain[i]); found != entries_.end()) {
      by_age_.splice(by_age_.end(), by_age_, found->second);
    } else {
      entries_.emplace(chain[i], by_age_.insert(by_age_.end(), chain[i]));
    }
  }
  shrink();
}

void PrefixIndex::remove(uint64_t block) {
  const auto found = entries_.find(block);
  if (found == entries_.end()) return;
  by_age_.erase(found->second);
  entries_.erase(found);
}

void PrefixIndex::clear() {
  by_age_.clear();
  entries_.clear();
}

size_t PrefixIndex::num_known(std::span<const uint64_t> chain) const {
  size_t count = 0;
  while (count < chain.size() && entries_.contains(chain[count])) ++count;
  return count;
}

void PrefixIndex::shrink() {
  while (entries_.size() > most_blocks_) {
    entries_.erase(by_age_.front());
    by_age_.pop_front();
  }
}

}  // namespace sluice
