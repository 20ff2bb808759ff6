// SPDX-License-Identifier: Apache-2.0
// Checkpoints of one layout converted to the other: other converters' tensors, the same logits, and
// refusals of what the other layout cannot express.
#include "engine/quantize/translation.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <set>

#include "engine/quantize.h"
#include "engine/quantize/hf_vocabulary.h"
#include "engine/quantize/source_rows.h"
#include "engine/run/offline_model.h"
#include "engine/tokenizer/files/hf_tokenizer.h"
#include "engine/tokenizer/files/tiktoken.h"
#include "engine/tokenizer/files/tokenizer_json.h"
#include "engine/weights/hf_names.h"
#include "tests/support/captured_log.h"
#include "tests/support/edited_model.h"
#include "tests/support/golden_folder.h"
#include "tests/support/golden_models.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/tiny_hf_model.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;
using testing::GoldenModel;

const std::string kData = golden_folder();
const std::string kModels = kData + "/models";

using Values = std::map<std::string, std::vector<double>>;

Values values_of(const std::string& path) {
  Values values;
  const auto checkpoint = Checkpoint::open(path);
  EXPECT_TRUE(checkpoint.has_value()) << path << ": " << checkpoint.error().message;
  if (!checkpoint) return values;
  for (const CheckpointTensor& tensor : (*checkpoint)->tensors()) {
    const SourceTensor source = source_of(tensor);
    std::vector<double>& all = values[tensor.name];
    all.resize(static_cast<size_t>(source.shape().rows * source.shape().width));
    SourceRows(path, source).read_f64(0, source.shape().rows, all.data());
  }
  return values;
}

std::vector<float> logits_of(const std::string& path, const std::vector<TokenId>& tokens) {
  std::vector<float> logits;
  auto model = OfflineModel::open(path, 64, {.threads = 1});
  EXPECT_TRUE(model.has_value()) << path << ": " << model.error().message;
  if (model) (*model)->forward(tokens, logits);
  return logits;
}

// `tolerance` applies to rotary factors, which other programs compute in another precision.
void expect_same_values(const Values& found, const Values& expected, double tolerance) {
  for (const auto& [name, values] : expected) {
    const auto at = found.find(name);
    ASSERT_NE(at, found.end()) << name;
    ASSERT_EQ(at->second.size(), values.size()) << name;
    const bool is_near = name.starts_with("rope_") || name.find("norm") != std::string::npos;
    for (size_t i = 0; i < values.size(); ++i) {
      const double allowed = is_near ? tolerance * std::fabs(values[i]) : 0;
      ASSERT_LE(std::fabs(at->second[i] - values[i]), allowed) << name << " at " << i;
    }
  }
  for (const auto& [name, values] : found) EXPECT_TRUE(expected.contains(name)) << name;
}

class Translation : public ::testing::Test {
 protected:
  [[nodiscard]] std::string at(const std::string& name) const { return folder_.at(name); }

  // Returns the error's message; empty: the output was written.
  std::string convert(const std::string& input, const std::string& output, const std::string& to) {
    std::string message;
    // The models have no tokenizers, with a warning each.
    logged_ += logged_by([&] {
      const auto result = quantize_model(
          {.input = input, .output = output, .to = to, .verify = true, .threads = 1});
      if (!result) message = result.error().message;
    });
    return message;
  }

  const testing::TemporaryFolder folder_;
  std::string logged_;
};

// One row per model that can be written: its directory, and its file if it has one.
struct Pair {
  std::string name;
  std::string gguf;
  std::vector<TokenId> tokens;
};

// Those with recurrent layers, with kinds of layers of more heads, and without a name in GGUF.
bool is_left_out(const std::string& name) {
  constexpr std::string_view kFamilies[] = {
      "qwen3-5", "qwen3-next", "lfm2", "step3p", "helium", "ministral-", "granite-hybrid",
      "bamba", "minicpm3", "jais2", "nemotron-h", "falcon-h1", "opt", "gptj", "olmo-hybrid"};
  return std::ranges::any_of(kFamilies,
                             [&](std::string_view family) { return name.starts_with(family); });
}

