// SPDX-License-Identifier: Apache-2.0
// A step's arrays in the memory of a device: fixed places, filled through pinned memory, so that a
// recorded launch reads every step from the same addresses. Operators that read the host's memory
// read the step's own arrays, and nothing is taken or copied. By the thread that runs the steps.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "engine/core/status.h"
#include "engine/input_batch.h"
#include "engine/models/model.h"
#include "kernels/device_memory.h"

namespace sluice {

class DeviceBatch {
 public:
  // Of each of the two memories; for the plan.
  static int64_t bytes(const InputBatch::Bounds& bounds);

  // `memory` must outlive it.
  static Expected<DeviceBatch> create(kernels::DeviceMemory& memory,
                                      const InputBatch::Bounds& bounds);

  // Puts a step's arrays on their way, of block tables what max_seq_len tokens take. What comes
  // back is valid until the next call, which waits until these have been read, but for no operator
  // behind them.
  ForwardBatch upload(const ForwardBatch& host);

  // Where its token ids are.
  [[nodiscard]] TokenId* token_ids() const;

  // Where what rows that follow drafts change is; of the last upload().
  [[nodiscard]] kernels::PlaceFollowingArgs following(const ForwardBatch& batch) const;

  // The same for the rows that logits are wanted of, at most max_rows; until the next call.
  std::span<const int32_t> upload_rows(std::span<const int32_t> rows);

 private:
  // Where an array is in both memories, and how much of it there may be; bytes.
  struct Place {
    int64_t begin = 0;
    int64_t room = 0;
  };

  struct Places {
    Place token_ids, positions, query_start_loc, seq_lens, logits_indices, open_tokens;
    Place following, judged_drafts;
    std::vector<Place> slot_mapping;  // by group
    Place rows;
    std::vector<Place> block_tables;  // by group
    int64_t end = 0;
  };

  DeviceBatch() = default;

  static Places places(const InputBatch::Bounds& bounds);

  template <typename T>
  std::span<const T> stage(const Place& place, std::span<const T> values);
  std::span<const int32_t> stage_table(const Place& place,
                                       const ForwardBatch& host,
                                       size_t group);
  // Puts on its way what was staged since the last call, and nothing else.
  void send();

  bool is_direct_ = false;  // operators read the host's memory; nothing below is used
  Places places_;
  std::vector<int32_t> tokens_per_entry_;  // by group
  kernels::DeviceBuffer staging_;
  kernels::DeviceBuffer device_;
  std::unique_ptr<kernels::DeviceEvent> sent_;  // the staged bytes
  std::vector<std::span<const int64_t>> slot_mapping_;
  std::vector<std::span<const int32_t>> block_tables_;
  std::vector<kernels::DeviceMemory::Part> parts_;  // staged, and not sent yet
};

}  // namespace sluice
