// SPDX-License-Identifier: Apache-2.0
#include "server/hub/repo_files.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace sluice::hub {
namespace {

TEST(ModelName, HasARepositoryAndPerhapsAChoice) {
  EXPECT_EQ(parse_model_name("org/name")->repo, "org/name");
  EXPECT_EQ(parse_model_name("org/name")->choice, "");
  EXPECT_EQ(parse_model_name("o-1/N.b_c:Q4_K_M")->repo, "o-1/N.b_c");
  EXPECT_EQ(parse_model_name("o-1/N.b_c:Q4_K_M")->choice, "Q4_K_M");
  EXPECT_EQ(parse_model_name("org/name:sub/file.gguf")->choice, "sub/file.gguf");
  EXPECT_EQ(parse_model_name("org/name/sub/file.GGUF")->choice, "sub/file.GGUF");
}

TEST(ModelName, IsNothingThatCouldOnlyBeAPath) {
  for (const char* text : {"",
                           "name",
                           "/abs/name",
                           "./org/name",
                           "../name",
                           "org/..",
                           "org/",
                           "/name",
                           "org/name/more",
                           "models/file.gguf",
                           "org/name:",
                           "org/name:../x",
                           "org/name:a/../x",
                           "org/na me",
                           "org/-name",
                           "~/models",
                           "org/name/../../x.gguf"}) {
    EXPECT_FALSE(parse_model_name(text)) << text;
  }
}

std::string chosen(const std::vector<std::string>& listing, const std::string& name) {
  const auto selection = select_files(listing, *parse_model_name(name), true);
  return selection ? selection->gguf : selection.error().message;
}

TEST(SelectFiles, PrefersSafetensorsAndLeavesTheRest) {
  const std::vector<std::string> listing = {"README.md",
                                            "a-Q8_0.gguf",
                                            "config.json",
                                            "consolidated.safetensors",
                                            "model.safetensors",
                                            "original/config.json",
                                            "tokenizer.json"};
  const auto all = select_files(listing, *parse_model_name("o/n"), true);
  EXPECT_EQ(all->files,
            (std::vector<std::string>{"config.json", "tokenizer.json", "model.safetensors"}));
  EXPECT_EQ(all->gguf, "");
  const auto small = select_files(listing, *parse_model_name("o/n"), false);
  EXPECT_EQ(small->files, (std::vector<std::string>{"config.json", "tokenizer.json"}));
  EXPECT_EQ(chosen(listing, "o/n:q8_0"), "a-Q8_0.gguf");
  const auto ranked = select_files(
      {"config.json", "model.safetensors", "tiktoken.model"}, *parse_model_name("o/n"), false);
  EXPECT_EQ(ranked->files, (std::vector<std::string>{"config.json", "tiktoken.model"}));
}

// Older files are taken where there is no tokenizer.json.
TEST(SelectFiles, TakesVocabulariesOfTokenizersWithoutTheUsualFile) {
  std::vector<std::string> listing = {"added_tokens.json",
                                      "config.json",
                                      "merges.txt",
                                      "model.safetensors",
                                      "tekken.json",
                                      "tokenizer.model",
                                      "vocab.json",
                                      "vocab.txt"};
  const auto files_of = [&] { return select_files(listing, *parse_model_name("o/n"), true)->files; };
  EXPECT_EQ(files_of(),
            (std::vector<std::string>{"config.json",
                                      "added_tokens.json",
                                      "vocab.txt",
                                      "vocab.json",
                                      "merges.txt",
                                      "tokenizer.model",
                                      "tekken.json",
                                      "model.safetensors"}));
  listing.push_back("tokenizer.json");
  EXPECT_EQ(files_of(),
            (std::vector<std::string>{
                "config.json", "tokenizer.json", "added_tokens.json", "model.safetensors"}));
}

// Safetensors come first, then GGUF.
TEST(SelectFiles, TakesWeightsOfPyTorchWhereThereAreNoOthers) {
  std::vector<std::string> listing = {"config.json",
                                      "2_Dense/config.json",
                                      "2_Dense/pytorch_model.bin",
                                      "modules.json",
                                      "pytorch_model.bin"};
  const auto all = [&] { return *select_files(listing, *parse_model_name("o/n"), true); };
  EXPECT_EQ(all().files,
            (std::vector<std::string>{"config.json",
                                      "modules.json",
                                      "2_Dense/config.json",
                                      "2_Dense/pytorch_model.bin",
                                      "pytorch_model.bin"}));
  EXPECT_EQ(all().index, "");
  listing.emplace_back("pytorch_model.bin.index.json");
  EXPECT_EQ(all().files.back(), "pytorch_model.bin.index.json");
  EXPECT_EQ(all().index, "pytorch_model.bin.index.json");
  listing.emplace_back("a-Q8_0.gguf");
  EXPECT_EQ(all().gguf, "a-Q8_0.gguf");
  listing.emplace_back("model.safetensors");
  EXPECT_EQ(all().files.back(), "model.safetensors");
  EXPECT_EQ(all().index, "");
}

// Checkpoints whose config.json does not say how their weights are quantized.
TEST(SelectFiles, TakesOlderFilesOfQuantization) {
  for (const char* file : {"hf_quant_config.json", "quant_config.json", "quantize_config.json"}) {
    const auto selection =
        select_files({"config.json", file, "model.safetensors"}, *parse_model_name("o/n"), true);
    EXPECT_EQ(selection->files,
              (std::vector<std::string>{"config.json", file, "model.safetensors"}));
  }
}

TEST(SelectFiles, TakesWhatSaysHowVectorsAreMade) {
  std::vector<std::string> listing = {"1_Pooling/config.json",
                                      "2_Dense/config.json",
                                      "2_Dense/model.safetensors",
                                      "2_Dense/pytorch_model.bin",
                                      "config.json",
                                      "config_sentence_transformers.json",
                                      "model.safetensors",
                                      "modules.json",
                                      "onnx/config.json",
                                      "openvino/1_Pooling/config.json",
                                      "sentence_bert_config.json",
                                      "tokenizer.json"};
  const auto all = select_files(listing, *parse_model_name("o/n"), true);
  EXPECT_EQ(all->files,
            (std::vector<std::string>{"config.json",
                                      "tokenizer.json",
                                      "config_sentence_transformers.json",
                                      "sentence_bert_config.json",
                                      "modules.json",
                                      "1_Pooling/config.json",
                                      "2_Dense/config.json",
                                      "2_Dense/model.safetensors",
                                      "model.safetensors"}));
  std::erase(listing, "modules.json");
  const auto plain = select_files(listing, *parse_model_name("o/n"), true);
  EXPECT_EQ(plain->files.size(), 5U) << "folders that no module is in";
  const auto late = select_files(
      {"artifact.metadata", "config.json", "model.safetensors"}, *parse_model_name("o/n"), false);
  EXPECT_EQ(late->files, (std::vector<std::string>{"config.json", "artifact.metadata"}));
}

TEST(ModuleConfigs, AreOfModulesThatHaveOne) {
  EXPECT_EQ(module_configs(R"([{"type":"a.Transformer","path":""},{"type":"a.Pooling","path":"1_P"},
                               {"type":"a.Normalize","path":"2_N"},{"type":"a.Dense","path":"3/D"},
                               {"type":"a.Dense","path":"../x"},{"type":1,"path":2},7])"),
            (std::vector<std::string>{"1_P/config.json", "3/D/config.json"}));
  for (const char* text : {"", "{}", "[", "null"}) EXPECT_TRUE(module_configs(text).empty());
}

