// SPDX-License-Identifier: Apache-2.0
// EAGLE-3 heads against PyTorch (tests/golden/eagle/make_eagle3.py): both styles of names, fewer
// tokens than the target and as many, the residual before and after its norm, its own embedding and
// the target's. Also EAGLE 1 heads (make_eagle.py), and modules behind a model's layers
// (make_mtp.py).
#include "engine/models/eagle3.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>
#include <string>
#include <vector>

#include "engine/core/aligned_buffer.h"
#include "engine/core/config.h"
#include "engine/draft/draft_plan.h"
#include "engine/models/eagle.h"
#include "engine/models/mtp.h"
#include "engine/spec/spec_config.h"
#include "engine/weights/checkpoint.h"
#include "engine/weights/weight_store.h"
#include "kernels/device.h"
#include "kvcache/store/kv_storage.h"
#include "tests/support/golden_folder.h"
#include "tests/support/golden_models.h"
#include "tests/support/temporary_folder.h"

namespace sluice {
namespace {

const std::string kFolder = golden_folder() + "/eagle/";
const std::string kTiny = golden_folder() + "/tiny/tiny-llama.gguf";
constexpr int32_t kMaxTokens = 64;
constexpr int32_t kBlockSize = 16;

// A model with everything needed to run one sequence.
struct Loaded {
  std::unique_ptr<Checkpoint> checkpoint;
  std::unique_ptr<WeightStore> weights;
  std::unique_ptr<Model> model;
};

// The scaling behind an output layer.
struct LogitRule {
  float scale = 1;
  float soft_cap = 0;
};

Expected<Loaded> load(const std::string& path,
                      const ModelSpec* spec,
                      const ModelOptions& options,
                      const LogitRule& rule = {},
                      const ModelConfig& target = {}) {
  Loaded loaded;
  const bool is_module = spec == &kMtpSpec;
  SLUICE_TRY(loaded.checkpoint,
             Checkpoint::open(path,
                              LoadFormat::kAuto,
                              is_module ? CheckpointPart::kNextToken : CheckpointPart::kModel));
  if (spec == nullptr) {
    SLUICE_TRY(spec, find_model_spec(*loaded.checkpoint));
  }
  SLUICE_TRY(ModelConfig config,
             is_module ? mtp_config(target, *loaded.checkpoint)
                       : read_model_config(*spec, *loaded.checkpoint));
  if (rule.scale != 1) config.logit_scale = rule.scale;
  config.logit_soft_cap = rule.soft_cap;
  WeightStore sizes(*loaded.checkpoint);
  SLUICE_TRY(const std::unique_ptr<Model> shape, spec->build(config, options, sizes));
  if (!sizes.unused().empty()) {
    return make_error(ErrorCode::kUnsupported, "unused tensor " + sizes.unused().front());
  }
  loaded.weights = std::make_unique<WeightStore>(*loaded.checkpoint);
  SLUICE_TRY_VOID(loaded.weights->allocate(sizes.packed_bytes()));
  SLUICE_TRY(loaded.model, spec->build(config, options, *loaded.weights));
  return loaded;
}

// The group of all layers.
KvGroupSpec blocks_of(const Model& model, int32_t num_blocks) {
  KvGroupSpec group = model.layer_groups(DType::kF32).front().spec;
  group.num_blocks = num_blocks;
  return group;
}

// The configuration of the model that a module in this folder lies behind; the tiny one's if the
// folder has that shape and family.
Expected<ModelConfig> target_of(const std::string& folder, const ModelConfig& tiny) {
  SLUICE_TRY(const auto checkpoint, Checkpoint::open(folder, LoadFormat::kDummy));
  SLUICE_TRY(const ModelSpec* const spec, find_model_spec(*checkpoint));
  if (spec->files.gguf == tiny.architecture) return tiny;
  return read_model_config(*spec, *checkpoint);
}

class HeadRig {
 public:
  static Expected<std::unique_ptr<HeadRig>> create(const std::string& folder,
                                                   const ModelSpec& spec = kEagle3Spec,
                                                   int32_t bits = 32,
                                                   const LogitRule& rule = {}) {
    auto rig = std::make_unique<HeadRig>();
    SLUICE_TRY(rig->device_, kernels::Device::create({.threads = 2}));
    const ModelOptions options = {.activation_bits = bits, .max_model_len = kMaxTokens};
    SLUICE_TRY(rig->target_, load(kTiny, nullptr, options));
    ModelOptions of_head = options;
    of_head.embedding = &rig->target_.model->embedding();
    of_head.output = &rig->target_.model->output();
    ModelConfig target = rig->target_.model->config();
    if (&spec == &kMtpSpec) {
      SLUICE_TRY(target, target_of(folder, target));
    }
    SLUICE_TRY(rig->head_, load(folder, &spec, of_head, rule, target));
    rig->num_states_ = &spec == &kEagle3Spec ? 3 : 1;
    SLUICE_TRY(rig->storage_,
               KvStorage::create({blocks_of(rig->model(), kMaxTokens / kBlockSize)}, kBlockSize));
    const StepBounds bounds = {.max_tokens = kMaxTokens,
                               .max_seqs = 1,
                               .max_logits = kMaxTokens,
                               .max_seq_len = kMaxTokens,
                               .num_threads = 2};
    SLUICE_TRY(rig->arena_,
               AlignedBuffer::allocate(rig->model().arena_bytes(bounds), "activations"));
    rig->model().bind(bounds, rig->arena_.span());
    rig->caches_ = {{.group = 0, .planes = rig->storage_.planes(0, 0)}};
    return rig;
  }

