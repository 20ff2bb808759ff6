// SPDX-License-Identifier: Apache-2.0
// What `quantize` writes is served, and answers as its decoded weights do: architectures x schemes
// x weights that few models have (a dead expert, one huge value, zeros). SLUICE_FULL=1: all.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engine/core/config.h"
#include "engine/engine.h"
#include "engine/weights/checkpoint.h"
#include "engine/weights/latent_halves.h"
#include "engine/weights/safetensors.h"
#include "tests/engine/quantize_rig.h"
#include "tests/engine/weights/hf_directory.h"
#include "tests/support/golden_models.h"
#include "tests/support/model_harness.h"
#include "tests/support/same_bits.h"
#include "tests/support/tier.h"

namespace sluice::testing {
namespace {

struct Extreme {
  const char* name;
  void (*apply)(std::vector<float>& weights);
};

void scale_by(std::vector<float>& weights, float factor) {
  for (float& weight : weights) weight *= factor;
}

constexpr Extreme kExtremes[] = {
    {"as they are", [](std::vector<float>&) {}},
    {"tiny", [](std::vector<float>& weights) { scale_by(weights, 1e-8F); }},
    {"zeros", [](std::vector<float>& weights) { scale_by(weights, 0); }},
    {"one huge", [](std::vector<float>& weights) { weights[5] = 1e8F; }},
    {"large", [](std::vector<float>& weights) { scale_by(weights, 1e6F); }},
    {"small", [](std::vector<float>& weights) { scale_by(weights, 1e-5F); }},
    {"one large", [](std::vector<float>& weights) { weights[7] = -3e4F; }},
};

// The first of these that a model's first layer has is changed.
constexpr const char* kChangedStems[] = {"ffn_up", "ffn_up_exps.1", "ffn_up_exps", "mamba_in"};

// Where the numbers of a tensor lie.
struct Stored {
  std::string path;
  size_t offset = 0;
  WeightFormat format = WeightFormat::kF32;
  size_t count = 0;
};

Stored stored_at(const std::string& model,
                 const Checkpoint& checkpoint,
                 const CheckpointTensor& tensor) {
  Stored stored = {.path = tensor.file.empty() ? model : tensor.file, .format = tensor.format};
  for (const CheckpointFile& file : checkpoint.files()) {
    const std::byte* const begin = file.bytes.data();
    if (tensor.data.data() < begin || tensor.data.data() >= begin + file.bytes.size()) continue;
    stored.offset = static_cast<size_t>(tensor.data.data() - begin);
  }
  EXPECT_GT(stored.offset, 0U) << "experts in one tensor are no part of a file: " << model;
  stored.count = tensor.data.size() / static_cast<size_t>(format_info(tensor.format).block_bytes);
  return stored;
}

// Changes numbers in place. No checkpoint may have the file open.
void rewrite(const Stored& stored, const std::function<void(std::vector<float>& weights)>& change) {
  std::string file = read_file(stored.path);
  auto* const data = reinterpret_cast<std::byte*>(file.data()) + stored.offset;
  std::vector<float> weights(stored.count);
  const auto count = static_cast<int64_t>(stored.count);
  dequantize_row(stored.format, data, count, weights.data());
  change(weights);
  quantize_row(stored.format, weights.data(), count, data);
  write_file(stored.path, file);
}

// Changes one matrix of the model's first layer.
void change_matrix(const std::string& model, const Extreme& extreme) {
  Stored stored;
  {
    const auto opened = Checkpoint::open(model);
    ASSERT_TRUE(opened.has_value()) << opened.error().message;
    const CheckpointTensor* tensor = nullptr;
    for (const char* stem : kChangedStems) {
      if (tensor == nullptr) tensor = (*opened)->find(std::string("blk.0.") + stem + ".weight");
    }
    ASSERT_NE(tensor, nullptr) << model;
    ASSERT_FALSE(layout_of(tensor->format).is_integer()) << model;
    stored = stored_at(model, **opened, *tensor);
  }
  rewrite(stored, extreme.apply);
}

// Rounds the matrices of latents in `floats` as the loader rounds those of `coded`, whose halves
// are BF16. What is left then is what the products differ by.
void round_latents(const std::string& coded, const std::string& floats) {
  std::vector<Stored> rounded;
  {
    const auto of_codes = Checkpoint::open(coded);
    const auto of_floats = Checkpoint::open(floats);
    ASSERT_TRUE(of_codes.has_value() && of_floats.has_value());
    for (const CheckpointTensor& tensor : (*of_codes)->tensors()) {
      const bool is_rounded = tensor.latent != nullptr && tensor.format == WeightFormat::kBF16;
      if (!is_rounded || !tensor.latent->is_key()) continue;  // both halves are of one matrix
      const CheckpointTensor* decoded = (*of_floats)->find(tensor.name);
      ASSERT_TRUE(decoded != nullptr && decoded->latent != nullptr) << tensor.name;
      if (decoded->format == WeightFormat::kBF16) continue;  // it is rounded there, too
      rounded.push_back(stored_at(floats, **of_floats, decoded->latent->whole()));
    }
  }
  for (const Stored& stored : rounded) {
    rewrite(stored, [](std::vector<float>& weights) {
      for (float& weight : weights) weight = bf16_to_float(float_to_bf16(weight));
    });
  }
}

// Tensors by an expression for their names: those that a scheme takes beside its own, or with a
// recipe those alone.
struct Rule {
  const char* expression = "";  // empty: the scheme's own
  bool recipe = false;
};

std::vector<std::string> included_by(const Rule& rule) {
  if (rule.recipe || *rule.expression == '\0') return {};
  return {rule.expression};
}

std::string recipe_of(const Rule& rule, const std::string& scheme) {
  return rule.recipe ? Json{{rule.expression, scheme}}.dump() : "";
}

class QuantizeServe : public Quantize {
 protected:
  // Returns a changed copy of a golden model, of which it makes F32: that has any such weight.
  std::string changed(const std::string& name, const Extreme& extreme) {
    const std::string copy = at("in-" + name);
    fs::remove_all(copy);
    const auto made =
        quantize_model({.input = kData + "/models/" + name, .output = copy, .to = "f32"});
    EXPECT_TRUE(made.has_value()) << name << made.error().message;
    change_matrix(copy, extreme);
    return copy;
  }