// Those whose directories have matrices in an order, or numbers at a place, that is not written.
bool is_reordered(const std::string& name) {
  return name.starts_with("gpt-neox") || name.starts_with("falcon") ||
         name.starts_with("baichuan") || name == "gpt2" || name == "bloom" ||
         name == "apertus" || name == "dbrx";
}

std::vector<Pair> pairs(const std::vector<std::string>& lists = {"/models.json",
                                                                 "/window_models.json"}) {
  std::vector<Pair> result;
  for (const std::string& list : lists) {
    const Json document = Json::parse(testing::read_whole_file(kModels + list));
    for (const Json& row : document["models"]) {
      if (is_left_out(row["name"])) continue;
      result.push_back({row["name"], row.value("gguf", ""), row["tokens"]});
    }
  }
  return result;
}

TEST_F(Translation, FilesHaveTheTensorsThatGgufsOwnToolsWrite) {
  size_t count = 0;
  for (const Pair& pair : pairs()) {
    if (pair.gguf.empty()) continue;
    SCOPED_TRACE(pair.name);
    const std::string output = at(pair.name + ".gguf");
    ASSERT_EQ(convert(kModels + "/" + pair.name, output, "f32"), "");
    expect_same_values(values_of(output), values_of(kModels + "/" + pair.gguf), 2e-5);
    const auto found = logits_of(output, pair.tokens);
    const auto expected = logits_of(kModels + "/" + pair.name, pair.tokens);
    EXPECT_LT(testing::relative_error(expected, found), 3e-6);
    ++count;
  }
  EXPECT_GT(count, 30U);
}

TEST_F(Translation, DirectoriesHaveTheTensorsThatTransformersWrites) {
  size_t count = 0;
  for (const Pair& pair : pairs()) {
    if (pair.gguf.empty()) continue;
    SCOPED_TRACE(pair.name);
    const std::string output = at(pair.name);
    if (is_reordered(pair.name)) {
      const std::string message = convert(kModels + "/" + pair.gguf, output, "f32");
      EXPECT_NE(message.find("expected a type of GGUF"), std::string::npos) << message;
      EXPECT_FALSE(fs::exists(output));
      continue;
    }
    ASSERT_EQ(convert(kModels + "/" + pair.gguf, output, "f32"), "");
    Values expected = values_of(kModels + "/" + pair.name);
    // A file of Granite 4 is one of Granite 3, whose directories keep gate and up apart.
    // Those of Gemma 4 have K and V where a layer reads another's. A file of Qwen3-VL becomes
    // Qwen3, whose experts are apart.
    const bool differs =
        pair.name == "granite4" || pair.name == "gemma4-shared" || pair.name == "qwen3-vl-moe";
    if (!differs) expect_same_values(values_of(output), expected, 1e-6);
    const auto found = logits_of(output, pair.tokens);
    EXPECT_LT(testing::relative_error(logits_of(kModels + "/" + pair.name, pair.tokens), found),
              3e-6);
    ++count;
  }
  EXPECT_GT(count, 30U);
}

// Llama 4's gate and up are halves of one tensor, transposed.
TEST_F(Translation, HalvesOfFusedExpertsAreWrittenAsTransformersReadsThem) {
  ASSERT_EQ(convert(kModels + "/llama4-file.gguf", at("llama4"), "f32"), "");
  const auto tensors = [](const std::string& path) {
    const std::string bytes = testing::read_whole_file(path + "/model.safetensors");
    uint64_t size = 0;
    std::memcpy(&size, bytes.data(), sizeof(size));
    const Json header = Json::parse(bytes.substr(sizeof(size), size));
    std::map<std::string, Json> shapes;
    for (const auto& [name, tensor] : header.items()) {
      if (name != "__metadata__") shapes[name] = tensor["shape"];
    }
    return shapes;
  };
  EXPECT_EQ(tensors(at("llama4")), tensors(kModels + "/llama4-file"));
  // In a multimodal model they stay where its text model is.
  ASSERT_EQ(convert(kModels + "/qwen3-vl-moe", at("qwen"), "f32"), "");
  std::map<std::string, Json> stored = tensors(kModels + "/qwen3-vl-moe");
  const std::map<std::string, Json> written = tensors(at("qwen"));
  EXPECT_TRUE(written.contains("model.language_model.layers.1.mlp.experts.gate_up_proj"));
  for (const auto& [name, shape] : written) EXPECT_EQ(stored[name], shape) << name;
}