  Model& model() { return *head_.model; }

  [[nodiscard]] const Checkpoint& checkpoint() const { return *head_.checkpoint; }

  struct Rows {
    std::vector<float> logits;
    std::vector<float> states;
  };

  // Runs the rows behind those that ran before.
  Rows forward(const std::vector<TokenId>& tokens, const float* hidden, bool is_tapped) {
    const auto count = static_cast<int32_t>(tokens.size());
    std::vector<int32_t> positions(tokens.size());
    std::iota(positions.begin(), positions.end(), position_);
    const std::vector<int64_t> slots(positions.begin(), positions.end());
    std::vector<int32_t> blocks(kMaxTokens / kBlockSize);
    std::iota(blocks.begin(), blocks.end(), 0);
    position_ += count;
    const std::vector<int32_t> starts = {0, count};
    const std::vector<int32_t> lengths = {position_};
    const std::vector<std::span<const int64_t>> slot_mapping = {slots};
    const std::vector<std::span<const int32_t>> tables = {blocks};
    const std::vector<int32_t> strides = {kMaxTokens / kBlockSize};
    const ForwardBatch batch = {.token_ids = tokens,
                                .positions = positions,
                                .query_start_loc = starts,
                                .seq_lens = lengths,
                                .logits_indices = {},
                                .slot_mapping = slot_mapping,
                                .block_tables = tables,
                                .block_table_strides = strides,
                                .max_seq_len = position_};
    const ModelConfig& config = model().config();
    const int64_t width = is_tapped ? num_states_ * config.head.target_hidden : config.hidden;
    const kernels::ExecContext exec = device_->context();
    const ForwardContext context = {
        .exec = exec,
        .batch = batch,
        .caches = caches_,
        .hidden = {.data = hidden, .stride = width, .is_tapped = is_tapped}};
    model().forward(context);
    std::vector<int32_t> all(tokens.size());
    std::iota(all.begin(), all.end(), 0);
    Rows rows;
    rows.logits.resize(tokens.size() * static_cast<size_t>(config.vocab_size));
    model().logits(context, all, rows.logits.data());
    const float* const states = model().states();
    rows.states.assign(states, states + tokens.size() * static_cast<size_t>(config.hidden));
    return rows;
  }