TEST(SelectFiles, TakesTheOnlyGgufOrTheUsualOneOrAsks) {
  EXPECT_EQ(chosen({"a-IQ4_XS.gguf", "mmproj-a-f16.gguf"}, "o/n"), "a-IQ4_XS.gguf");
  EXPECT_EQ(chosen({"a-Q2_K.gguf", "a-q4_k_m.gguf"}, "o/n"), "a-q4_k_m.gguf");
  EXPECT_EQ(chosen({"a-Q2_K.gguf", "a-Q8_0.gguf"}, "o/n"),
            "o/n: GGUF files: found a-Q2_K.gguf, a-Q8_0.gguf, expected a choice such as "
            "o/n:Q4_K_M");
  EXPECT_EQ(chosen({"model.bin"}, "o/n"),
            "o/n: files: found model.bin, expected config.json with safetensors or "
            "pytorch_model.bin, or GGUF");
}

// The listing is that of unsloth/gemma-4-26B-A4B-it-qat-GGUF.
TEST(SelectFiles, TakesADraftHeadOnlyByItsFile) {
  const std::vector<std::string> listing = {"MTP/mtp-gemma-4-26B-A4B-it-Q8_0.gguf",
                                            "README.md",
                                            "gemma-4-26B-A4B-it-qat-UD-Q4_K_XL.gguf",
                                            "mmproj-BF16.gguf",
                                            "mtp-gemma-4-26B-A4B-it.gguf"};
  EXPECT_EQ(chosen(listing, "o/n"), "gemma-4-26B-A4B-it-qat-UD-Q4_K_XL.gguf");
  EXPECT_EQ(chosen(listing, "o/n:Q8_0"),
            "o/n: GGUF files: found gemma-4-26B-A4B-it-qat-UD-Q4_K_XL.gguf, expected \"Q8_0\"");
  EXPECT_EQ(chosen(listing, "o/n:mtp-gemma-4-26B-A4B-it.gguf"), "mtp-gemma-4-26B-A4B-it.gguf");
  EXPECT_EQ(chosen(listing, "o/n/MTP/mtp-gemma-4-26B-A4B-it-Q8_0.gguf"),
            "MTP/mtp-gemma-4-26B-A4B-it-Q8_0.gguf");
  EXPECT_EQ(chosen({"DFlash-a-Q8_0.gguf", "a-Q8_0.gguf"}, "o/n:q8_0"), "a-Q8_0.gguf");
}