// InternLM 2's rows of q, k and v take turns, head by head: a file has them apart, and a directory
// is not written.
TEST_F(Translation, RowsThatTakeTurnsAreTakenApart) {
  const std::string input = kModels + "/internlm2";
  EXPECT_NE(convert(input, at("same"), "f32").find("rows of q, k and v that take turns"),
            std::string::npos);
  EXPECT_FALSE(fs::exists(at("same")));
  ASSERT_EQ(convert(input, at("q8.gguf"), "Q8_0"), "");
  EXPECT_FALSE(values_of(at("q8.gguf")).contains("blk.0.attn_qkv.weight"));
  fs::copy(input, at("other"), fs::copy_options::recursive);
  Json config = Json::parse(testing::read_whole_file(input + "/config.json"));
  config["num_key_value_heads"] = 1;
  std::ofstream(at("other") + "/config.json") << config.dump();
  const auto checkpoint = Checkpoint::open(at("other"));
  ASSERT_FALSE(checkpoint.has_value());
  EXPECT_NE(
      checkpoint.error().message.find(
          "model.layers.0.attention.wqkv.weight: found 64 rows, expected 48, of 4 query heads"),
      std::string::npos)
      << checkpoint.error().message;
}

// A directory becomes a file whose lists are by layer, and no file becomes a directory; a directory
// keeps experts that have one tensor together.
TEST_F(Translation, KindsOfLayersWithOtherHeadsBecomeFiles) {
  const std::vector<TokenId> tokens = {3, 9, 4, 17, 5, 21, 8, 33, 40, 12, 6, 7, 11, 60};
  ASSERT_EQ(convert(kModels + "/step3p5", at("step.gguf"), "f32"), "");
  expect_same_values(values_of(at("step.gguf")), values_of(kModels + "/step3p5.gguf"), 2e-5);
  EXPECT_EQ(logits_of(kModels + "/step3p5", tokens), logits_of(at("step.gguf"), tokens));
  const std::string message = convert(kModels + "/step3p5.gguf", at("output"), "f32");
  EXPECT_NE(message.find("cannot say all of it: "), std::string::npos) << message;
  EXPECT_FALSE(fs::exists(at("output")));
  ASSERT_EQ(convert(kModels + "/step3p5", at("same"), "f32"), "");
  EXPECT_EQ(logits_of(kModels + "/step3p5", tokens), logits_of(at("same"), tokens));
  const std::string apart = convert(kModels + "/step3p5", at("apart"), "int8");
  EXPECT_NE(apart.find("found all experts of a layer"), std::string::npos) << apart;
}

// A file has each head's keys, transposed, and values. What it cannot say is refused: another
// epsilon of latents' norms, factors of rotated vectors, rotated halves.
TEST_F(Translation, LatentModelsBecomeFiles) {
  const std::map<std::string, std::string> refused = {
      {"deepseek-v3", "scale of rotated vectors"},
      {"deepseek-v3-halves", "rope_interleave"},
      {"glm4-moe-lite", "epsilon of the norms of latents"},
      {"glm-moe-dsa", "epsilon of the norms of latents"},
      {"kimi-linear", "recurrent layers"},
      {"kimi-linear-published", "recurrent layers"}};
  for (Pair pair : pairs({"/latent_models.json"})) {
    SCOPED_TRACE(pair.name);
    pair.tokens.resize(60);
    const std::string output = at(pair.name + ".gguf");
    const std::string message = convert(kModels + "/" + pair.name, output, "f32");
    if (const auto why = refused.find(pair.name); why != refused.end()) {
      EXPECT_NE(message.find(why->second), std::string::npos) << message;
      EXPECT_FALSE(fs::exists(output));
      continue;
    }
    ASSERT_EQ(message, "");
    if (!pair.gguf.empty()) {
      expect_same_values(values_of(output), values_of(kModels + "/" + pair.gguf), 2e-5);
    }
    const auto expected = logits_of(kModels + "/" + pair.name, pair.tokens);
    EXPECT_LT(testing::relative_error(expected, logits_of(output, pair.tokens)), 3e-6);
    EXPECT_EQ(convert(kModels + "/" + pair.name, at(pair.name + "-q.gguf"), "Q8_0"), "");
    EXPECT_LT(testing::relative_error(expected, logits_of(at(pair.name + "-q.gguf"), pair.tokens)),
              0.2);
  }
  const std::string message = convert(kModels + "/deepseek-v2.gguf", at("directory"), "f32");
  EXPECT_NE(message.find("found matrices of each head"), std::string::npos) << message;
}

