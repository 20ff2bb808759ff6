// SPDX-License-Identifier: Apache-2.0
// A step's arrays in device memory, at fixed places and filled through pinned memory, so that a
// recorded launch reads every step from the same addresses. Where operators read host memory they
// read the step's own arrays, and nothing is allocated or copied. Used on the thread that runs the
// steps.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "engine/core/status.h"
#include "engine/models/model.h"
#include "engine/rank/input_batch.h"
#include "kernels/device_memory.h"

namespace sluice {

class DeviceBatch {
 public:
  // Bytes needed in each of the two memories, for the memory plan.
  static int64_t bytes(const InputBatch::Bounds& bounds);

  // `memory` must outlive the batch.
  static Expected<DeviceBatch> create(kernels::DeviceMemory& memory,
                                      const InputBatch::Bounds& bounds);

  // Starts copying a step's arrays to the device; block tables only as far as max_seq_len needs.
  // The result is valid until the next call, which waits until these arrays have been copied, but
  // not for the operators that read them.
  ForwardBatch upload(const ForwardBatch& host);

  // Address of the token ids.
  [[nodiscard]] TokenId* token_ids() const;

  // Arguments for placing rows that follow drafts, in the last upload().
  [[nodiscard]] kernels::PlaceFollowingArgs following(const ForwardBatch& batch) const;

  // Uploads the indices of rows whose logits are wanted, at most max_rows; valid until the next
  // call.
  std::span<const int32_t> upload_rows(std::span<const int32_t> rows);

 private:
  // An array's offset in both memories and its capacity, in bytes.
  struct Place {
    int64_t begin = 0;
    int64_t room = 0;
  };

  struct Places {
    Place token_ids, positions, query_start_loc, seq_lens, logits_indices, pending_tokens;
    Place following, judged_drafts, replay_start_loc, num_drafts;
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
  // Starts copying exactly what was staged since the last call.
  void send();

  bool is_direct_ = false;  // operators read the host's memory; nothing below is used
  Places places_;
  std::vector<int32_t> tokens_per_entry_;  // by group
  kernels::DeviceBuffer staging_;
  kernels::DeviceBuffer device_;
  std::unique_ptr<kernels::DeviceEvent> sent_;  // recorded when the staged bytes have been copied
  std::vector<std::span<const int64_t>> slot_mapping_;
  std::vector<std::span<const int32_t>> block_tables_;
  std::vector<kernels::DeviceMemory::Part> parts_;  // staged and not sent yet
};

}  // namespace sluice