  // What a model at a path answers at so many activation bits.
  using Answers = std::function<std::vector<float>(
      const std::string& path, int32_t activation_bits, const std::string& what)>;

  // Quantizes, then compares what is served with its own floats. Returns why an input that a scheme
  // cannot have was refused, which is before anything was written; empty: it was quantized.
  std::string refusal(const std::string& input,
                      const std::string& scheme,
                      const std::string& what,
                      const Answers& answers = logits_of,
                      const Rule& rule = {}) {
    const bool is_file = input.ends_with(".gguf");
    const std::string output = at(is_file ? "out.gguf" : "out");
    const std::string floats = at(is_file ? "floats.gguf" : "floats");
    fs::remove_all(output);
    fs::remove_all(floats);
    const auto written = quantize_model({.input = input,
                                         .output = output,
                                         .to = rule.recipe ? "" : scheme,
                                         .recipe = recipe_of(rule, scheme),
                                         .include = included_by(rule),
                                         .verify = true});
    if (!written) {
      EXPECT_NE(written.error().code, ErrorCode::kDataLoss) << what << written.error().message;
      EXPECT_EQ(written.error().message.find("read back"), std::string::npos)
          << what << written.error().message;
      EXPECT_FALSE(fs::exists(output)) << what;
      return written.error().message;
    }
    const auto decoded =
        quantize_model({.input = output, .output = floats, .to = "f32", .verify = true});
    EXPECT_TRUE(decoded.has_value()) << what << decoded.error().message;
    if (!decoded) return {};
    round_latents(output, floats);
    const std::vector<float> expected = answers(floats, 32, what);
    // Rows of INT8 matrices are int8 at any activation bits, and one may outweigh the others.
    const std::vector<float> answer = answers(output, 32, what);
    EXPECT_TRUE(std::isfinite(answer.front())) << what;
    if (scheme != "int8") {
      const bool has_rule = *rule.expression != '\0';
      EXPECT_LT(relative_error(expected, answer), has_rule ? 1e-2 : 1e-3) << what;
    }
    EXPECT_TRUE(std::isfinite(answers(output, 8, what).front())) << what;
    return {};
  }