 private:
  std::unique_ptr<kernels::Device> device_;
  Loaded target_;
  Loaded head_;
  KvStorage storage_ = *KvStorage::create({}, kBlockSize);
  AlignedBuffer arena_;
  std::vector<LayerCache> caches_;
  int64_t num_states_ = 3;  // states of the target per row, side by side
  int32_t position_ = 0;
};

struct Golden {
  std::string name;
  std::vector<TokenId> tokens;
  std::vector<TokenId> chain;
  size_t num_output = 0;
  size_t hidden = 0;
  std::vector<float> raw;

  // Takes parts of `raw` in the order of the script.
  std::vector<float> take(size_t& at, size_t count) const {
    const auto begin = raw.begin() + static_cast<ptrdiff_t>(at);
    at += count;
    return {begin, begin + static_cast<ptrdiff_t>(count)};
  }
};

std::vector<Golden> goldens(const std::string& list_name = "heads.json") {
  const nlohmann::json document =
      nlohmann::json::parse(testing::read_whole_file(kFolder + list_name));
  std::vector<Golden> list;
  for (const nlohmann::json& row : document["heads"]) {
    Golden golden;
    golden.name = row["name"].get<std::string>();
    golden.tokens = row["tokens"].get<std::vector<TokenId>>();
    golden.chain = row["chain"].get<std::vector<TokenId>>();
    golden.num_output = row["num_output_tokens"].get<size_t>();
    golden.hidden = document["hidden"].get<size_t>();
    const std::string bytes = testing::read_whole_file(kFolder + golden.name + ".f32");
    golden.raw.resize(bytes.size() / sizeof(float));
    std::memcpy(golden.raw.data(), bytes.data(), bytes.size());
    list.push_back(std::move(golden));
  }
  return list;
}

void expect_near(const std::vector<float>& expected,
                 const std::vector<float>& actual,
                 const std::string& what) {
  ASSERT_EQ(expected.size(), actual.size()) << what;
  const auto [low, high] = std::ranges::minmax_element(expected);
  float worst = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    const float error = std::fabs(expected[i] - actual[i]);
    worst = std::isfinite(error) ? std::max(worst, error) : INFINITY;
  }
  EXPECT_LE(worst / (*high - *low), 1e-4F) << what;
}

// Runs a pass in pieces of several sizes, then a chain on the head's own states. Each row has
// `num_states` states of the target.
void expect_equals_pytorch(const Golden& golden, const ModelSpec& spec, size_t num_states) {
  const size_t row = num_states * golden.hidden;
  for (const size_t piece : {golden.tokens.size(), size_t{1}, size_t{7}}) {
    auto rig = HeadRig::create(kFolder + golden.name, spec);
    ASSERT_TRUE(rig.has_value()) << golden.name << ": " << rig.error().message;
    size_t at = 0;
    const size_t count = golden.tokens.size();
    const std::vector<float> hidden = golden.take(at, count * row);
    HeadRig::Rows all;
    HeadRig::Rows last;
    for (size_t begin = 0; begin < count; begin += piece) {
      const size_t end = std::min(count, begin + piece);
      last = (*rig)->forward({golden.tokens.begin() + static_cast<ptrdiff_t>(begin),
                              golden.tokens.begin() + static_cast<ptrdiff_t>(end)},
                             hidden.data() + begin * row,
                             true);
      all.logits.insert(all.logits.end(), last.logits.begin(), last.logits.end());
      all.states.insert(all.states.end(), last.states.begin(), last.states.end());
    }
    const std::string what = golden.name + ", pieces of " + std::to_string(piece);
    expect_near(golden.take(at, count * golden.num_output), all.logits, what + ", logits");
    expect_near(golden.take(at, count * golden.hidden), all.states, what + ", states");
    for (const TokenId token : golden.chain) {
      const std::vector<float> before(last.states.end() - static_cast<ptrdiff_t>(golden.hidden),
                                      last.states.end());
      last = (*rig)->forward({token}, before.data(), false);
      expect_near(golden.take(at, golden.num_output), last.logits, what + ", chain logits");
      expect_near(golden.take(at, golden.hidden), last.states, what + ", chain states");
    }
    EXPECT_EQ(at, golden.raw.size());
  }
}

TEST(Eagle3, EqualsPyTorchForAPassAndAChainBehindIt) {
  ASSERT_EQ(goldens().size(), 4U);
  for (const Golden& golden : goldens()) expect_equals_pytorch(golden, kEagle3Spec, 3);
}

TEST(Eagle, EqualsPyTorchForAPassAndAChainBehindIt) {
  const std::vector<Golden> heads = goldens("first.json");
  ASSERT_EQ(heads.size(), 1U);
  expect_equals_pytorch(heads[0], kEagleSpec, 1);
}

// Modules with the names of three families, which join the halves and pass states on differently.
TEST(Mtp, EqualsPyTorchForAPassAndAChainBehindIt) {
  const std::vector<Golden> modules = goldens("mtp.json");
  ASSERT_EQ(modules.size(), 3U);
  for (const Golden& golden : modules) expect_equals_pytorch(golden, kMtpSpec, 1);
}

// Modules of DeepSeek-V3, with latents and experts; of Qwen3.5, with gates, whose norms lack 1 in
// files; of MiMo-V2-Flash, with a window and sinks; of Step-3.5, with an output layer of its own.
TEST(Mtp, OfOtherLayersEqualsTransformersForAPassAndAChainBehindIt) {
  const std::vector<Golden> modules = goldens("layer_mtp.json");
  ASSERT_EQ(modules.size(), 4U);
  for (const Golden& golden : modules) {
    expect_equals_pytorch(golden, kMtpSpec, 1);
    // Step-3.5's reads the last layer's output, the others' what the output layer reads.
    const auto rig = HeadRig::create(kFolder + golden.name, kMtpSpec);
    ASSERT_TRUE(rig.has_value()) << golden.name;
    const int32_t num_layers = golden.name == "mtp-gates" ? 4 : 3;
    EXPECT_EQ((*rig)->model().config().head.taps,
              std::vector<int32_t>{num_layers + (golden.name == "mtp-heads" ? 0 : 1)})
        << golden.name;
  }
}

TEST(Mtp, WhatIsNoModuleOrBehindAnotherKindOfLayerIsRefusedByName) {
  const auto tiny = Checkpoint::open(kTiny);
  ASSERT_TRUE(tiny.has_value());
  const ModelConfig target = *read_model_config(**find_model_spec(**tiny), **tiny);
  const auto refusal_of = [](const std::string& path, const ModelConfig& model, int32_t ranks) {
    const auto spec = parse_spec_config(R"({"method": "mtp", "model": ")" + path + "\"}");
    Config config;
    config.tensor_parallel_size = ranks;
    const auto opened = open_draft(config, *spec, model);
    return opened ? "" : opened.error().message;
  };
  const std::string own = kFolder + "mtp-mimo";
  EXPECT_EQ(refusal_of(own, target, 1), "");
  EXPECT_NE(refusal_of(own, target, 2).find("method mtp reads the output layer"),
            std::string::npos);
  EXPECT_NE(refusal_of(kFolder + "first", target, 1).find("found no module that guesses"),
            std::string::npos);
  EXPECT_NE(refusal_of(kTiny, target, 1).find("found no module that guesses"), std::string::npos);
  ModelConfig other = target;
  for (LayerConfig& layer : other.layers) layer.ffn = FfnKind::kBoth;
  EXPECT_NE(refusal_of(own, other, 1).find("experts beside dense halves"), std::string::npos);
  other = target;
  other.norm_placement = NormPlacement::kAround;
  EXPECT_NE(refusal_of(own, other, 1).find("norms of this kind"), std::string::npos);
  other = target;
  other.residual_scale = 0.5F;
  EXPECT_NE(refusal_of(own, other, 1).find("scaled halves"), std::string::npos);
  other = target;
  for (LayerConfig& layer : other.layers) layer.window = 16;
  EXPECT_NE(refusal_of(own, other, 1).find("windows or states in all layers"), std::string::npos);
}

