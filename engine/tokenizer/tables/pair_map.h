// SPDX-License-Identifier: Apache-2.0
// Maps 64-bit keys to 64-bit values by open addressing: merges by pair of ids, trie edges by node
// and byte. Built once, then only read; a lookup touches one cache line in most cases.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace sluice {

class PairMap {
 public:
  static constexpr uint64_t kAbsent = ~uint64_t{0};  // no key and no value has this pattern

  explicit PairMap(size_t expected_keys) { rehash(std::bit_ceil(expected_keys * 2 + 16)); }

  [[nodiscard]] uint64_t find(uint64_t key) const {
    for (size_t slot = slot_of(key);; slot = (slot + 1) & mask_) {
      const Entry& entry = entries_[slot];
      if (entry.key == key) return entry.value;
      if (entry.key == kAbsent) return kAbsent;
    }
  }

  // Returns false, without change, where the key is present already.
  bool insert(uint64_t key, uint64_t value) {
    if ((num_keys_ + 1) * 2 > entries_.size()) rehash(entries_.size() * 2);
    for (size_t slot = slot_of(key);; slot = (slot + 1) & mask_) {
      if (entries_[slot].key == key) return false;
      if (entries_[slot].key != kAbsent) continue;
      entries_[slot] = {key, value};
      ++num_keys_;
      return true;
    }
  }

 private:
  struct Entry {
    uint64_t key = kAbsent;
    uint64_t value = kAbsent;
  };

  [[nodiscard]] size_t slot_of(uint64_t key) const {
    key ^= key >> 32;
    return (key * 0x9E3779B97F4A7C15ULL) >> shift_;
  }

  void rehash(size_t num_slots) {
    std::vector<Entry> old(num_slots);
    old.swap(entries_);
    mask_ = num_slots - 1;
    shift_ = 64 - std::countr_zero(num_slots);
    num_keys_ = 0;
    for (const Entry& entry : old) {
      if (entry.key != kAbsent) insert(entry.key, entry.value);
    }
  }

  std::vector<Entry> entries_;  // a power of two of them, at most half in use
  size_t mask_ = 0;
  int shift_ = 0;
  size_t num_keys_ = 0;
};

}  // namespace sluice