  bool check(const std::string& input, const std::string& scheme, const std::string& what) {
    return refusal(input, scheme, what).empty();
  }

  static std::vector<float> logits_of(const std::string& path,
                                      int32_t activation_bits,
                                      const std::string& what) {
    const std::vector<TokenId> tokens = {1, 17, 5, 9, 30, 2};
    const auto harness = ModelHarness::create(
        path, activation_bits, DType::kF32, static_cast<int32_t>(tokens.size()));
    EXPECT_TRUE(harness.has_value()) << what << ": " << harness.error().message;
    return harness ? (*harness)->forward(tokens) : std::vector<float>{0};
  }
};

// All models of a folder of goldens.
std::set<std::string> models_in(const std::string& folder) {
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(kData + "/" + folder)) {
    const std::string name = entry.path().filename().string();
    if (name.ends_with(".gguf") || fs::exists(entry.path() / "config.json")) names.insert(name);
  }
  return names;
}

// Returns the part of an error by which a model is refused in every scheme; empty: in none.
std::string_view refused_by(const std::string& name) {
  if (name.ends_with(".gguf")) return "";
  if (name == "internlm2" || name == "internlm2-bias") return "found rows of q, k and v that take turns";
  if (name.starts_with("gpt-neox") || name == "falcon" || name.starts_with("falcon-n") ||
      name.starts_with("falcon-o") || name == "bloom") {
    return "found rows of q, k and v that take turns";
  }
  if (name.starts_with("baichuan")) return "found q, k and v as one";
  if (name == "dbrx") return "found transposed down matrices of experts";
  if (name == "gpt2") return "found matrices with a row for each input";
  const bool has_stacks = name.starts_with("step3p") || name.starts_with("engine-heads");
  return has_stacks ? "found all experts of a layer, expected a matrix each" : "";
}

// Directories, or files, of one model for each architecture in the golden list; of a variant all.
std::vector<std::string> models(bool files) {
  std::vector<std::string> names;
  std::set<std::string> seen;
  for (const std::string& name : models_in("models")) {
    const bool is_file = name.ends_with(".gguf");
    const std::string path = kData + "/models/" + name;
    if (is_file != files) continue;
    const auto opened = Checkpoint::open(path);
    if (!opened) continue;
    if (!refused_by(name).empty()) continue;
    const CheckpointTensor* up = nullptr;
    for (const char* stem : kChangedStems) {
      if (up == nullptr) up = (*opened)->find(std::string("blk.0.") + stem + ".weight");
    }
    // Rows that are no whole blocks become F16, which extremes do not fit.
    if (is_file && up != nullptr && up->dims[0] % kQuantGroup != 0) continue;
    const bool is_joined = up != nullptr && !is_file && up->stored_name.empty();
    if (up == nullptr || is_joined || layout_of(up->format).is_integer()) continue;
    if (!seen.insert((*opened)->architecture()).second && !testing::is_full()) continue;
    names.push_back(name);
  }
  return names;
}

void check_all(const std::vector<std::string>& names,
               std::span<const char* const> schemes,
               const std::function<bool(const std::string&, const char*, const Extreme&)>& check) {
  size_t turn = 0;
  size_t num_written = 0;
  size_t num_refused = 0;
  for (const std::string& name : names) {
    for (const Extreme& extreme : kExtremes) {
      for (const char* scheme : schemes) {
        // At a commit a twelfth, in which each pair of two of the three comes around.
        if (!testing::is_full() && turn++ % 12 != 0) continue;
        ++(check(name, scheme, extreme) ? num_written : num_refused);
      }
    }
  }
  EXPECT_GT(num_written, 4 * num_refused);
  std::printf("%zu written and served, %zu refused\n", num_written, num_refused);
}

TEST_F(QuantizeServe, DirectoriesAnswerAsTheirDecodedWeights) {
  check_all(models(false),
            kCodeSchemes,
            [this](const std::string& name, const char* scheme, const Extreme& extreme) {
              return check(changed(name, extreme),
                           scheme,
                           name + " " + scheme + " " + extreme.name + ": ");
            });
}

TEST_F(QuantizeServe, FilesAnswerAsTheirDecodedWeights) {
  check_all(models(true),
            kGgufSchemes,
            [this](const std::string& name, const char* scheme, const Extreme& extreme) {
              return check(changed(name, extreme),
                           scheme,
                           name + " " + scheme + " " + extreme.name + ": ");
            });
}

// The vectors of the golden's texts.
std::vector<float> vectors_of(const std::string& path,
                              int32_t activation_bits,
                              const Json& ids,
                              const std::string& what) {
  Config config;
  config.model = path;
  config.kv_cache_memory = int64_t{16} << 20;
  config.kv_cache_dtype = "float32";
  config.activation_bits = activation_bits;
  if (what.starts_with("qwen3-rerank")) config.convert = "classify";  // no file of it says so
  const std::unique_ptr<Engine> engine = start_engine(config);
  std::vector<float> vectors;
  if (engine == nullptr) return {0};
  std::vector<ValidRequest> requests(ids.size());
  for (size_t i = 0; i < ids.size(); ++i) {
    requests[i].prompt = ids[i].get<std::vector<TokenId>>();
    requests[i].sampling.max_tokens = 1;
    requests[i].pooling.emplace();
  }
  for (const Collected& answer : run_together(*engine, requests)) {
    EXPECT_EQ(answer.finish_reason, FinishReason::kStop) << what << answer.error;
    vectors.insert(vectors.end(), answer.pooled.begin(), answer.pooled.end());
  }
  return vectors;
}

class EveryModel : public QuantizeServe, public ::testing::WithParamInterface<const char*> {};

// Whatever family comes later is here too. At a commit the first of each has the scheme that its
// turn draws.
TEST_P(EveryModel, IsWrittenAndServedOrRefusedByName) {
  constexpr std::string_view kNothing = "every tensor is kept";  // widths that no groups divide
  const std::string folder = GetParam();
  size_t turn = 0;
  std::map<std::string, size_t> ends;
  std::set<std::string> seen;
  for (const std::string& name : models_in(folder)) {
    const std::string path = kData + "/" + folder + "/" + name;
    const bool is_file = name.ends_with(".gguf");
    const std::span<const char* const> schemes =
        is_file ? std::span<const char* const>(kGgufSchemes) : kCodeSchemes;
    Answers answers = logits_of;
    if (folder == "embeddings") {
      const Json golden = Json::parse(read_file(path.substr(0, path.find(".gguf")) + ".json"));
      answers = [ids = golden["ids"]](const auto& model, int32_t bits, const auto& what) {
        return vectors_of(model, bits, ids, what);
      };
    }
    const auto checkpoint = Checkpoint::open(path);
    ASSERT_TRUE(checkpoint.has_value()) << checkpoint.error().message;
    const std::string_view expected = refused_by(name);
    const bool is_first = seen.insert((*checkpoint)->architecture() + (is_file ? " file" : "")).second;
    if (!testing::is_full() && !is_first) continue;
    ++turn;
    for (size_t i = 0; i < schemes.size(); ++i) {
      if (!testing::is_full() && i != turn % schemes.size()) continue;
      const std::string what = name + " " + schemes[i] + ": ";
      const std::string refused = refusal(path, schemes[i], what, answers);
      const bool is_nothing = refused.find(kNothing) != std::string::npos;
      ++ends[refused.empty() ? "written" : is_nothing ? "nothing to write" : "refused"];
      if (is_nothing) continue;
      EXPECT_EQ(refused.empty(), expected.empty()) << what << refused;
      EXPECT_NE(refused.find(expected), std::string::npos) << what << refused;
    }
  }
  for (const auto& [end, count] : ends) std::printf("%zu %s\n", count, end.c_str());
  EXPECT_GT(ends["written"], 3 * (ends["refused"] + ends["nothing to write"]));
}

INSTANTIATE_TEST_SUITE_P(Goldens, EveryModel, ::testing::Values("models", "embeddings"));

constexpr Rule kRules[] = {
    {"."},
    {"experts[.]0[.]", true},
    {"experts[.]1[.](up|w3)", true},
    {"experts[.](gate_)?up_proj|gate_up_exps|up_exps"},
    {"experts[.]down_proj|down_exps", true},
    {"gate[.]weight|router|gate_inp"},
    {"embed|lm_head|output|token_embd"},
    {"q_proj|attn_q[.]", true},
    {"up_proj|ffn_up", true},
    {"norm|conv|bias|A_log|sinks"},
    {"[.]1[.]", true},
    {"kv_b_proj|attn_k_b|indexer"},
};

// Whatever a rule names is served as it was written, or refused before anything is.
TEST_F(QuantizeServe, WhatRulesNameIsServedOrRefused) {
  size_t turn = 0;
  size_t num_written = 0;
  std::set<std::string> seen;
  for (const std::string& name : models_in("models")) {
    const std::string path = kData + "/models/" + name;
    const bool is_file = name.ends_with(".gguf");
    const auto checkpoint = Checkpoint::open(path);
    ASSERT_TRUE(checkpoint.has_value()) << checkpoint.error().message;
    const bool is_first =
        seen.insert((*checkpoint)->architecture() + (is_file ? " file" : "")).second;
    if (!is_full() && !is_first) continue;
    const std::span<const char* const> schemes =
        is_file ? std::span<const char* const>(kGgufSchemes) : kCodeSchemes;
    for (const Rule& rule : kRules) {
      const char* const scheme = schemes[++turn % schemes.size()];
      // At a commit one of so many, in which each rule and scheme comes around.
      if (!is_full() && turn % 37 != 0) continue;
      const std::string what = name + " " + scheme + " " + rule.expression + ": ";
      const std::string refused = refusal(path, scheme, what, logits_of, rule);
      if (refused.empty()) ++num_written;
    }
  }
  EXPECT_GT(num_written, is_full() ? 1000U : 10U);
}

// The weights of a matrix beyond the range of a type's scales stay floats, and the report says so.
TEST_F(QuantizeServe, MatricesBeyondTheRangeOfScalesAreKept) {
  for (const char* scheme : {"Q8_0", "Q4_K_M", "Q2_K", "IQ4_XS", "Q4_1"}) {
    for (const size_t extreme : {1, 3}) {  // tiny, one huge
      const std::string input = changed("llama.gguf", kExtremes[extreme]);
      const std::string what = std::string(scheme) + " " + kExtremes[extreme].name;
      quantize({.input = input, .output = {}, .to = scheme, .verify = true}, what + ".gguf");
      const std::string said = tensor("blk.0.ffn_up.weight")["scheme"];
      EXPECT_TRUE(said.starts_with("kept: weights beyond the range of ")) << what << said;
      EXPECT_EQ(tensor("blk.0.ffn_up.weight")["relative_error"], 0.0) << what;
      EXPECT_FALSE(std::string(tensor("blk.1.ffn_up.weight")["scheme"]).starts_with("kept")) << what;
    }
  }
}

TEST_F(QuantizeServe, FilesWithLatentsAnswerAsTheirDecodedWeights) {
  const std::string input = kData + "/models/engine-latents.gguf";
  for (const char* scheme : {"Q4_0", "Q4_K_M", "Q6_K", "IQ4_NL", "bf16"}) {
    EXPECT_TRUE(check(input, scheme, scheme)) << scheme;
  }
  quantize({.input = input, .output = {}, .to = "Q4_0", .verify = true}, "kept.gguf");
  EXPECT_EQ(tensor("blk.0.attn_k_b.weight")["scheme"], "kept");
  EXPECT_EQ(tensor("blk.0.attn_v_b.weight")["scheme"], "kept");
  EXPECT_EQ(tensor("blk.0.attn_kv_a_mqa.weight")["scheme"], "Q4_0");
}

// What the recurrence reads as numbers of a channel or a head stays as it is; gates of few rows do
// in directories, as in published ones.
TEST_F(QuantizeServe, RecurrentLayersKeepWhatIsNoMatrix) {
  const std::string models = kData + "/models/";
  for (const char* scheme : {"Q4_0", "Q4_K_M", "Q8_0"}) {
    for (const char* name : {"engine-delta",
                             "engine-conv",
                             "engine-mamba",
                             "engine-halves",
                             "engine-two-mixers",
                             "engine-channels"}) {
      EXPECT_TRUE(check(models + name + ".gguf", scheme, scheme)) << name << " " << scheme;
    }
  }
  quantize({.input = models + "engine-mamba.gguf", .output = {}, .to = "Q4_0", .verify = true},
           "mamba.gguf");
  for (const char* kept : {"ssm_conv1d.weight", "ssm_a", "ssm_d", "ssm_norm.weight"}) {
    EXPECT_EQ(tensor(std::string("blk.0.") + kept)["scheme"], "kept") << kept;
  }
  for (const char* coded : {"ssm_in.weight", "ssm_out.weight"}) {
    EXPECT_EQ(tensor(std::string("blk.0.") + coded)["scheme"], "Q4_0") << coded;
  }
  for (const char* name :
       {"qwen3-5", "lfm2", "bamba", "falcon-h1", "nemotron-h-moe", "olmo-hybrid", "kimi-linear"}) {
    EXPECT_TRUE(check(models + name, "int8", "int8")) << name;
  }
  // Kimi's rates have two dimensions, and its name is no weight's.
  for (const char* scheme : {"int8", "fp8", "fp8-block"}) {
    EXPECT_EQ(refusal(models + "kimi-linear", scheme, scheme, logits_of, {"."}), "") << scheme;
  }
  quantize({.input = models + "qwen3-5", .output = {}, .to = "int8", .verify = true}, "delta");
  const std::string layer = "model.layers.0.linear_attn.";
  for (const char* kept : {"conv1d.weight", "in_proj_a.weight", "A_log", "norm.weight"}) {
    EXPECT_EQ(tensor(layer + kept)["scheme"], "kept") << kept;
  }
  for (const char* coded : {"in_proj_qkv.weight", "in_proj_z.weight", "out_proj.weight"}) {
    EXPECT_EQ(tensor(layer + coded)["scheme"], "int8") << coded;
  }
}

// Latent attention's matrix of all heads stays as it is, and is decoded before it is split if a
// scheme has it: published checkpoints of several schemes do.
TEST_F(QuantizeServe, LatentMatricesOfHeadsAreKeptOrDecodedFirst) {
  const std::string input = kData + "/models/deepseek-v3";
  constexpr const char* kKvB = "model.layers.1.self_attn.kv_b_proj.weight";
  quantize({.input = input, .output = {}, .to = "int8", .verify = true}, "kept");
  EXPECT_EQ(tensor(kKvB)["scheme"], "kept");
  EXPECT_EQ(tensor("model.layers.1.self_attn.kv_a_proj_with_mqa.weight")["scheme"], "int8");
  EXPECT_EQ(tensor("model.layers.1.mlp.gate.weight")["scheme"], "kept");
  for (const char* scheme : {"int8", "fp8-block", "nvfp4", "nvfp4-ct", "int4", "int4-asym"}) {
    SCOPED_TRACE(scheme);
    const std::string coded = quantize(
        {.input = input, .output = {}, .to = scheme, .include = {"kv_b_proj"}, .verify = true},
        std::string("coded-") + scheme);
    EXPECT_EQ(tensor(kKvB)["scheme"], scheme);
    const std::string floats = quantize({.input = coded, .output = {}, .to = "f32"},
                                        std::string("floats-") + scheme);
    const auto of_codes = Checkpoint::open(coded);
    const auto of_floats = Checkpoint::open(floats);
    ASSERT_TRUE(of_codes.has_value() && of_floats.has_value());
    for (const char* name : {"blk.1.attn_k_b.weight", "blk.1.attn_v_b.weight"}) {
      const CheckpointTensor* half = (*of_codes)->find(name);
      const CheckpointTensor* decoded = (*of_floats)->find(name);
      ASSERT_TRUE(half != nullptr && decoded != nullptr);
      ASSERT_EQ(half->format, WeightFormat::kBF16);
      ASSERT_EQ(decoded->format, WeightFormat::kF32);
      const auto rows = static_cast<int64_t>(half->dims[1]);
      const std::vector<std::byte> found = half->latent->rows(0, rows);
      const std::vector<std::byte> wanted = decoded->latent->rows(0, rows);
      for (size_t i = 0; i < found.size() / 2; ++i) {
        uint16_t bits = 0;
        float value = 0;
        std::memcpy(&bits, found.data() + 2 * i, sizeof(bits));
        std::memcpy(&value, wanted.data() + 4 * i, sizeof(value));
        ASSERT_EQ(bits, float_to_bf16(value)) << name << " " << i;
      }
    }
  }
}

// Writers of quantized Phi-3 split what the family joins: gate and up, or q, k and v.
TEST_F(QuantizeServe, SplitMatricesOfPhi3AnswerAsJoinedOnes) {
  const std::string joined = kData + "/models/phi3";
  const std::string file = read_file(joined + "/model.safetensors");
  const auto tensors = parse_safetensors(std::as_bytes(std::span(file)), "phi3");
  ASSERT_TRUE(tensors.has_value());
  const std::map<std::string, std::vector<std::pair<std::string, uint64_t>>> kParts = {
      {"gate_up_proj", {{"gate_proj", 40}, {"up_proj", 40}}},
      {"qkv_proj", {{"q_proj", 32}, {"k_proj", 16}, {"v_proj", 16}}}};
  for (const auto& [name, parts] : kParts) {
    SafetensorsBuilder builder;
    for (const FileTensor& tensor : *tensors) {
      const std::string dtype(element_info(*tensor.type).name);
      const std::string data(reinterpret_cast<const char*>(tensor.data.data()),
                             tensor.data.size());
      const std::string columns = std::to_string(tensor.shape.back()) + "]";
      const size_t at = tensor.name.find(name);
      if (at == std::string::npos) {
        const bool is_row = tensor.shape.size() == 1;
        const std::string rows = is_row ? "" : std::to_string(tensor.shape.front()) + ",";
        builder.add(tensor.name, dtype, "[" + rows + columns, data);
        continue;
      }
      const size_t row_bytes = data.size() / tensor.shape.front();
      size_t first = 0;
      for (const auto& [part, rows] : parts) {
        std::string own = tensor.name;
        builder.add(own.replace(at, name.size(), part),
                    dtype,
                    "[" + std::to_string(rows) + "," + columns,
                    data.substr(first * row_bytes, rows * row_bytes));
        first += rows;
      }
      ASSERT_EQ(first, tensor.shape.front());
    }
    const std::string split = at(name);
    fs::copy(joined, split);
    write_file(split + "/model.safetensors", builder.file());
    for (const int32_t bits : {8, 32}) {
      EXPECT_EQ(logits_of(split, bits, name), logits_of(joined, bits, "joined")) << name << bits;
    }
  }
}

// Some experts of a layer are kept: the others' rows are rounded, theirs are not.
TEST_F(QuantizeServe, ExpertsThatAreKeptRunBesideTheOthers) {
  const std::string input = model(TinyWeights::kBF16Experts);
  for (const char* scheme : {"int4", "int8", "fp8", "nvfp4", "mxfp4"}) {
    const std::string what = std::string(scheme) + ": ";
    const QuantizeOptions options = {.input = input,
                                     .output = {},
                                     .to = scheme,
                                     .exclude = {"layers\\.0\\.mlp\\.experts\\.[13]\\."}};
    const std::string output = quantize(options, scheme);
    const std::string floats =
        quantize({.input = output, .output = {}, .to = "f32"}, what + "floats");
    const std::vector<float> expected = logits_of(floats, 32, what);
    for (const int32_t bits : {8, 16, 32}) {
      EXPECT_LT(relative_error(expected, logits_of(output, bits, what)), bits == 8 ? 0.2 : 0.1)
          << what << bits;
    }
  }
}

}  // namespace
}  // namespace sluice::testing