// The target's output layer reads an EAGLE 1 head: its scaling and cap apply here too.
TEST(Eagle, LogitsAreScaledAndCappedAsTheTargetsAre) {
  const std::vector<Golden> heads = goldens("first.json");
  ASSERT_EQ(heads.size(), 1U);
  const Golden& golden = heads[0];
  size_t at = 0;
  const std::vector<float> hidden = golden.take(at, golden.tokens.size() * golden.hidden);
  const auto logits_with = [&](const LogitRule& rule) {
    auto rig = HeadRig::create(kFolder + golden.name, kEagleSpec, 32, rule);
    EXPECT_TRUE(rig.has_value());
    return (*rig)->forward(golden.tokens, hidden.data(), true).logits;
  };
  const std::vector<float> plain = logits_with({});
  const std::vector<float> changed = logits_with({.scale = 0.25F, .soft_cap = 0.5F});
  ASSERT_EQ(plain.size(), changed.size());
  for (size_t i = 0; i < plain.size(); ++i) {
    ASSERT_NEAR(changed[i], 0.5F * std::tanh(0.25F * plain[i] / 0.5F), 1e-5F) << i;
  }
}

TEST(Eagle, AHeadTakesWhatItsTargetDoesToLogitsAndNoScaledEmbedding) {
  const auto open = [](const std::string& name, const ModelConfig& target) {
    const std::string method = name == "first" ? "eagle" : "eagle3";
    const auto spec =
        parse_spec_config(R"({"method": ")" + method + R"(", "model": ")" + kFolder + name + "\"}");
    return open_draft({}, *spec, target);
  };
  const auto tiny = Checkpoint::open(kTiny);
  ASSERT_TRUE(tiny.has_value());
  ModelConfig target = *read_model_config(**find_model_spec(**tiny), **tiny);
  target.logit_scale = 0.5F;
  target.logit_soft_cap = 30;
  const auto first = open("first", target);
  ASSERT_TRUE(first.has_value()) << first.error().message;
  EXPECT_EQ(first->model.logit_scale, 0.5F);
  EXPECT_EQ(first->model.logit_soft_cap, 30);
  const auto third = open("whole", target);  // it has its own output layer
  ASSERT_TRUE(third.has_value()) << third.error().message;
  EXPECT_EQ(third->model.logit_scale, 1);
  EXPECT_EQ(third->model.logit_soft_cap, 0);
  target.embedding_scale = 8;
  for (const char* name : {"first", "whole"}) {
    const auto scaled = open(name, target);
    ASSERT_FALSE(scaled.has_value()) << name;
    EXPECT_NE(scaled.error().message.find("scaled by 8"), std::string::npos)
        << scaled.error().message;
  }
  EXPECT_TRUE(open("layers", target).has_value());  // it has its own embedding
}

