// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/linear/read_ahead.h"

#include <algorithm>
#include <utility>

namespace sluice::kernels::cpu {
namespace {

constexpr int64_t kLine = 64;
// The most bytes that a core brings: beside the weights that pass, its L2 and its part of the last
// level cache hold no more.
constexpr int64_t kMostBytes = int64_t{2} << 20;

}  // namespace

ReadAhead::ReadAhead(int32_t num_threads)
    : num_threads_(num_threads), own_(std::make_unique<Own[]>(static_cast<size_t>(num_threads))) {}

void ReadAhead::begin(const AttentionAheadArgs& args) {
  args_ = args;
  is_begun_ = true;
  ++attention_;
  row_products_ = 0;
}

void ReadAhead::share(int64_t row_products, int64_t num_rows) {
  if (!is_begun_) return;
  ++layer_;
  row_products_ += row_products;
  const int64_t after = std::max<int64_t>(last_row_products_ - row_products_, 0);
  later_ = after * num_rows / (int64_t{kProductsPerLine} * num_threads_);
}

void ReadAhead::end() {
  if (std::exchange(is_begun_, false)) last_row_products_ = row_products_;
}

LinesAhead* ReadAhead::lines(int32_t worker) {
  if (!is_begun_ || row_products_ == 0) return nullptr;
  Own& own = own_[static_cast<size_t>(worker)];
  LinesAhead& lines = own.lines;
  if (std::exchange(own.attention, attention_) != attention_) list_runs(worker, lines);
  if (std::exchange(own.layer, layer_) != layer_) {
    const int64_t rest = int64_t{lines.num_runs - lines.run} * lines.run_lines - lines.line;
    lines.left = static_cast<int32_t>(std::max<int64_t>(rest - later_, 0));
  }
  return lines.left > 0 ? &lines : nullptr;
}

void ReadAhead::list_runs(int32_t worker, LinesAhead& lines) const {
  const KvLayerView& kv = args_.kv;
  const int32_t group = args_.num_heads / kv.num_kv_heads;
  const int64_t k_bytes = kv.num_kv_heads * kv_head_bytes(kv.dtype, kv.head_dim, kv.block_size);
  const int64_t v_bytes =
      kv.num_kv_heads * kv_head_bytes(kv.dtype, kv.value_width(), kv.block_size);
  const int64_t run_bytes = std::min(k_bytes, v_bytes);  // the rest of a wider one is left out
  const auto most =
      static_cast<int32_t>(std::min<int64_t>(LinesAhead::kMostRuns, kMostBytes / run_bytes));
  lines.run = lines.line = lines.num_runs = 0;
  lines.run_lines = static_cast<int32_t>(run_bytes / kLine);
  const auto num_reqs = static_cast<int64_t>(args_.seq_lens.size());
  const int64_t end_req = (worker + int64_t{1}) * num_reqs / num_threads_;
  for (int64_t i = worker * num_reqs / num_threads_; i < end_req; ++i) {
    const auto req = static_cast<size_t>(i);
    const int32_t seq_len = args_.seq_lens[req];
    const int32_t num_tokens = args_.query_start_loc[req + 1] - args_.query_start_loc[req];
    if (num_tokens * group > kAttentionMaxRows) continue;
    const int32_t* const blocks = args_.block_table + i * args_.block_table_stride;
    const int32_t first =
        first_visible_key(seq_len - num_tokens, args_.window, args_.is_chunked) / kv.block_size;
    const auto end = static_cast<int32_t>(ceil_div(seq_len, kv.block_size));
    for (int32_t b = first; b < end && lines.num_runs + 2 <= most; ++b) {
      lines.runs[lines.num_runs++] = kv.k + blocks[b] * k_bytes;
      lines.runs[lines.num_runs++] = kv.v + blocks[b] * v_bytes;
    }
  }
}

}  // namespace sluice::kernels::cpu
