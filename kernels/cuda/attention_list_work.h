// SPDX-License-Identifier: Apache-2.0
// Attention of few rows a request as one list of work: for each row block and KV head, the row
// block's partitions in order. Every block of a launch takes an equal share of the list, to within
// one partition, so that all multiprocessors end together whatever the requests' lengths. A block
// joins its partitions of a row block from the first one on; partitions of a row block that began
// in another block's share it stores one by one, for the merge.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/cuda/attention_rows.h"
#include "kernels/cuda/gpu.h"
#include "kernels/cuda/rows.h"

namespace sluice::kernels::cuda {

// The most requests of a launch; larger calls take other kernels.
inline constexpr int32_t kMostListRequests = 1024;
// The list's shared memory: where each request's items start, where the last one's end, and whether
// row blocks are cut.
inline constexpr int32_t kListWords = kMostListRequests + 2;

// A launch's arguments. `attention.partials` are [block][slot][row][head_dim + 2]: o, m, l. If they
// are null, or too few for the step's lengths, a row block is one item, which no border between
// shares cuts.
struct ListWork {
  AttentionWork attention;
  int32_t blocks;  // the launch's
  int32_t slots;   // of a block, the last one for what it joined; there is one at least
};

// Whether the list's kernels take such a cache, on a device with a copy engine.
bool list_attends(const KvLayerView& kv);
// Attends the rows of work.attention.share and, if there are partials, merges them.
void launch_attention_list(Stream stream, const ListWork& work);

struct ItemRange {
  int32_t begin;
  int32_t end;
};

// The list: a request's items are [row block][KV head], and [partition] where row blocks are cut.
class WorkList {
 public:
  // All threads of the block call it; `words` is shared memory for kListWords.
  __device__ __forceinline__ WorkList(const ListWork& list, int32_t* words)
      : list_(list), starts_(words) {
    bool cuts = list.attention.partials != nullptr;
    while (true) {
      count(cuts);
      // A share keeps no more partials than it has items, nor than a row block has partitions.
      const int32_t longest = length_ + (longer_ > 0 ? 1 : 0);
      if (!cuts || longest <= list.slots || list.attention.partitions <= list.slots) return;
      cuts = false;
      __syncthreads();  // no thread reads the words
    }
  }

  [[nodiscard]] __device__ __forceinline__ int32_t num_shares() const { return shares_; }

  // Returns the items of block number `index`.
  [[nodiscard]] __device__ __forceinline__ ItemRange share(int32_t index) const {
    const int32_t begin = index * length_ + (index < longer_ ? index : longer_);
    return {begin, begin + length_ + (index < longer_ ? 1 : 0)};
  }

  [[nodiscard]] __device__ __forceinline__ int32_t request_of(int32_t item) const {
    int32_t low = 0;
    int32_t high = list_.attention.num_reqs;  // starts_[low] <= item < starts_[high]
    while (high - low > 1) {
      const int32_t middle = (low + high) / 2;
      if (starts_[middle] <= item) {
        low = middle;
      } else {
        high = middle;
      }
    }
    return low;
  }

  [[nodiscard]] __device__ __forceinline__ int32_t start_of(int32_t request) const {
    return starts_[request];
  }

  [[nodiscard]] __device__ __forceinline__ int32_t items_of(const RequestWork& of) const {
    return starts_[kMostListRequests + 1] != 0 ? of.partitions : 1;
  }

  // Returns the row block and KV head with number `unit` in the request.
  [[nodiscard]] __device__ __forceinline__ RowBlock rows_of(const RequestWork& of,
                                                            int32_t request,
                                                            int32_t unit) const {
    const AttentionWork& work = list_.attention;
    const int32_t first_row = unit / work.args.kv.num_kv_heads * work.rows_per_block;
    const int32_t rows = of.rows - first_row;
    return {.request = request,
            .first_token = of.first_token,
            .first_position = of.first_position,
            .first_row = first_row,
            .num_rows = rows < work.rows_per_block ? rows : work.rows_per_block,
            .kv_head = unit % work.args.kv.num_kv_heads};
  }

