// SPDX-License-Identifier: Apache-2.0
// What the files of one family of models call things, and what they leave unsaid. A family's file
// in engine/models has it as data; the readers here and the writers in engine/quantize interpret
// it, and never test a model's name.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <variant>

namespace sluice {

// The value of a key of config.json that a file may omit: that of transformers' class. A null in
// the file is a value too: it means "none".
struct KeyDefault {
  std::string_view spelling;
  std::variant<uint64_t, double, bool, std::string_view> value;
};

// A key of config.json of which one value is implemented.
struct RequiredNumber {
  std::string_view spelling;
  double value;
};

// Two names of a tensor inside a layer, without ".weight" and ".bias"; whole names where ours has a
// dot. '#' stands for an expert's number and is left out of our name: "mlp.experts.#.up_proj" and
// "ffn_up_exps" are "model.layers.0.mlp.experts.7.up_proj.weight" and
// "blk.0.ffn_up_exps.7.weight".
struct TensorName {
  std::string_view stored;
  std::string_view ours;
};

// A name of a kind of rope_scaling in config.json, and transformers' name of it.
struct RopeTypeName {
  std::string_view stored;
  std::string_view usual;
};

// What the layer_types of config.json may say.
enum class LayerTypes : uint8_t {
  kListed,       // full_attention or sliding_attention for each layer
  kFull,         // full_attention only
  kAsTheWindow,  // sliding_attention only, if sliding_window is set
  kRecurrent,    // full_attention, linear_attention or conv for each layer
  kChunked,      // full_attention or chunked_attention for each layer
};

// How a directory stores a layer's experts.
enum class ExpertTensors : uint8_t {
  kApart,         // a matrix of each expert
  kStacked,       // one tensor with gate rows, then up rows, of each; shared experts likewise
  kStackedAlone,  // the same of experts, while dense halves have their matrices apart
  kTransposed,    // one tensor of gate and up, whose columns are input rows and alternate; biases
  kTransposedHalves,  // the same without biases, gate's columns before up's; or kApart
  // One matrix of all experts' up rows, likewise gate rows, one of their down matrices' columns.
  kTransposedDown,
};

struct FileSpec {
  std::string_view gguf = {};        // general.architecture; empty: none
  bool reads_gguf = true;            // false: another family reads the files of that architecture
  std::string_view model_type = {};  // in config.json; empty: none
  bool reads_directories = true;     // false: another family reads those of that model_type
  std::string_view class_name = {};  // in its "architectures"
  std::span<const KeyDefault> defaults = {};
  std::span<const KeyDefault> rope_defaults = {};  // where a file has no rope_parameters at all
  std::span<const RequiredNumber> required = {};
  LayerTypes layer_types = LayerTypes::kListed;
  bool ties_embedding = false;           // where config.json says nothing
  bool is_partly_rotated = false;        // partial_rotary_factor may be less than 1
  bool scales_full_layers_only = false;  // windowed layers rotate with a base alone
  // Kinds of layers differ in heads, widths and rotations, all of which the family reads.
  bool has_unlike_layers = false;
  bool has_value_width = false;  // heads of values may be narrower than those of keys
  std::span<const RopeTypeName> rope_type_names = {};  // those that differ from transformers'
  std::span<const TensorName> names = {};       // in directories, before those of every family
  std::string_view layers_place = "model.layers.";  // in directories; the usual one is read too
  std::span<const TensorName> gguf_names = {};  // in GGUF, where they differ from ours
  ExpertTensors experts = ExpertTensors::kApart;
  std::string_view experts_place = "mlp.experts.";  // transposed ones', in a layer
  // Whether rows of q and k that rotate together are neighbours.
  bool pairs_rows = false;  // in directories
  bool pairs_rows_in_gguf = false;
  float norm_offset = 0;        // added to a directory's norm weights; GGUF has the sum
  bool subtracts_mean = false;  // norms do; their epsilon has a name of its own
  bool is_gated = true;         // false: a feed-forward half is one matrix, a function, another
  std::string_view function = "relu2";  // that function's hidden_act, where a file has none
  bool gelu_is_tanh = false;            // hidden_act "gelu" of a gated half is gelu_pytorch_tanh
  bool is_encoder = false;              // tokens see those behind them
  bool may_be_encoder = false;  // where a file says that tokens see those behind them
  bool scales_queries = false;  // by their positions
  std::string_view usual_pretokenizer = {};  // of a GGUF file that names none, or "default"
  // GGUF's rope.scaling.attn_factor is config.json's attention_factor, not what goes beyond YaRN's.
  bool has_whole_attention_factor = false;
  bool has_latents = false;     // attention caches one compressed vector a token
  bool has_indexers = false;    // and layers read the keys that an indexer chooses
  bool groups_qkv = false;      // directories have rows of q, k and v by KV head (reordered.h)
  // Directories have q, k and v of equal heads as one, GGUF files apart.
  bool splits_qkv = false;
  // Directories with so many tokens have an output layer whose rows count by their directions
  // alone; 0: none have.
  uint64_t normalized_vocab = 0;
  bool joins_qkv = false;       // GGUF files have q, k and v as one
  bool is_transposed = false;   // directories have a layer's matrices with an input's rows
  bool may_be_parallel = false;  // where a file says that both halves read the stream
  bool limits_qkv = false;       // where a file says how far q, k and v may go
  bool has_image_positions = false;  // three for a token ("mrope"), which are equal for text
  // The module after the layers has an output layer of its own; other modules use the model's.
  bool has_module_output = false;
  // A tensor of what the layer for scores, cls.output, follows. Files may lack it, although its
  // class does not and would be of random numbers; empty: cls.output follows the pooling.
  std::string_view before_scores = {};
  // config.json says how states become a vector (pooling) and what divides scores (temperature).
  bool names_pooling = false;
  // A chat model of the family may be Qwen3-Reranker (PoolingInfo), which its files do not tell.
  bool may_be_qwen3_reranker = false;
};

// Return the family whose files have this model_type or general.architecture; null: none.
// engine/models/registry.cpp defines them: the table of families lies above this folder.
const FileSpec* find_file_spec(std::string_view model_type);
const FileSpec* find_gguf_spec(std::string_view architecture);

}  // namespace sluice