// Each kind of head has tensors that the other kind has no place for.
TEST(Eagle, AHeadOfTheOtherKindIsRefusedByATensor) {
  const auto newer = HeadRig::create(kFolder + "whole", kEagleSpec);
  ASSERT_FALSE(newer.has_value());
  EXPECT_NE(newer.error().message.find("fc"), std::string::npos) << newer.error().message;
  EXPECT_FALSE(HeadRig::create(kFolder + "first", kEagle3Spec).has_value());
}

TEST(Eagle3, IdsOfItsTokensAreTheTargets) {
  for (const Golden& golden : goldens()) {
    auto rig = HeadRig::create(kFolder + golden.name);
    ASSERT_TRUE(rig.has_value());
    const std::span<const int64_t> offsets = (*rig)->checkpoint().id_offsets();
    const bool is_mapped = golden.num_output < 487;
    EXPECT_EQ(offsets.size(), is_mapped ? golden.num_output : 0) << golden.name;
    for (size_t i = 1; i < offsets.size(); ++i) {
      EXPECT_GE(offsets[i], offsets[i - 1]);  // ids ascend
      EXPECT_LT(static_cast<int64_t>(i) + offsets[i], 487);
    }
  }
}

TEST(Eagle3, LayersAreTheConfigurationsOrTheUsual) {
  const auto taps_of = [](const std::string& name) {
    auto rig = HeadRig::create(kFolder + name);
    return (*rig)->model().config().head.taps;
  };
  EXPECT_EQ(taps_of("layers"), (std::vector<int32_t>{0, 1, 2}));
  EXPECT_TRUE(taps_of("midlayer").empty());
  EXPECT_EQ(*usual_taps(32), (std::vector<int32_t>{2, 16, 29}));
  EXPECT_EQ(*usual_taps(30), (std::vector<int32_t>{2, 15, 27}));
  EXPECT_FALSE(usual_taps(6).has_value());
}

