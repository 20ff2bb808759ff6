// SPDX-License-Identifier: Apache-2.0
// Interfaces of the two halves of a layer: a mixer, which reads other tokens of the sequence
// through what it caches, and a feed-forward half, which reads its own token only.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

#include "engine/models/blocks.h"
#include "engine/models/model.h"

namespace sluice {

// Where a half writes: rows (+)= its output, then `then` for each row.
struct HalfOutput {
  ProjectionOutput rows;
  kernels::Epilogue epilogue;
  const kernels::RowSteps& then;
};

// Scratch memory belongs to one half at a time: all mixers are bound to the same bytes, and all
// feed-forward halves to others, since ranks may still read what the half before has sent.
class Half {
 public:
  virtual ~Half() = default;
  [[nodiscard]] virtual int64_t scratch_bytes(const StepBounds& bounds) const = 0;
  virtual void bind(const StepBounds& bounds, std::span<std::byte> scratch) = 0;
};

class Mixer : public Half {
 public:
  // The group that caches what this layer does; layers whose groups are equal share one.
  [[nodiscard]] virtual KvGroupSpec group(DType dtype) const = 0;
  // What reads the half's input rows.
  [[nodiscard]] virtual const Projection& input() const = 0;

  // A mixer that this one runs, which caches a group of its own; null: none.
  [[nodiscard]] virtual const Mixer* beside() const { return nullptr; }

  // `rope`: the layer's, or null.
  virtual void forward(const ForwardContext& context,
                       const LayerCache& cache,
                       const kernels::RopeTable* rope,
                       const LinearInput& in,
                       const HalfOutput& out) const = 0;
  // Makes linear layers before forward() prefetch what it reads.
  virtual void read_ahead(const ForwardContext& context, const LayerCache& cache) const = 0;
};

// The input rows of a feed-forward half, in the forms that it asks for.
struct FfnInput {
  const LinearInput& rows;       // of Ffn::input()
  const float* plain = nullptr;  // where reads_plain()
  int64_t stride = 0;
  const float* stream = nullptr;  // the residual stream before any norm, [tokens, hidden]
  const float* routed = nullptr;  // what a router reads in place of `plain`, as far apart
};

class Ffn : public Half {
 public:
  // What reads the half's input rows; null: nothing but plain ones.
  [[nodiscard]] virtual const Projection* input() const = 0;
  [[nodiscard]] virtual bool reads_plain() const = 0;
  // The most rows that a rank sends at once in a step of `tokens` tokens.
  [[nodiscard]] virtual int64_t max_sent_rows(int32_t tokens) const = 0;
  virtual void forward(const ForwardContext& context,
                       const FfnInput& in,
                       const HalfOutput& out) const = 0;
};

// The bytes that suffice for any of these halves, of which some may be null.
template <typename Halves>
int64_t largest_scratch(const Halves& halves, const StepBounds& bounds) {
  int64_t most = 0;
  for (const auto& half : halves) {
    if (half != nullptr) most = std::max(most, half->scratch_bytes(bounds));
  }
  return most;
}

}  // namespace sluice