// What indexers choose from, and which layers share a choice. The first files of GLM-5.2, known by
// its context, do not say the latter.
TEST_F(Translation, FilesSayWhichLayersChooseKeys) {
  testing::EditedModel edited("glm-moe-dsa");
  edited.json["rms_norm_eps"] = 1e-6;
  edited.json["max_position_embeddings"] = 1 << 20;
  const std::string output = at("glm-dsa.gguf");
  ASSERT_EQ(convert(edited.path(), output, "f32"), "");
  std::vector<TokenId> tokens(64);  // more than a query chooses
  std::iota(tokens.begin(), tokens.end(), 3);
  EXPECT_LT(testing::relative_error(logits_of(edited.path(), tokens), logits_of(output, tokens)),
            3e-6);
  std::string file = testing::read_whole_file(output);
  const auto replace = [&file](const std::string& found, const std::string& by) {
    ASSERT_NE(file.find(found), std::string::npos);
    file.replace(file.find(found), found.size(), by);
  };
  // A number's type comes before it.
  const std::string count("block_count\4\0\0\0", 15);
  replace(count + '\3', count + '\7');
  replace("indexer.types", "indexer.typed");
  std::ofstream(output, std::ios::binary) << file;
  const auto config = testing::read_model_config_at(output);
  ASSERT_TRUE(config.has_value()) << config.error().message;
  std::string choices;
  for (const LayerConfig& layer : config->layers) {
    choices += layer.key_choice == KeyChoice::kOwn ? 'F' : 'S';
  }
  EXPECT_EQ(choices, "FFFSSSF");
}

TEST_F(Translation, RecurrentLayersAreRefusedInAnotherLayout) {
  for (const std::string name : {"/qwen3-5", "/lfm2-moe", "/granite-hybrid", "/falcon-h1"}) {
    for (const bool is_file : {false, true}) {
      const std::string output = at(is_file ? "output" : "output.gguf");
      const std::string message = convert(kModels + name + (is_file ? ".gguf" : ""), output, "f32");
      EXPECT_NE(message.find("recurrent layers"), std::string::npos) << message;
      EXPECT_FALSE(fs::exists(output));
    }
  }
}

// Features that a file cannot express are refused; everything else returns bit for bit.
TEST_F(Translation, RoundTripsGiveTheSameBits) {
  const std::set<std::string> refused = {"afmoe-unscaled",  // files mean a scaled embedding
                                         "llama4",  // a file has a full layer for three others
                                         "llama4-listed",
                                         "dots1-window",
                                         "mistral-window",
                                         "qwen3-moe-bias",
                                         "qwen3-moe-unnormalized",
                                         "gpt-oss-unbiased",
                                         "baichuan-13b",   // three layers mean another size
                                         "phimoe-short",   // experts near each other by default
                                         "granite4-nope",  // layers without positions
                                         "hy-v3",          // dense layers between others
                                         "qwen3-moe-window",
                                         "smollm3-window",
                                         "gpt-neox-sequential",  // files mean the exact GELU
                                         "internlm2-bias",  // rotations that grow
                                         "llama-dynamic-rope",
                                         "qwen2-dynamic-rope",
                                         "gemma2-uncapped",
                                         "gemma2-bias",
                                         "gemma3-bias",
                                         "gemma3",
                                         "gemma3-head40",
                                         "gemma3-soft-caps"};
  std::set<std::string> found_refused;
  for (const Pair& pair : pairs()) {
    SCOPED_TRACE(pair.name);
    const std::string input = kModels + "/" + pair.name;
    const std::string file = at(pair.name + ".gguf");
    const std::string message = convert(input, file, "f32");
    if (!message.empty()) {
      EXPECT_NE(message.find("cannot say all of it: "), std::string::npos) << message;
      EXPECT_EQ(message.find('\n'), std::string::npos);
      EXPECT_FALSE(fs::exists(file));
      found_refused.insert(pair.name);
      continue;
    }
    const std::string back = is_reordered(pair.name) ? file : at(pair.name);
    if (back != file) {
      ASSERT_EQ(convert(file, back, "f32"), "");
    }
    const auto before = logits_of(input, pair.tokens);
    const auto after = logits_of(back, pair.tokens);
    if (pair.name == "baichuan-7b") {  // whose file has other rows beside each other
      EXPECT_LT(testing::relative_error(before, after), 3e-6);
      continue;
    }
    EXPECT_EQ(before, after);
  }
  EXPECT_EQ(found_refused, refused);
  EXPECT_NE(logged_.find("tokenizer.json"), std::string::npos);
}

