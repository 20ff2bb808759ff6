// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/read_ahead.h"

#include <algorithm>
#include <utility>

namespace sluice::kernels::cpu {
namespace {

constexpr int64_t kLine = 64;
// What a core brings at most: beside weights that pass, its L2 and its part of the last level cache
// hold no more.
constexpr int64_t kMostBytes = int64_t{2} << 20;

}  // namespace

ReadAhead::ReadAhead(int32_t num_threads)
    : num_threads_(num_threads),
      lines_(std::make_unique<LinesAhead[]>(static_cast<size_t>(num_threads))) {}

void ReadAhead::begin(const AttentionAheadArgs& args) {
  const KvLayerView& kv = args.kv;
  const int32_t group = args.num_heads / kv.num_kv_heads;
  const int64_t run_bytes = kv.num_kv_heads * kv_head_bytes(kv.dtype, kv.head_dim, kv.block_size);
  const auto most =
      static_cast<int32_t>(std::min<int64_t>(LinesAhead::kMostRuns, kMostBytes / run_bytes));
  const auto num_reqs = static_cast<int64_t>(args.seq_lens.size());
  for (int64_t worker = 0; worker < num_threads_; ++worker) {
    LinesAhead& lines = lines_[static_cast<size_t>(worker)];
    lines.left = lines.run = lines.line = lines.num_runs = 0;
    lines.run_lines = static_cast<int32_t>(run_bytes / kLine);
    for (int64_t req = worker * num_reqs / num_threads_;
         req < (worker + 1) * num_reqs / num_threads_;
         ++req) {
      const int32_t seq_len = args.seq_lens[static_cast<size_t>(req)];
      const int32_t num_tokens = args.query_start_loc[static_cast<size_t>(req + 1)] -
                                 args.query_start_loc[static_cast<size_t>(req)];
      if (num_tokens * group > kAttentionMaxRows) continue;
      const int32_t first = first_visible_key(seq_len - num_tokens, args.window) / kv.block_size;
      const auto end = static_cast<int32_t>(ceil_div(seq_len, kv.block_size));
      for (int32_t i = first; i < end && lines.num_runs + 2 <= most; ++i) {
        const int64_t at = args.block_table[req * args.block_table_stride + i] * run_bytes;
        lines.runs[lines.num_runs++] = kv.k + at;
        lines.runs[lines.num_runs++] = kv.v + at;
      }
    }
  }
  is_begun_ = true;
  row_products_ = 0;
}

void ReadAhead::share(int64_t row_products, int64_t num_rows) {
  if (!is_begun_) return;
  row_products_ += row_products;
  const int64_t after = std::max<int64_t>(last_row_products_ - row_products_, 0);
  const int64_t later = after * num_rows / (int64_t{kProductsPerLine} * num_threads_);
  for (int64_t worker = 0; worker < num_threads_; ++worker) {
    LinesAhead& lines = lines_[static_cast<size_t>(worker)];
    const int64_t rest = int64_t{lines.num_runs - lines.run} * lines.run_lines - lines.line;
    lines.left = static_cast<int32_t>(std::max<int64_t>(rest - later, 0));
  }
}

void ReadAhead::end() {
  if (!std::exchange(is_begun_, false)) return;
  last_row_products_ = row_products_;
  for (int64_t worker = 0; worker < num_threads_; ++worker) {
    lines_[static_cast<size_t>(worker)].left = 0;
  }
}

}  // namespace sluice::kernels::cpu
