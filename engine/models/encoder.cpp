// SPDX-License-Identifier: Apache-2.0
#include "engine/models/encoder.h"

#include <algorithm>
#include <array>
#include <string>
#include <utility>
#include <vector>

#include "engine/models/attention_mixer.h"
#include "engine/models/blocks.h"
#include "engine/models/dense_ffn.h"
#include "engine/models/experts.h"
#include "engine/models/output_layer.h"
#include "engine/models/rope_tables.h"
#include "engine/weights/checkpoint.h"
#include "engine/weights/pooled_layers.h"
#include "kernels/elementwise.h"
#include "kernels/norm.h"

namespace sluice {
namespace {

constexpr uint64_t kMostLabels = 1 << 16;
constexpr uint64_t kMostSegments = 16;

// Rows of a table, whose columns are the hidden width; 0: there is none.
Expected<int32_t> rows_of_table(const Checkpoint& checkpoint,
                                const char* name,
                                uint64_t most,
                                const ModelConfig& config) {
  const CheckpointTensor* const table = checkpoint.find(name);
  if (table == nullptr) return 0;
  const uint64_t rows = table->num_dims == 1 ? 1 : table->dims[1];
  if (table->num_dims > 2 || table->dims[0] != static_cast<uint64_t>(config.hidden) || rows < 1 ||
      rows > most) {
    return make_error(ErrorCode::kDataLoss,
                      checkpoint.place_of(name) + ": found another shape, expected 1 to " +
                          std::to_string(most) + " rows of the hidden width");
  }
  return static_cast<int32_t>(rows);
}

// Pieces of the arena, laid out once for the largest step.
struct EncoderBuffers {
  int32_t* words = nullptr;    // [tokens] ids without their segments
  int32_t* places = nullptr;   // [tokens] rows of the table of positions
  int32_t* num_seen = nullptr;  // [requests] tokens of the text that others see
  float* x = nullptr;          // [tokens, hidden]
  float* half = nullptr;       // [tokens, hidden] a half's output; the positions' embeddings first
  float* last = nullptr;       // [logits rows, hidden] rows that are wanted
  float* dense = nullptr;      // [logits rows, hidden] of the layer before the labels'
  float* labels = nullptr;     // [logits rows, labels]
  LinearInput hidden_in;
  LinearInput last_in;
  std::span<std::byte> mixers;
  std::span<std::byte> ffns;
};

// Norms are before their halves (empty: the half reads the stream) or of the stream after them.
struct EncoderLayer {
  std::unique_ptr<Mixer> mixer;
  std::unique_ptr<Ffn> ffn;
  StreamNorm mixer_norm;
  StreamNorm ffn_norm;
  DeviceFloats ffn_bias;  // [hidden] of experts' sum; empty: none
};

class EncoderModel final : public Model {
 public:
  EncoderModel(ModelConfig config, int32_t max_model_len)
      : config_(std::move(config)), ropes_(rope_tables(config_, max_model_len)) {}

  Expected<void> load(const ModelOptions& options, WeightStore& weights);

  [[nodiscard]] const ModelConfig& config() const override { return config_; }

  [[nodiscard]] std::vector<LayerGroup> layer_groups(DType dtype) const override;

  [[nodiscard]] int64_t arena_bytes(const StepBounds& bounds) const override {
    Arena arena;
    layout(bounds, arena);
    return arena.used();
  }

  // Ranks do not share an encoder.
  [[nodiscard]] int64_t max_part_bytes(const StepBounds&) const override { return 0; }

  void bind(const StepBounds& bounds, std::span<std::byte> arena) override;
  void forward(const ForwardContext& context) override;

  // No token is chosen after a text.
  void logits(const ForwardContext&, std::span<const int32_t> rows, float*) override {
    CHECK(rows.empty());
  }

  const float* embed(const ForwardContext& context, std::span<const int32_t> rows) override;

  [[nodiscard]] const float* states() const override { return buffers_.x; }

  [[nodiscard]] const float* taps() const override { return nullptr; }

  [[nodiscard]] const PackedWeight& embedding() const override { return embedding_.weight(0); }

  [[nodiscard]] const Projection& output() const override { return embedding_; }

 private:
  [[nodiscard]] bool norms_sums() const { return config_.norm_placement == NormPlacement::kSum; }