// Returns the error for a copy of a head with an edited config.json or tensors.
std::string refusal(const std::string& name,
                    const char* key,
                    const nlohmann::json& value,
                    const std::string& from = "",
                    const std::string& to = "") {
  const testing::TemporaryFolder folder;
  std::filesystem::copy(kFolder + name, folder.path());
  nlohmann::json config = nlohmann::json::parse(testing::read_whole_file(folder.at("config.json")));
  config[key] = value;
  std::ofstream(folder.at("config.json")) << config.dump();
  std::string tensors = testing::read_whole_file(folder.at("model.safetensors"));
  if (!from.empty()) tensors.replace(tensors.find(from), from.size(), to);
  std::ofstream(folder.at("model.safetensors"), std::ios::binary) << tensors;
  const auto rig = HeadRig::create(folder.path());
  return rig ? "" : rig.error().message;
}

TEST(Eagle3, WhatDoesNotFitIsRefusedByName) {
  EXPECT_EQ(refusal("mapped", "x", 1), "");
  EXPECT_NE(refusal("mapped", "num_hidden_layers", 2).find("num_hidden_layers: found 2"),
            std::string::npos);
  EXPECT_NE(refusal("mapped", "draft_vocab_size", 99).find("d2t: found 100 elements, expected 99"),
            std::string::npos);
  EXPECT_NE(refusal("layers", "draft_vocab_size", 400).find("d2t: found 0 elements"),
            std::string::npos);
  EXPECT_NE(refusal("mapped", "vocab_size", 200).find("expected an id of the 200 tokens"),
            std::string::npos);
  EXPECT_NE(refusal("mapped", "target_hidden_size", 32).find("fc.weight"), std::string::npos);
  EXPECT_NE(refusal("mapped", "eagle_config", {{"eagle_aux_hidden_state_layer_ids", {2, 1, 0}}})
                .find("eagle_aux_hidden_state_layer_ids"),
            std::string::npos);
  EXPECT_NE(refusal("mapped", "eagle_config", {{"eagle_aux_hidden_state_layer_ids", {0, 1}}})
                .find("2 elements"),
            std::string::npos);
  EXPECT_NE(refusal("mapped", "x", 1, "hidden_norm", "hidden_morn").find("hidden_"),
            std::string::npos);
  EXPECT_NE(refusal("mapped", "x", 1, "\"I64\"", "\"F64\"").find("d2t"), std::string::npos);
}

