// SPDX-License-Identifier: Apache-2.0
// A model architecture: what it reads from a file, and how a batch of tokens runs through it.
// Adding one: a file in this folder and a row in registry.cpp.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/core/status.h"
#include "engine/core/types.h"
#include "kernels/attention.h"
#include "kernels/device.h"
#include "kernels/gemm.h"
#include "kernels/rope.h"
#include "kvcache/kv_cache_manager.h"

namespace sluice {

class GgufFile;
class WeightStore;

// Shape and constants of a decoder-only transformer, as read from the file and checked.
struct ModelConfig {
  std::string architecture;
  int32_t num_layers = 0;
  int32_t hidden = 0;
  int32_t ffn_hidden = 0;
  int32_t num_heads = 0;
  int32_t num_kv_heads = 0;
  int32_t head_dim = 0;
  int32_t vocab_size = 0;
  int32_t context_len = 0;
  float norm_eps = 1e-5F;
  kernels::RopeParams rope;
};

// One KV group: which layers share a block table, and the shape of a token's entry.
struct KvLayout {
  KvGroupSpec spec;             // num_blocks is set by the memory plan
  std::vector<int32_t> layers;  // of this group, ascending
};

// The rows of one step as kernels read them. Built by InputBatch; spans are valid for the step.
struct ForwardBatch {
  std::span<const TokenId> token_ids;         // [num_tokens]
  std::span<const int32_t> positions;         // [num_tokens]
  std::span<const int32_t> query_start_loc;   // [num_reqs + 1]
  std::span<const int32_t> seq_lens;          // [num_reqs]
  std::span<const int32_t> logits_indices;    // rows whose logits are wanted
  // Per KV group.
  std::span<const std::span<const int64_t>> slot_mapping;     // [group][num_tokens]
  std::span<const std::span<const int32_t>> block_tables;     // [group][num_reqs * stride]
  int32_t block_table_stride = 0;
};

// Where a layer's KV lives.
struct LayerCache {
  int32_t group = 0;
  kernels::KvLayerView view;
};

struct ForwardContext {
  const kernels::ExecContext& exec;
  const ForwardBatch& batch;
  std::span<const LayerCache> caches;  // by layer
  float* logits;                       // [logits_indices.size(), vocab]
};

// The largest step a model must be ready for.
struct StepBounds {
  int32_t max_tokens = 0;
  int32_t max_seqs = 0;
  int32_t max_logits = 0;  // rows whose logits are wanted
  int32_t max_seq_len = 0;
  int32_t num_threads = 1;
};

class Model {
 public:
  virtual ~Model() = default;
  [[nodiscard]] virtual const ModelConfig& config() const = 0;
  [[nodiscard]] virtual std::vector<KvLayout> kv_layouts() const = 0;
  // Bytes of scratch memory that steps within these bounds need.
  [[nodiscard]] virtual int64_t arena_bytes(const StepBounds& bounds) const = 0;
  // Lays the scratch memory out, once, before the first forward().
  virtual void bind(const StepBounds& bounds, std::span<std::byte> arena) = 0;
  // Engine thread.
  virtual void forward(const ForwardContext& context) = 0;
};

struct ModelOptions {
  int32_t activation_bits = 8;
  int32_t max_model_len = 0;  // rows of the rope table
};

// One architecture. `build` takes its tensors from the store, which remembers what was taken.
struct ModelSpec {
  std::string_view architecture;  // general.architecture
  Expected<ModelConfig> (*read_config)(const GgufFile& file);
  Expected<std::unique_ptr<Model>> (*build)(ModelConfig config,
                                            const ModelOptions& options,
                                            WeightStore& weights);
};

// kUnsupported names the architecture found and those supported.
Expected<const ModelSpec*> find_model_spec(std::string_view architecture);

}  // namespace sluice