TEST_F(Translation, SchemesOfEitherLayoutAreWrittenFromTheOther) {
  ASSERT_TRUE(testing::write_tiny_hf_model(at("tiny"), testing::TinyWeights::kBF16));
  for (const char* scheme : {"Q4_0", "Q4_K_M", "Q6_K", "Q8_0", "IQ4_XS", "mxfp4", "bf16", "f16"}) {
    EXPECT_EQ(convert(at("tiny"), at(scheme + std::string(".gguf")), scheme), "") << scheme;
  }
  for (const char* scheme :
       {"int8", "fp8", "fp8-tensor", "fp8-block", "nvfp4", "nvfp4-ct", "mxfp4", "int4", "bf16"}) {
    EXPECT_EQ(convert(at("Q8_0.gguf"), at(scheme), scheme), "") << scheme;
  }
}

// Fused experts stay so for MXFP4 and floats; other programs' formats keep them apart.
TEST_F(Translation, FusedExpertsAreReadAndWritten) {
  for (const Pair& pair : pairs()) {
    if (pair.name != "gpt-oss-mxfp4" && pair.name != "gpt-oss") continue;
    SCOPED_TRACE(pair.name);
    const std::string input = kModels + "/" + pair.name;
    for (const char* scheme : {"mxfp4", "bf16", "f32", "fp8", "int8", "fp8-block", "nvfp4-ct"}) {
      SCOPED_TRACE(scheme);
      const std::string output = at(pair.name + "-" + scheme);
      ASSERT_EQ(convert(input, output, scheme), "");
      const bool is_exact = scheme == std::string("f32") ||
                            (pair.name == "gpt-oss-mxfp4" &&
                             (scheme == std::string("mxfp4") || scheme == std::string("bf16")));
      const auto expected = logits_of(input, pair.tokens);
      const auto found = logits_of(output, pair.tokens);
      if (is_exact) {
        EXPECT_EQ(found, expected);
      } else {
        EXPECT_LT(testing::relative_error(expected, found), 0.5);
      }
    }
    for (const char* scheme : {"mxfp4", "int8"}) {
      EXPECT_EQ(convert(kModels + "/" + pair.gguf, at(pair.name + "-of-file-" + scheme), scheme),
                "");
    }
  }
}

// The tokenizer goldens: converted ones give the same ids, others are refused by name.
TEST(HfVocabulary, TokenizersOfDirectoriesAreKeptOrRefused) {
  std::set<std::string> converted;
  for (const auto& entry : fs::directory_iterator(kData + "/tokenizer/json")) {
    const std::string name = entry.path().stem();
    if (entry.path().extension() != ".json" || name == "configurations" || name == "behaviors") {
      continue;
    }
    HfTokenizerFiles files;
    files.tokenizer_json = testing::read_whole_file(entry.path());
    const auto tokenizer = create_hf_tokenizer(files);
    ASSERT_TRUE(tokenizer.has_value()) << name;
    const int64_t num_rows = (*tokenizer)->vocab_size() + 3;
    const auto vocabulary = read_hf_vocabulary(files.tokenizer_json, **tokenizer, num_rows, name);
    if (!vocabulary) {
      EXPECT_EQ(vocabulary.error().code, ErrorCode::kUnsupported);
      EXPECT_TRUE(vocabulary.error().message.starts_with(name + ": "))
          << vocabulary.error().message;
      continue;
    }
    converted.insert(name);
    EXPECT_EQ(vocabulary->tokens.size(), static_cast<size_t>(num_rows));
    EXPECT_EQ(vocabulary->token_types.back(), TokenType::kUnused);
  }
  for (const char* name : {"llama3", "qwen"}) EXPECT_TRUE(converted.contains(name)) << name;
}