TEST(SelectFiles, ReadsQuantizationsWhole) {
  const std::vector<std::string> listing = {
      "Q5_K_M/a-Q5_K_M.gguf", "a.Q4_K_M.gguf", "a.Q4_K_S.gguf", "a_Q3_K.gguf", "a_Q3_K_L.gguf"};
  EXPECT_EQ(chosen(listing, "o/n:q5_k_m"), "Q5_K_M/a-Q5_K_M.gguf");
  EXPECT_EQ(chosen(listing, "o/n:Q4_K_S"), "a.Q4_K_S.gguf");
  EXPECT_EQ(chosen(listing, "o/n:Q3_K"), "a_Q3_K.gguf");
  EXPECT_NE(chosen(listing, "o/n:Q4_K").find("expected \"Q4_K\""), std::string::npos);
}

TEST(SelectFiles, WantsAllPartsOfASplitFile) {
  const std::vector<std::string> listing = {
      "a-Q8_0-00002-of-00002.gguf", "a-Q8_0-00001-of-00002.gguf", "b-F16-00001-of-00003.gguf"};
  const auto both = select_files(listing, *parse_model_name("o/n:Q8_0"), true);
  EXPECT_EQ(both->files,
            (std::vector<std::string>{"a-Q8_0-00001-of-00002.gguf", "a-Q8_0-00002-of-00002.gguf"}));
  EXPECT_EQ(both->gguf, "a-Q8_0-00001-of-00002.gguf");
  EXPECT_EQ(chosen(listing, "o/n:a-Q8_0-00002-of-00002.gguf"), "a-Q8_0-00001-of-00002.gguf");
  EXPECT_EQ(chosen(listing, "o/n:F16"), "o/n: b-F16.gguf: found 1 parts, expected 3");
}

}  // namespace
}  // namespace sluice::hub