  // The first row of the table of positions that a token can have.
  [[nodiscard]] int32_t first_row() const {
    return config_.first_position - (config_.padding_token >= 0 ? 1 : 0);
  }

  // Positions of a text in the table; 1: the table has a row for each segment alone.
  [[nodiscard]] int32_t num_places() const {
    return config_.num_positions > 0 ? config_.num_positions - first_row() : 1;
  }

  // Whether an id is of a token that no token sees (TokenComparison::expansion).
  [[nodiscard]] bool is_unseen(TokenId id) const {
    return id / config_.vocab_size >= config_.num_segments;
  }

  // The rotation of a layer; null: none.
  [[nodiscard]] const kernels::RopeTable* rope_of(int32_t layer) const {
    const int32_t rope = config_.layers[static_cast<size_t>(layer)].rope;
    return rope < 0 ? nullptr : &ropes_[static_cast<size_t>(rope)];
  }

  Expected<void> load_positions(WeightStore& weights);
  Expected<void> load_layer(int32_t index, int32_t bits, WeightStore& weights);
  Expected<void> load_labels(int32_t bits, WeightStore& weights);
  EncoderBuffers layout(const StepBounds& bounds, Arena& arena) const;
  void take_embeddings(const ForwardContext& context) const;
  void place_tokens(const ForwardContext& context) const;
  void count_seen(const ForwardBatch& batch) const;
  // Where halves write, and how.
  [[nodiscard]] HalfOutput half_output(const kernels::RowSteps& then) const;
  void add_norm_steps(const StreamNorm& norm,
                      const Projection* next,
                      int32_t num_rows,
                      kernels::RowSteps& steps) const;
  void add_steps_behind_mixer(const EncoderLayer& layer,
                              int32_t num_rows,
                              kernels::RowSteps& steps) const;
  // `next`: the following layer; null: none.
  void add_steps_behind_ffn(const EncoderLayer& layer,
                            const EncoderLayer* next,
                            int32_t num_rows,
                            kernels::RowSteps& steps) const;
  const float* score(const ForwardContext& context, int32_t num_rows);

  ModelConfig config_;
  Projection embedding_;
  DeviceFloats positions_;  // [segments, places, hidden]
  std::vector<kernels::RopeTable> ropes_;
  StreamNorm embedding_norm_;
  StreamNorm last_norm_;  // empty where norms follow halves
  std::vector<EncoderLayer> layers_;
  Projection dense_;   // of a model that scores, as labels_
  Projection labels_;

