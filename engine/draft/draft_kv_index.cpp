// SPDX-License-Identifier: Apache-2.0
#include "engine/draft/draft_kv_index.h"

#include <xxhash.h>

#include <algorithm>

#include "engine/core/status.h"

namespace sluice {

uint64_t DraftTokenChain::hash(std::span<const TokenId> known, size_t index, int32_t count) {
  const auto size = static_cast<size_t>(block_size_);
  while (whole_.size() < index) {
    const std::span<const TokenId> block = known.subspan(whole_.size() * size, size);
    const uint64_t before = whole_.empty() ? 0 : whole_.back();
    whole_.push_back(XXH3_64bits_withSeed(block.data(), block.size_bytes(), before));
  }
  const uint64_t before = index == 0 ? 0 : whole_[index - 1];
  if (count == 0) return before;
  if (count == block_size_ && whole_.size() > index) return whole_[index];
  const auto rest = known.subspan(index * size, static_cast<size_t>(count));
  return XXH3_64bits_withSeed(rest.data(), rest.size_bytes(), before);
}

DraftKvIndex::DraftKvIndex(int32_t num_blocks, int32_t block_size)
    : block_size_(block_size), notes_(static_cast<size_t>(num_blocks)) {}

int32_t DraftKvIndex::count_in(DraftTokenChain& chain,
                               std::span<const TokenId> known,
                               BlockId block,
                               size_t index) const {
  const Note& note = notes_[static_cast<size_t>(block.value)];
  const auto left = static_cast<int32_t>(known.size()) - static_cast<int32_t>(index) * block_size_;
  if (note.count == 0 || note.count > left) return 0;
  return chain.hash(known, index, note.count) == note.hash ? note.count : 0;
}

DraftKvIndex::Range DraftKvIndex::find(DraftTokenChain& chain,
                                       std::span<const TokenId> known,
                                       std::span<const BlockId> blocks,
                                       int32_t from) const {
  const auto touched =
      static_cast<size_t>(ceil_div(static_cast<int64_t>(known.size()), block_size_));
  const size_t end = std::min(blocks.size(), touched);
  size_t last = static_cast<size_t>(from / block_size_);
  size_t first = std::min(last, end);
  int32_t count = 0;
  for (; last < end; ++last) {
    count = count_in(chain, known, blocks[last], last);
    if (count < block_size_) break;
    count = 0;
  }
  while (first > 0 && count_in(chain, known, blocks[first - 1], first - 1) == block_size_) --first;
  return {.first = static_cast<int32_t>(first) * block_size_,
          .end = static_cast<int32_t>(last) * block_size_ + count};
}

void DraftKvIndex::forget(std::span<const BlockId> blocks, int32_t begin, int32_t end) {
  const auto first = static_cast<size_t>(ceil_div(begin, block_size_));
  const auto behind = static_cast<size_t>(ceil_div(std::max(end, begin), block_size_));
  for (size_t i = first; i < std::min(behind, blocks.size()); ++i) note_of(blocks[i]).count = 0;
}

bool DraftKvIndex::claim(std::span<const BlockId> blocks,
                         int32_t first,
                         int32_t begin,
                         int32_t end) {
  if (first >= end) return true;
  // Reads blocks [from, written); writes the following ones, and may also read them.
  const auto from = static_cast<size_t>(first / block_size_);
  const auto written = static_cast<size_t>(begin / block_size_);
  const auto behind = static_cast<size_t>(ceil_div(end, block_size_));
  CHECK_LE(behind, blocks.size());
  for (size_t i = from; i < behind; ++i) {
    const Note& note = note_of(blocks[i]);
    if (note.written_in == pass_ || (i >= written && note.read_in == pass_)) return false;
  }
  for (size_t i = from; i < behind; ++i) {
    Note& note = note_of(blocks[i]);
    note.read_in = pass_;
    if (i < written) continue;
    note.written_in = pass_;
    // A claim within a block follows find(), which has checked everything before it.
    if (i > written || note.count > begin % block_size_) note.count = 0;
  }
  return true;
}

void DraftKvIndex::note(DraftTokenChain& chain,
                        std::span<const TokenId> known,
                        std::span<const BlockId> blocks,
                        int32_t begin,
                        int32_t end) {
  if (begin >= end) return;
  const auto last = static_cast<size_t>((end - 1) / block_size_);
  for (auto i = static_cast<size_t>(begin / block_size_); i <= last; ++i) {
    const int32_t count = std::min(block_size_, end - static_cast<int32_t>(i) * block_size_);
    note_of(blocks[i]).count = count;
    note_of(blocks[i]).hash = chain.hash(known, i, count);
  }
}

}  // namespace sluice
