// SPDX-License-Identifier: Apache-2.0
// Reads keys that several, but not all, architectures share.
#pragma once

#include <algorithm>
#include <array>
#include <string_view>

#include "engine/models/model_config.h"
#include "engine/weights/checkpoint.h"

namespace sluice {

// Joins a list that several families share and one of a family's own.
template <typename Row, size_t kShared, size_t kOwn>
constexpr std::array<Row, kShared + kOwn> joined_lists(const Row (&shared)[kShared],
                                                       const Row (&own)[kOwn]) {
  std::array<Row, kShared + kOwn> all;
  std::ranges::copy(shared, all.begin());
  std::ranges::copy(own, all.begin() + kShared);
  return all;
}

// Keys of config.json for experts that sigmoids choose, in groups (ModelSpec::hf_keys).
inline constexpr std::string_view kSigmoidExpertHfKeys[] = {"num_experts_per_tok",
                                                            "moe_intermediate_size",
                                                            "norm_topk_prob",
                                                            "routed_scaling_factor",
                                                            "n_group",
                                                            "topk_group"};

// Returns a number of each layer, as listed; nothing where the file has no list.
Expected<std::vector<int32_t>> read_layer_counts(const Metadata& metadata,
                                                 const char* key,
                                                 uint64_t most,
                                                 const ModelConfig& config);

// Sets the width of dense halves: of all, or, where a file lists layers, of the first dense one.
// Call after it is known which layers have experts.
Expected<void> read_dense_width(const Metadata& metadata, ModelConfig& config);

// Reads a cap of logits or scores; `absent` applies to a missing key, 0: no cap.
Expected<double> read_soft_cap(const Metadata& metadata, const char* key, double absent);

// Reads Gemma's attention scale: that of the query's nominal width, which a GGUF file implies by
// having the number of layers of the largest model.
Expected<float> read_attention_scale(const Metadata& metadata,
                                     int32_t layers_of_largest,
                                     const ModelConfig& config);

// kDataLoss: there are no experts.
Expected<void> check_experts(const Checkpoint& checkpoint, const ModelConfig& config);

// kDataLoss: a directory says that its routers score experts with another function. A file may say
// nothing.
Expected<void> expect_expert_score(const Metadata& metadata, std::string_view score);

// Sets what DeepSeek-V3's router and its followers have in common: sigmoids, with a bias that
// changes the choice alone, normalized unless a file says otherwise. kDataLoss: there are no
// experts, or the file says that another function scores them.
Expected<void> read_sigmoid_experts(const Checkpoint& checkpoint, ModelConfig& config);

// Tokens that a windowed layer sees; 0, which Phi-4's files state, means all.
Expected<int32_t> read_window(const Metadata& metadata);

// Sets which layers see only attention.sliding_window tokens: as listed by the checkpoint,
// otherwise all but each `usual_period`-th; 1: none.
Expected<void> read_window_pattern(const Checkpoint& checkpoint,
                                   int32_t usual_period,
                                   ModelConfig& config);

// Makes the layer of the module after the layers as the last one with a window, or without, but
// with a dense half without limits. Called after the layers and the dense width are known.
void set_dense_module(bool is_windowed, ModelConfig& config);

// Reads the window pattern if use_sliding_window turns windows on.
Expected<void> read_optional_window(const Checkpoint& checkpoint, ModelConfig& config);

// Gives norms their biases, and of a model without weights (is_dummy()) the feed-forward halves
// too.
void take_biases(const Checkpoint& checkpoint, ModelConfig& config);

// Makes the feed-forward halves four times as wide as the stream where files leave the width out.
void take_usual_width(ModelConfig& config);

// Gives each position a learned row in the place of rotations; that of a text's first token is
// `first`.
void take_positions(int32_t first, ModelConfig& config);

}  // namespace sluice