  EncoderBuffers buffers_;
};

// --- Loading ---------------------------------------------------------------------------------

// The rows of positions that a text can have, for each segment with its row added.
Expected<void> EncoderModel::load_positions(WeightStore& weights) {
  const int32_t rows = config_.num_positions;
  const char* const kTypes = "token_types.weight";
  std::vector<float> table;
  table.reserve(static_cast<size_t>(int64_t{config_.num_segments} * num_places() * config_.hidden));
  for (int32_t segment = 0; segment < config_.num_segments; ++segment) {
    std::vector<float> kind(static_cast<size_t>(config_.hidden));
    if (weights.has(kTypes)) {
      SLUICE_TRY(kind, weights.vector(kTypes, config_.hidden, {segment, config_.num_segments}));
    }
    if (rows == 0) table.insert(table.end(), kind.begin(), kind.end());
    for (int32_t row = first_row(); row < rows; ++row) {
      SLUICE_TRY(const std::vector<float> place,
                 weights.vector("position_embd.weight", config_.hidden, {row, rows}));
      for (size_t i = 0; i < place.size(); ++i) table.push_back(place[i] + kind[i]);
    }
  }
  positions_ = weights.place(std::move(table));
  return {};
}

Expected<void> EncoderModel::load_labels(int32_t bits, WeightStore& weights) {
  if (config_.num_labels == 0) {
    // Layers trained beside the vectors, or applied after the pooling.
    for (const char* name :
         {"cls", "cls.norm", "cls.relu", "cls.output", "cls.tokens", "dense_2", "dense_3"}) {
      for (const char* end : {".weight", ".bias"}) weights.leave_out(std::string(name) + end);
    }
    return {};
  }
  const std::array<Projection::Part, 1> dense = {{{"cls", config_.hidden, true, {}, {}}}};
  SLUICE_TRY(dense_, Projection::load(weights, dense, config_.hidden, bits));
  const std::array<Projection::Part, 1> labels = {
      {{"cls.output", config_.num_labels, true, {}, {}}}};
  SLUICE_TRY(labels_, Projection::load(weights, labels, config_.hidden, bits));
  return {};
}

Expected<void> EncoderModel::load(const ModelOptions& options, WeightStore& weights) {
  if (weights.device() != DeviceType::kCpu || config_.share.size > 1) {
    return make_error(ErrorCode::kUnsupported,
                      weights.path() + ": an encoder runs on the CPU, with one rank",
                      "device");
  }
  const int32_t bits = options.activation_bits;
  const std::array<Projection::Part, 1> embedding = {
      {{"token_embd", config_.vocab_size, false, {}, {}}}};
  SLUICE_TRY(embedding_, Projection::load(weights, embedding, config_.hidden, bits));
  SLUICE_TRY_VOID(load_positions(weights));
  for (kernels::RopeTable& rope : ropes_) SLUICE_TRY_VOID(rope.place_on(*options.memory));
  SLUICE_TRY(embedding_norm_, load_stream_norm(config_, "token_embd_norm", weights));
  for (int32_t i = 0; i < config_.num_layers; ++i) {
    SLUICE_TRY_VOID(load_layer(i, bits, weights));
  }
  if (!norms_sums()) {
    SLUICE_TRY(last_norm_, load_stream_norm(config_, "output_norm", weights));
  }
  return load_labels(bits, weights);
}

// The first layer's half may have no norm of its own after that of the embeddings.
Expected<void> EncoderModel::load_layer(int32_t index, int32_t bits, WeightStore& weights) {
  const std::string prefix = "blk." + std::to_string(index) + ".";
  EncoderLayer& layer = layers_.emplace_back();
  SLUICE_TRY(layer.mixer, AttentionMixer::load(config_, index, bits, weights));
  if (config_.layers[static_cast<size_t>(index)].ffn == FfnKind::kExperts) {
    if (!norms_sums()) {
      return make_error(ErrorCode::kUnsupported,
                        weights.path() + ": found experts behind a norm, expected none",
                        "model");
    }
    SLUICE_TRY(layer.ffn, Experts::load(config_, index, bits, weights));
    if (config_.moe.sum_bias) {
      SLUICE_TRY(std::vector<float> bias, weights.vector(prefix + "ffn_exps.bias", config_.hidden));
      layer.ffn_bias = weights.place(std::move(bias));
    }
  } else {
    SLUICE_TRY(layer.ffn, DenseFfn::load(config_, index, bits, weights));
  }
  const char* const of_mixer = norms_sums() ? "attn_output_norm" : "attn_norm";
  const char* const of_ffn = norms_sums() ? "layer_output_norm" : "ffn_norm";
  if (norms_sums() || index > 0 || weights.has(prefix + "attn_norm.weight")) {
    SLUICE_TRY(layer.mixer_norm, load_stream_norm(config_, prefix + of_mixer, weights));
  }
  SLUICE_TRY(layer.ffn_norm, load_stream_norm(config_, prefix + of_ffn, weights));
  return {};
}

// --- Memory ----------------------------------------------------------------------------------

// Keys and values are kept for the length of one step, in blocks like those of other models; a
// window does not free them.
std::vector<LayerGroup> EncoderModel::layer_groups(DType dtype) const {
  LayerGroup group = {.spec = layers_.front().mixer->group(dtype), .layers = {}};
  for (int32_t i = 0; i < config_.num_layers; ++i) group.layers.push_back(i);
  group.spec.kind = KvGroupKind::kFull;
  group.spec.window = 0;
  group.spec.num_layers = config_.num_layers;
  return {std::move(group)};
}

EncoderBuffers EncoderModel::layout(const StepBounds& bounds, Arena& arena) const {
  const int64_t tokens = bounds.max_tokens;
  const int64_t rows = bounds.max_logits;
  std::vector<const Projection*> from_hidden;
  int64_t mixers = 0;
  int64_t ffns = 0;
  for (const EncoderLayer& layer : layers_) {
    from_hidden.push_back(&layer.mixer->input());
    if (layer.ffn->input() != nullptr) from_hidden.push_back(layer.ffn->input());
    mixers = std::max(mixers, layer.mixer->scratch_bytes(bounds));
    ffns = std::max(ffns, layer.ffn->scratch_bytes(bounds));
  }
  EncoderBuffers buffers;
  const auto take_ints = [&arena](int64_t count) {
    return reinterpret_cast<int32_t*>(
        arena.take_bytes(count * static_cast<int64_t>(sizeof(int32_t))));
  };
  buffers.words = take_ints(tokens);
  buffers.places = take_ints(tokens);
  buffers.num_seen = take_ints(bounds.max_seqs);
  buffers.x = arena.take_floats(tokens * config_.hidden);
  buffers.half = arena.take_floats(tokens * config_.hidden);
  buffers.last = arena.take_floats(rows * config_.hidden);
  buffers.hidden_in = LinearInput(from_hidden, bounds.max_tokens, arena);
  if (config_.num_labels > 0) {
    const std::vector<const Projection*> readers = {&labels_, &dense_};
    buffers.dense = arena.take_floats(rows * config_.hidden);
    buffers.labels = arena.take_floats(rows * config_.num_labels);
    buffers.last_in = LinearInput(readers, bounds.max_logits, arena);
  }
  const auto take = [&arena](int64_t bytes) {
    return std::span(arena.take_bytes(bytes), static_cast<size_t>(bytes));
  };
  buffers.mixers = take(mixers);
  buffers.ffns = take(ffns);
  return buffers;
}

void EncoderModel::bind(const StepBounds& bounds, std::span<std::byte> buffer) {
  Arena arena(buffer);
  buffers_ = layout(bounds, arena);
  for (const EncoderLayer& layer : layers_) {
    layer.mixer->bind(bounds, buffers_.mixers);
    layer.ffn->bind(bounds, buffers_.ffns);
  }
}

// --- A step ----------------------------------------------------------------------------------

// Adds a half's output to the rows and normalizes them; `next` reads them, if it is not null.
void EncoderModel::add_norm_steps(const StreamNorm& norm,
                                  const Projection* next,
                                  int32_t num_rows,
                                  kernels::RowSteps& steps) const {
  steps.add(kernels::AddRowsArgs{.x = buffers_.x,
                                 .x_stride = config_.hidden,
                                 .y = buffers_.half,
                                 .y_stride = config_.hidden,
                                 .num_rows = num_rows,
                                 .n = config_.hidden});
  steps.add(norm_in_place(config_, norm, {buffers_.x, config_.hidden}, num_rows));
  if (next == nullptr) return;
  buffers_.hidden_in.add_quantize_steps(*next, buffers_.x, config_.hidden, steps);
}

void EncoderModel::add_steps_behind_mixer(const EncoderLayer& layer,
                                          int32_t num_rows,
                                          kernels::RowSteps& steps) const {
  const Projection* const next = layer.ffn->input();
  if (norms_sums()) return add_norm_steps(layer.mixer_norm, next, num_rows, steps);
  add_normed_rows(config_, layer.ffn_norm, *next, buffers_.x, buffers_.hidden_in, steps);
}

void EncoderModel::add_steps_behind_ffn(const EncoderLayer& layer,
                                        const EncoderLayer* next,
                                        int32_t num_rows,
                                        kernels::RowSteps& steps) const {
  const Projection* const reader = next == nullptr ? nullptr : &next->mixer->input();
  if (!layer.ffn_bias.empty()) {
    steps.add(kernels::AddRowsArgs{.x = buffers_.x,
                                   .x_stride = config_.hidden,
                                   .y = layer.ffn_bias.data(),
                                   .y_stride = 0,
                                   .num_rows = num_rows,
                                   .n = config_.hidden});
  }
  if (norms_sums()) return add_norm_steps(layer.ffn_norm, reader, num_rows, steps);
  if (next == nullptr) return;
  add_normed_rows(config_, next->mixer_norm, *reader, buffers_.x, buffers_.hidden_in, steps);
}

HalfOutput EncoderModel::half_output(const kernels::RowSteps& then) const {
  if (norms_sums()) {
    return {{buffers_.half, config_.hidden}, kernels::Epilogue::kStore, then};
  }
  return {{buffers_.x, config_.hidden}, kernels::Epilogue::kAdd, then};
}

// Counts the tokens of each text up to its last one that others see.
void EncoderModel::count_seen(const ForwardBatch& batch) const {
  for (size_t text = 0; text < batch.seq_lens.size(); ++text) {
    const int32_t begin = batch.query_start_loc[text];
    int32_t end = batch.query_start_loc[text + 1];
    while (end > begin + 1 && is_unseen(batch.token_ids[static_cast<size_t>(end) - 1])) --end;
    buffers_.num_seen[text] = end - begin;
  }
}

// Finds each token's word and its row of the table of positions. An id at or above the vocabulary's
// size is a word of the second segment, or, above those of all segments, one that no token sees.
void EncoderModel::place_tokens(const ForwardContext& context) const {
  int32_t paddings = 0;  // of the text so far, which the step has whole
  for (size_t i = 0; i < context.batch.token_ids.size(); ++i) {
    const TokenId id = context.batch.token_ids[i];
    const int32_t position = context.batch.positions[i];
    if (position == 0) paddings = 0;
    const bool is_padding = id == config_.padding_token;
    int32_t place = 0;
    if (config_.num_positions > 0 && !is_padding) {
      place = config_.first_position - first_row() + position - paddings;
    }
    if (is_padding) ++paddings;
    const int32_t segment = is_unseen(id) ? 0 : id / config_.vocab_size;
    buffers_.words[i] = id % config_.vocab_size;
    buffers_.places[i] = segment * num_places() + place;
  }
}

void EncoderModel::take_embeddings(const ForwardContext& context) const {
  const size_t count = context.batch.token_ids.size();
  place_tokens(context);
  kernels::embedding(context.exec,
                     {.table = &embedding_.weight(0),
                      .token_ids = {buffers_.words, count},
                      .out = buffers_.x,
                      .out_stride = config_.hidden});
  kernels::gather_rows(context.exec,
                       {.x = positions_.data(),
                        .x_stride = config_.hidden,
                        .n = config_.hidden,
                        .indices = {buffers_.places, count},
                        .out = buffers_.half,
                        .out_stride = config_.hidden});
}

void EncoderModel::forward(const ForwardContext& asked) {
  ForwardBatch batch = asked.batch;
  count_seen(batch);
  batch.num_seen = {buffers_.num_seen, batch.seq_lens.size()};
  const ForwardContext context = {.exec = asked.exec, .batch = batch, .caches = asked.caches};
  const auto num_rows = static_cast<int32_t>(batch.token_ids.size());
  const Projection& first_reader = layers_.front().mixer->input();
  buffers_.hidden_in.set_num_rows(num_rows);
  for (kernels::RopeTable& rope : ropes_) rope.prepare(context.batch.max_seq_len);
  take_embeddings(context);
  kernels::RowSteps first;
  add_norm_steps(embedding_norm_, norms_sums() ? &first_reader : nullptr, num_rows, first);
  if (!norms_sums()) {
    add_normed_rows(config_,
                    layers_.front().mixer_norm,
                    first_reader,
                    buffers_.x,
                    buffers_.hidden_in,
                    first);
  }
  kernels::run_row_steps(context.exec, first);
  for (size_t i = 0; i < layers_.size(); ++i) {
    const EncoderLayer& layer = layers_[i];
    kernels::RowSteps behind_mixer;
    add_steps_behind_mixer(layer, num_rows, behind_mixer);
    layer.mixer->forward(context,
                         context.caches[i],
                         rope_of(static_cast<int32_t>(i)),
                         buffers_.hidden_in,
                         half_output(behind_mixer));
    kernels::RowSteps behind_ffn;
    const bool is_last = i + 1 == layers_.size();
    add_steps_behind_ffn(layer, is_last ? nullptr : &layers_[i + 1], num_rows, behind_ffn);
    layer.ffn->forward(
        context,
        {.rows = buffers_.hidden_in, .plain = buffers_.x, .stride = config_.hidden},
        half_output(behind_ffn));
  }
}

const float* EncoderModel::embed(const ForwardContext& context, std::span<const int32_t> rows) {
  kernels::gather_rows(context.exec,
                       {.x = buffers_.x,
                        .x_stride = config_.hidden,
                        .n = config_.hidden,
                        .indices = rows,
                        .out = buffers_.last,
                        .out_stride = config_.hidden});
  if (!last_norm_.empty()) {
    const ProjectionOutput last = {buffers_.last, config_.hidden};
    kernels::head_norm(
        context.exec,
        norm_in_place(config_, last_norm_, last, static_cast<int64_t>(rows.size())));
  }
  return config_.num_labels > 0 ? score(context, static_cast<int32_t>(rows.size()))
                                : buffers_.last;
}

// The labels' logits of the gathered rows: tanh of a dense layer, then theirs.
const float* EncoderModel::score(const ForwardContext& context, int32_t num_rows) {
  buffers_.last_in.set_num_rows(num_rows);
  const ProjectionOutput dense = {buffers_.dense, config_.hidden};
  buffers_.last_in.quantize(context.exec, dense_, buffers_.last, config_.hidden);
  project(context.exec, dense_, buffers_.last_in, {&dense, 1}, kernels::Epilogue::kStore);
  kernels::scale_rows(context.exec,
                      {.x = buffers_.dense,
                       .x_stride = config_.hidden,
                       .num_rows = num_rows,
                       .n = config_.hidden,
                       .soft_cap = 1});  // tanh
  const ProjectionOutput labels = {buffers_.labels, config_.num_labels};
  buffers_.last_in.quantize(context.exec, labels_, buffers_.dense, config_.hidden);
  project(context.exec, labels_, buffers_.last_in, {&labels, 1}, kernels::Epilogue::kStore);
  return buffers_.labels;
}

}  // namespace

Expected<void> read_encoder_tables(const Checkpoint& checkpoint,
                                   bool has_segments,
                                   ModelConfig& config) {
  config.num_segments = 1;
  if (checkpoint.is_dummy()) return {};
  const char* const types = "token_types.weight";
  SLUICE_TRY(config.num_segments, rows_of_table(checkpoint, types, kMostSegments, config));
  if (config.num_segments == 0 && has_segments && checkpoint.kind() != CheckpointKind::kGguf) {
    return make_error(
        ErrorCode::kDataLoss,
        checkpoint.place_of(types) + ": found nothing, expected the embeddings of segments");
  }
  config.num_segments = std::max(config.num_segments, 1);
  // A layer of another kind of labels, as of tokens, is beside the vectors; one with a norm or
  // DistilBERT's layer before it follows the pooling (PooledLayer).
  const Expected<std::string> classes = checkpoint.metadata().get_string("class_names");
  const bool scores = !classes || classes->find("ForSequenceClassification") != std::string::npos;
  const bool is_behind = checkpoint.has("cls.norm.weight") || checkpoint.has("cls.relu.weight");
  if (!scores || is_behind || !has_scoring_head(checkpoint)) return {};
  SLUICE_TRY(config.num_labels,
             rows_of_table(checkpoint, "cls.output.weight", kMostLabels, config));
  return {};
}

// A GGUF file's table lacks the rows before, so that a padding token in a text is one like others
// there.
Expected<void> begin_behind_padding(const Checkpoint& checkpoint, ModelConfig& config) {
  constexpr int32_t kFirst = 2;
  if (config.context_len <= kFirst) {
    return checkpoint.metadata().wrong(
        "context_length", std::to_string(config.context_len), "more than 2");
  }
  config.first_position = kFirst;
  const Expected<uint64_t> padding = checkpoint.metadata().get_uint_or("padding_token_id", 1);
  if (padding && *padding != kFirst - 1) {
    return checkpoint.metadata().wrong("padding_token_id", std::to_string(*padding), "1");
  }
  config.padding_token = kFirst - 1;
  config.context_len -= kFirst;
  return {};
}

Expected<void> configure_post_norm_encoder(const Checkpoint& checkpoint,
                                           bool has_segments,
                                           ModelConfig& config) {
  config.norm_placement = NormPlacement::kSum;
  config.norm_bias = true;
  return read_encoder_tables(checkpoint, has_segments, config);
}

Expected<std::unique_ptr<Model>> build_encoder(ModelConfig config,
                                               const ModelOptions& options,
                                               WeightStore& weights) {
  auto model = std::make_unique<EncoderModel>(std::move(config), options.max_model_len);
  SLUICE_TRY_VOID(model->load(options, weights));
  return model;
}

}  // namespace sluice
