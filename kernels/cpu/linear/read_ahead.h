// SPDX-License-Identifier: Apache-2.0
// Memory that linear layers bring to caches for the attention after them (attention_ahead()).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "kernels/attention.h"
#include "kernels/cpu/isa/simd.h"

namespace sluice::kernels::cpu {

// One device's read-ahead. Worker 0 calls everything but lines(), between jobs of the pool; each
// worker makes its own list.
//
// Lines come as late as memory allows, so that linear layers' own reads do not evict them: each
// layer leaves lines to later ones that have time for them, by the work before the last attention.
class ReadAhead {
 public:
  explicit ReadAhead(int32_t num_threads);

  // Announces an attention; covers requests whose rows are one block of it. What args name must
  // stay valid until end().
  void begin(const AttentionAheadArgs& args);

  // A linear layer of `num_rows` rows with `row_products` products each begins.
  void share(int64_t row_products, int64_t num_rows);

  // Called when the attention begins.
  void end();

  // Returns, on worker `worker`, what it brings in the current layer; null: nothing.
  [[nodiscard]] LinesAhead* lines(int32_t worker);

 private:
  struct Own {
    uint64_t attention = 0;  // the attention that `lines` was listed for
    uint64_t layer = 0;      // the layer that `left` is the share of
    LinesAhead lines;
  };

  void list_runs(int32_t worker, LinesAhead& lines) const;

  const int32_t num_threads_;
  std::unique_ptr<Own[]> own_;
  AttentionAheadArgs args_ = {};
  bool is_begun_ = false;
  uint64_t attention_ = 0;  // a count, like layer_
  uint64_t layer_ = 0;
  int64_t later_ = 0;              // lines that the layers after this one have time for
  int64_t row_products_ = 0;       // since begin()
  int64_t last_row_products_ = 0;  // from the previous begin() to its end()
};

}  // namespace sluice::kernels::cpu