TEST(HfVocabulary, ATiktokenVocabularyIsKeptWithItsMerges) {
  const std::string folder = kData + "/tokenizer/tiktoken/";
  const HfTokenizerFiles files = {
      .ranks = testing::read_whole_file(folder + "tiktoken.model"),
      .tokenizer_config = testing::read_whole_file(folder + "tokenizer_config.json")};
  const auto tokenizer = create_hf_tokenizer(files);
  ASSERT_TRUE(tokenizer.has_value()) << tokenizer.error().message;
  const auto json = tiktoken_as_json(files.ranks, files.tokenizer_config);
  ASSERT_TRUE(json.has_value()) << json.error().message;
  auto vocabulary =
      read_hf_vocabulary(*json, **tokenizer, (*tokenizer)->vocab_size(), "tiktoken.model");
  ASSERT_TRUE(vocabulary.has_value()) << vocabulary.error().message;
  EXPECT_EQ(vocabulary->pre, "kimi-k2");
  const auto written = create_tokenizer(std::move(*vocabulary));
  ASSERT_TRUE(written.has_value()) << written.error().message;
  for (const std::string text : {"It's 12345 tokens, 人工智能A。\n\n  x", "xyxyxyx aaaa ------- Привет"}) {
    std::vector<TokenId> expected;
    std::vector<TokenId> found;
    (*tokenizer)->encode(text, SpecialText::kText, expected);
    (*written)->encode(text, SpecialText::kText, found);
    EXPECT_EQ(found, expected) << text;
  }
}

// Merges made from SentencePiece scores become scores of that order again, with and without a space
// in front; with a merge removed they no longer do.
TEST(HfVocabulary, MergesOfScoresBecomeScores) {
  Vocabulary vocabulary;
  vocabulary.model = "llama";
  vocabulary.tokens = {"<unk>", "<s>", "</s>"};
  vocabulary.token_types = {TokenType::kUnknown, TokenType::kControl, TokenType::kControl};
  for (int byte = 0; byte < 256; ++byte) {
    char name[8];
    std::snprintf(name, sizeof(name), "<0x%02X>", static_cast<unsigned>(byte));
    vocabulary.tokens.emplace_back(name);
    vocabulary.token_types.push_back(TokenType::kByte);
  }
  for (const char* text : {"ab",
                           "\xE2\x96\x81"
                           "a",
                           "abc",
                           "bc",
                           "\xE2\x96\x81",
                           "a",
                           "b",
                           "c"}) {
    vocabulary.tokens.emplace_back(text);
    vocabulary.token_types.push_back(TokenType::kNormal);
  }
  for (size_t i = 0; i < vocabulary.tokens.size(); ++i) {
    vocabulary.scores.push_back(-static_cast<float>(i));
  }
  vocabulary.unknown = 0;
  vocabulary.bos = 1;
  vocabulary.eos = 2;
  vocabulary.add_bos = true;
  const auto num_rows = static_cast<int64_t>(vocabulary.tokens.size());
  for (const bool add_space : {true, false}) {
    vocabulary.add_space_prefix = add_space;
    HfTokenizerFiles files;
    files.tokenizer_json = tokenizer_json(vocabulary).value();
    files.tokenizer_config = tokenizer_config_json(vocabulary, "");
    const auto tokenizer = create_hf_tokenizer(files);
    ASSERT_TRUE(tokenizer.has_value());
    const auto back = read_hf_vocabulary(files.tokenizer_json, **tokenizer, num_rows, "file");
    ASSERT_TRUE(back.has_value()) << back.error().message;
    EXPECT_EQ(back->tokens, vocabulary.tokens);
    EXPECT_EQ(back->token_types, vocabulary.token_types);
    EXPECT_EQ(back->add_space_prefix, add_space);
    EXPECT_EQ(back->bos, 1);
    EXPECT_EQ(back->eos, 2);
    EXPECT_TRUE(back->add_bos);
    const size_t first = 3 + 256;
    for (size_t i = first; i < first + 3; ++i) EXPECT_GT(back->scores[i], back->scores[i + 1]);
    Json json = Json::parse(files.tokenizer_json);
    json["model"]["merges"].erase(json["model"]["merges"].size() - 1);
    const auto refused = read_hf_vocabulary(json.dump(), **tokenizer, num_rows, "file");
    ASSERT_FALSE(refused.has_value());
    EXPECT_NE(refused.error().message.find("file: merges: found "), std::string::npos)
        << refused.error().message;
  }
}