// The inputs of a model's layers as heads read them: that of the first layer is the embedding;
// the output of the last is there as it is and normed, as the output layer reads it.
TEST(Eagle3, TapsAreWhatEntersTheLayers) {
  const ModelOptions plain = {.activation_bits = 32, .max_model_len = kMaxTokens};
  ModelOptions tapped = plain;
  tapped.taps = {0, 2, 3, 4};
  auto loaded = load(kTiny, nullptr, tapped);
  ASSERT_TRUE(loaded.has_value()) << loaded.error().message;
  auto device = kernels::Device::create({.threads = 2});
  Model& model = *loaded->model;
  const int32_t hidden = model.config().hidden;
  const StepBounds bounds = {
      .max_tokens = 8, .max_seqs = 1, .max_logits = 8, .max_seq_len = 16, .num_threads = 2};
  auto without = load(kTiny, nullptr, plain);
  ASSERT_TRUE(without.has_value());
  EXPECT_GT(model.arena_bytes(bounds), without->model->arena_bytes(bounds));
  AlignedBuffer arena = *AlignedBuffer::allocate(model.arena_bytes(bounds), "activations");
  model.bind(bounds, arena.span());
  KvStorage storage = *KvStorage::create(
      {blocks_of(model, /*num_blocks=*/1)}, kBlockSize);
  std::vector<LayerCache> caches;
  for (int32_t i = 0; i < model.config().num_layers; ++i) {
    caches.push_back({.group = 0, .planes = storage.planes(0, i)});
  }
  const std::vector<TokenId> tokens = {5, 300, 17};
  const std::vector<int32_t> positions = {0, 1, 2};
  const std::vector<int64_t> slots = {0, 1, 2};
  const std::vector<int32_t> starts = {0, 3};
  const std::vector<int32_t> lengths = {3};
  const std::vector<int32_t> block = {0};
  const std::vector<std::span<const int64_t>> slot_mapping = {slots};
  const std::vector<std::span<const int32_t>> tables = {block};
  const std::vector<int32_t> strides = {1};
  const ForwardBatch batch = {.token_ids = tokens,
                              .positions = positions,
                              .query_start_loc = starts,
                              .seq_lens = lengths,
                              .logits_indices = {},
                              .slot_mapping = slot_mapping,
                              .block_tables = tables,
                              .block_table_strides = strides,
                              .max_seq_len = 3};
  const kernels::ExecContext exec = (*device)->context();
  model.forward({.exec = exec, .batch = batch, .caches = caches});
  std::vector<float> embedded(tokens.size() * static_cast<size_t>(hidden));
  kernels::embedding(exec,
                     {.table = &model.embedding(),
                      .token_ids = tokens,
                      .out = embedded.data(),
                      .out_stride = hidden});
  const auto width = static_cast<size_t>(hidden);
  const std::vector<float> norm =
      *WeightStore(*loaded->checkpoint).vector("output_norm.weight", hidden);
  for (size_t row = 0; row < tokens.size(); ++row) {
    const float* const taps = model.taps() + row * 4 * width;
    const float* const expected = embedded.data() + row * static_cast<size_t>(hidden);
    EXPECT_TRUE(std::equal(expected, expected + hidden, taps)) << row;
    EXPECT_FALSE(std::equal(expected, expected + hidden, taps + hidden)) << row;
    const float* const state = model.states() + row * static_cast<size_t>(hidden);
    EXPECT_FALSE(std::equal(state, state + hidden, taps + hidden)) << row;
    EXPECT_TRUE(std::equal(state, state + hidden, taps + 2 * width)) << row;
    const double squares = std::inner_product(state, state + hidden, state, 0.0);
    const double scale = 1 / std::sqrt(squares / hidden + model.config().norm_eps);
    for (size_t i = 0; i < width; ++i) {
      EXPECT_NEAR(taps[3 * width + i], scale * norm[i] * state[i], 1e-4) << row;
    }
  }
}

}  // namespace
}  // namespace sluice
