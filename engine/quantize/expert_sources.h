// SPDX-License-Identifier: Apache-2.0
// Rows of experts' tensors, and of q, k and v, as another layout has them. The tensors must outlive
// the sources.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "engine/quantize/source_rows.h"

namespace sluice {

inline constexpr std::string_view kHeadNorm = "_norm.";

// Parts of "blk.0.ffn_up_exps.3.weight" before, at and after the expert's number 3, or a head's of
// "blk.0.attn_q_norm.3.weight".
struct ExpertName {
  std::string stem;
  uint64_t expert = 0;
  std::string suffix;
};

// None: the name has no number.
std::optional<ExpertName> expert_name(const std::string& name);

// Returns how many of a stack's `rows` each of `parts` equal parts has. kDataLoss names `file` and
// the tensor: there are no parts, or the rows are no multiple of them.
Expected<int64_t> stack_rows(const std::string& file,
                             const std::string& tensor,
                             int64_t rows,
                             uint64_t parts);

// These fail as stack_rows() does; `file` is for messages.

// Returns one expert of a stack: rows [n, k] of a matrix, or one row of biases.
Expected<SourceTensor> expert_of(const std::string& file,
                                 const CheckpointTensor& stack,
                                 uint64_t experts,
                                 uint64_t expert);

// Returns gate rows, then up rows, of each of `count` experts.
Expected<SourceTensor> joined(const std::string& file,
                              const CheckpointTensor& gate,
                              const CheckpointTensor& up,
                              uint64_t count);

// Returns the gate (0) or the up rows (1) of such a tensor.
Expected<SourceTensor> half_of(const std::string& file,
                               const CheckpointTensor& both,
                               int64_t which,
                               uint64_t count);

// Alternates the rows of gate and up of fused experts, or the elements of their biases.
SourceTensor alternating(const CheckpointTensor& gate, const CheckpointTensor& up);

// Returns q's matrix or biases with those of k and v behind it, under the name of the whole.
// kDataLoss: k or v is missing or has another width.
Expected<SourceTensor> joined_qkv(const Checkpoint& input, const CheckpointTensor& q);

// Returns how many experts a stack has.
uint64_t experts_of(const CheckpointTensor& tensor);

}  // namespace sluice