TEST(HfNames, GoBothWays) {
  const auto back = [](const char* stored, const char* type) {
    const FileSpec* const files = find_file_spec(type);
    return hf_name(gguf_name(stored, files), *files).value_or("none");
  };
  for (const char* stored : {"model.embed_tokens.weight",
                             "model.norm.weight",
                             "lm_head.weight",
                             "model.layers.3.self_attn.q_proj.bias",
                             "model.layers.3.self_attn.sinks",
                             "model.layers.12.post_attention_layernorm.weight",
                             "model.layers.0.mlp.experts.7.down_proj.weight"}) {
    EXPECT_EQ(back(stored, "llama"), stored);
  }
  EXPECT_EQ(back("model.layers.1.block_sparse_moe.experts.2.w3.weight", "mixtral"),
            "model.layers.1.block_sparse_moe.experts.2.w3.weight");
  EXPECT_EQ(back("model.layers.1.block_sparse_moe.gate.weight", "mixtral"),
            "model.layers.1.block_sparse_moe.gate.weight");
  for (const char* norm : {"post_attention_layernorm", "pre_feedforward_layernorm"}) {
    const std::string stored = "model.layers.1." + std::string(norm) + ".weight";
    EXPECT_EQ(back(stored.c_str(), "gemma2"), stored);
  }
  for (const char* stored :
       {"model.tok_embeddings.weight", "output.weight", "model.layers.2.feed_forward.w3.weight"}) {
    EXPECT_EQ(back(stored, "internlm2"), stored);
  }
  for (const char* stored : {"transformer.wte.weight",
                             "transformer.ln_f.weight",
                             "lm_head.weight",
                             "transformer.h.2.attn.attention.out_proj.weight"}) {
    EXPECT_EQ(back(stored, "exaone"), stored);
  }
  EXPECT_EQ(back("model.layers.2.input_layernorm.weight", "exaone"), "transformer.h.2.ln_1.weight");
  const FileSpec& llama = *find_file_spec("llama");
  EXPECT_EQ(hf_name("blk.1.ffn_norm.weight", llama),
            "model.layers.1.post_attention_layernorm.weight");
  EXPECT_EQ(hf_name("blk.1.ffn_up.weight", *find_file_spec("phi3")),
            "model.layers.1.mlp.gate_up_proj.weight");
  EXPECT_EQ(hf_name("blk.1.ssm_in.weight", llama), std::nullopt);
  EXPECT_EQ(hf_name("blk.x.attn_q.weight", llama), std::nullopt);
  EXPECT_EQ(hf_name("rope_freqs.weight", llama), std::nullopt);
}

// The same words mean another norm in another family.
TEST(HfNames, AreTheFamilysOwn) {
  const char* const stored = "model.layers.0.post_attention_layernorm.weight";
  EXPECT_EQ(gguf_name(stored, find_file_spec("llama")), "blk.0.ffn_norm.weight");
  EXPECT_EQ(gguf_name(stored, find_file_spec("gemma2")), "blk.0.post_attention_norm.weight");
  EXPECT_EQ(gguf_name(stored, nullptr), "blk.0.ffn_norm.weight");
  const char* const gate = "model.layers.0.block_sparse_moe.gate.weight";
  EXPECT_EQ(gguf_name(gate, find_file_spec("llama")), gate);
  EXPECT_EQ(name_of_gguf("blk.0.post_attention_norm.weight", find_gguf_spec("gpt-oss")),
            "blk.0.ffn_norm.weight");
  EXPECT_EQ(name_in_gguf("blk.0.ffn_norm.weight", find_gguf_spec("gpt-oss")),
            "blk.0.post_attention_norm.weight");
  EXPECT_EQ(name_of_gguf("blk.0.post_attention_norm.weight", find_gguf_spec("gemma2")),
            "blk.0.post_attention_norm.weight");
}

}  // namespace
}  // namespace sluice
