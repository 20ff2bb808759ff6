// SPDX-License-Identifier: Apache-2.0
// What linear layers bring to caches for the attention after them (attention_ahead()).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "kernels/attention.h"
#include "kernels/cpu/simd.h"

namespace sluice::kernels::cpu {

// Of one device: worker 0 calls everything but lines(), between jobs of the pool, and each worker
// makes its own list.
//
// Lines come as late as memory allows, so that what linear layers read themselves does not drive
// them out again: each layer leaves to those after it what they have the time for, by how much work
// there was before the attention before.
class ReadAhead {
 public:
  explicit ReadAhead(int32_t num_threads);

  // Of the requests whose rows are one block of attention's. What args name must be there until
  // end().
  void begin(const AttentionAheadArgs& args);

  // A linear layer of `num_rows` rows and so many products for each of them begins.
  void share(int64_t row_products, int64_t num_rows);

  // The attention begins.
  void end();

  // On worker `worker`: what it brings in the layer at hand; null: nothing.
  [[nodiscard]] LinesAhead* lines(int32_t worker);

 private:
  struct Own {
    uint64_t attention = 0;  // whose runs these are
    uint64_t layer = 0;      // whose share `left` is
    LinesAhead lines;
  };

  void list_runs(int32_t worker, LinesAhead& lines) const;

  const int32_t num_threads_;
  std::unique_ptr<Own[]> own_;
  AttentionAheadArgs args_ = {};
  bool is_begun_ = false;
  uint64_t attention_ = 0;  // counted, as are layers
  uint64_t layer_ = 0;
  int64_t later_ = 0;              // lines that the layers after this one have the time for
  int64_t row_products_ = 0;       // since begin()
  int64_t last_row_products_ = 0;  // from the begin() before to its end()
};

}  // namespace sluice::kernels::cpu