 private:
  // Counts the items and deals them out.
  __device__ __forceinline__ void count(bool cuts) {
    const AttentionWork& work = list_.attention;
    int32_t* const starts = starts_;
    for (auto request = static_cast<int32_t>(threadIdx.x); request < work.num_reqs;
         request += static_cast<int32_t>(blockDim.x)) {
      const RequestWork of = request_work(work, request);
      starts[request + 1] =
          of.row_blocks * work.args.kv.num_kv_heads * (cuts ? of.partitions : 1);
    }
    __syncthreads();
    if (threadIdx.x < 32) {
      const auto lane = static_cast<int32_t>(threadIdx.x);
      int32_t before = 0;
      for (int32_t first = 0; first < work.num_reqs; first += 32) {
        const int32_t request = first + lane;
        int32_t sum = request < work.num_reqs ? starts[request + 1] : 0;
        for (int step = 1; step < 32; step *= 2) {
          const int32_t other = __shfl_up_sync(kAllLanes, sum, step);
          if (lane >= step) sum += other;
        }
        if (request < work.num_reqs) starts[request + 1] = before + sum;
        before += static_cast<int32_t>(
            __reduce_max_sync(kAllLanes, static_cast<uint32_t>(sum)));  // the last lane's
      }
      if (lane == 0) {
        starts[0] = 0;
        starts[kMostListRequests + 1] = cuts ? 1 : 0;
      }
    }
    __syncthreads();
    const int32_t total = starts[work.num_reqs];
    shares_ = list_.blocks < total ? list_.blocks : total;
    length_ = shares_ == 0 ? 0 : total / shares_;
    longer_ = total - length_ * shares_;
  }

  const ListWork& list_;
  int32_t* starts_;
  int32_t shares_;
  int32_t length_;  // items of a share
  int32_t longer_;  // the first shares, this many, have one item more
};

// A block's visit of one row block: its partitions [begin, end), absolute, some of which may have
// no key that it sees.
struct Visit {
  RowBlock block;
  int32_t begin;
  int32_t end;
  bool starts;  // it includes the row block's first partition
  bool ends;    // it includes its last one
};

// The visits of a block's share, in order.
class Visits {
 public:
  __device__ __forceinline__ Visits(const WorkList& list, int32_t index)
      : list_(list), items_{0, 0}, request_(0) {
    if (index >= list.num_shares()) return;
    items_ = list.share(index);
    request_ = list.request_of(items_.begin);
  }

  __device__ __forceinline__ bool next(const AttentionWork& work, Visit& visit) {
    if (items_.begin >= items_.end) return false;
    while (list_.start_of(request_ + 1) <= items_.begin) ++request_;
    const RequestWork of = request_work(work, request_);
    const int32_t each = list_.items_of(of);
    const int32_t item = items_.begin - list_.start_of(request_);
    const int32_t unit = item / each;
    const int32_t first = item - unit * each;
    const int32_t left = items_.end - items_.begin;
    const int32_t count = each - first < left ? each - first : left;
    visit.block = list_.rows_of(of, request_, unit);
    const int32_t first_partition = first_partition_of(work, visit.block);
    visit.begin = first_partition + first;
    visit.end = each == 1 ? first_partition + of.partitions : visit.begin + count;
    visit.starts = first == 0;
    visit.ends = first + count == each;
    items_.begin += count;
    return true;
  }

 private:
  const WorkList& list_;
  ItemRange items_;
  int32_t request_;
};

// Returns the partition's tiles that some row of the block sees.
__device__ __forceinline__ KeyRange tiles_within(KeyRange keys, int32_t partition) {
  const KeyRange tiles{keys.begin / kAttentionTile, (keys.end - 1) / kAttentionTile + 1};
  return {std::max(tiles.begin, partition * kPartitionTiles),
          std::min(tiles.end, (partition + 1) * kPartitionTiles)};
}

// Returns where row r of the partial in a slot of a share is.
__device__ __forceinline__ float* list_partial(const ListWork& list,
                                               int32_t share,
                                               int32_t index,
                                               int32_t r) {
  const AttentionWork& work = list.attention;
  const int64_t slot = int64_t{share} * list.slots + index;
  return work.partials + (slot * work.rows_per_block + r) * (int64_t{work.args.kv.head_dim} + 2);
}

}  // namespace sluice::kernels::cuda
