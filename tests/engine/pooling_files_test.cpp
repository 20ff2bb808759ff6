// SPDX-License-Identifier: Apache-2.0
// What the files of sentence-transformers and config.json say of vectors and scores, file by file.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/core/config.h"
#include "engine/weights/checkpoint.h"
#include "engine/weights/pooling_files.h"
#include "tests/support/byte_tokenizer.h"
#include "tests/support/temporary_folder.h"

namespace sluice {
namespace {

class EmptyCheckpoint final : public Checkpoint {
 public:
  EmptyCheckpoint(const std::string& folder,
                  const FileSpec& spec,
                  const std::vector<std::string>& tensors = {})
      : Checkpoint(folder, CheckpointKind::kHuggingFace, "test") {
    file_spec_ = &spec;
    for (const std::string& name : tensors) add_tensor({.name = name, .data = {}});
    EXPECT_TRUE(index_tensors());
  }

  [[nodiscard]] std::vector<CheckpointFile> files() const override { return {}; }

  [[nodiscard]] Expected<CheckpointText> text() const override { return CheckpointText(); }

  [[nodiscard]] std::string describe(bool) const override { return {}; }
};

class PoolingFiles : public ::testing::Test {
 protected:
  void write(const std::string& name, std::string_view text) {
    const std::filesystem::path path = folder_.at(name);
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << text;
  }

  Expected<std::optional<Pooling>> read() {
    const EmptyCheckpoint checkpoint(folder_.path(), spec_, tensors_);
    return read_pooling(config_, checkpoint, tokenizer_, model_);
  }

  // How the model pools; the test fails where it is refused or generates.
  PoolingInfo info() {
    const auto pooling = read();
    if (pooling && *pooling) return (*pooling)->info;
    ADD_FAILURE() << (pooling ? "it generates" : pooling.error().message);
    return {};
  }

  std::string error() {
    const auto pooling = read();
    return pooling ? std::string() : pooling.error().message;
  }

  const testing::TemporaryFolder folder_;
  const ByteTokenizer tokenizer_;
  Config config_;
  FileSpec spec_;
  std::vector<std::string> tensors_;
  PooledModel model_ = {.hidden = 4, .max_model_len = 64, .is_encoder = true};
};

class Classifiers : public PoolingFiles {
 protected:
  ScoreFunction function_of(int32_t num_labels, const std::string& more) {
    model_.num_labels = num_labels;
    write("config.json", R"({"architectures":["BertForSequenceClassification"],)" + more + "}");
    return info().function;
  }
};

// Logits become scores once, by the function that CrossEncoder takes.
TEST_F(Classifiers, TheFunctionIsTheFiles) {
  using enum ScoreFunction;
  const std::string place = R"("sentence_transformers":{"activation_fn":"torch.nn.modules)";
  const std::string old_place = R"("sbert_ce_default_activation_function":"torch.nn.modules)";
  EXPECT_EQ(function_of(1, R"("problem_type":null)"), kSigmoid);
  EXPECT_EQ(function_of(3, R"("problem_type":"single_label_classification")"), kSoftmax);
  EXPECT_EQ(function_of(3, R"("problem_type":"multi_label_classification")"), kSigmoid);
  EXPECT_EQ(function_of(1, R"("problem_type":"regression")"), kIdentity);
  EXPECT_EQ(function_of(3, R"("problem_type":"regression")"), kIdentity);
  EXPECT_EQ(function_of(1, R"("problem_type":"regression",)" + place + R"(.Sigmoid"})"), kSigmoid);
  EXPECT_EQ(function_of(1, place + R"(.linear.Identity"})"), kIdentity);
  EXPECT_EQ(function_of(1, old_place + R"(.linear.Identity")"), kIdentity);
  EXPECT_EQ(function_of(3, place + R"(.activation.Sigmoid"})"), kSigmoid);
  EXPECT_EQ(function_of(3, place + R"(.activation.Softmax"})"), kSoftmax);
}

TEST_F(Classifiers, AnotherFunctionIsRefused) {
  model_.num_labels = 1;
  write("config.json",
        R"({"architectures":["BertForSequenceClassification"],)"
        R"("sentence_transformers":{"activation_fn":"torch.nn.modules.activation.Tanh"}})");
  EXPECT_NE(error().find("activation.Tanh"), std::string::npos) << error();
}

// What a CrossEncoder was saved with is put over config.json, which an older version may have left.
TEST_F(Classifiers, TheFunctionOfACrossEncoderIsItsOwn) {
  using enum ScoreFunction;
  const std::string older = R"("sentence_transformers":{"activation_fn":"torch.nn.Sigmoid"})";
  write("modules.json", R"([{"type":"a.Transformer","path":""}])");
  const auto saved = [this](const std::string& type, const std::string& function) {
    write("config_sentence_transformers.json",
          R"({"model_type":")" + type + R"(","activation_fn":)" + function + "}");
  };
  saved("CrossEncoder", R"("torch.nn.modules.linear.Identity")");
  EXPECT_EQ(function_of(1, older), kIdentity);
  saved("CrossEncoder", "null");
  EXPECT_EQ(function_of(1, older), kSigmoid);
  saved("SentenceTransformer", R"("torch.nn.modules.linear.Identity")");
  EXPECT_EQ(function_of(1, older), kSigmoid);
  saved("CrossEncoder", R"("torch.nn.modules.activation.Tanh")");
  EXPECT_NE(error().find("config_sentence_transformers.json: activation_fn"), std::string::npos)
      << error();
}

// transformers would make the layer that is not there at random. Vectors do not need it.
TEST_F(Classifiers, ScoresNeedTheLayerThatTheirsFollows) {
  write("config.json", R"({"architectures":["BertForSequenceClassification"]})");
  spec_.before_scores = "cls.weight";
  tensors_ = {"cls.output.weight"};
  EXPECT_NE(error().find("cls.weight"), std::string::npos) << error();
  EXPECT_NE(error().find("--convert embed"), std::string::npos) << error();
  config_.convert = "embed";
  EXPECT_FALSE(info().is_classifier);
  config_.convert = "auto";
  tensors_.clear();
  EXPECT_NE(error().find("no layer for scores"), std::string::npos) << error();
}

class Judges : public PoolingFiles {
 protected:
  Judges() { model_.is_encoder = false; }

  std::vector<TokenId> tokens_of(const std::string& overrides) {
    config_.convert = "classify";
    config_.hf_overrides = overrides;
    return info().label_tokens;
  }

  std::string error_of(const std::string& overrides) {
    config_.convert = "classify";
    config_.hf_overrides = overrides;
    return error();
  }
};

TEST_F(Judges, AScoreIsOfOneNamedTokenOrTwo) {
  using Ids = std::vector<TokenId>;
  const std::string two = R"("classifier_from_token":["<s>","<|im_end|>"])";
  const std::string one = R"("classifier_from_token":["<|im_end|>"])";
  EXPECT_EQ(tokens_of("{" + two + "}"), (Ids{258, 257}));
  EXPECT_EQ(tokens_of("{" + two + R"(,"method":"from_2_way_softmax"})"), (Ids{258, 257}));
  EXPECT_EQ(tokens_of("{" + one + "}"), Ids{257});
  EXPECT_EQ(tokens_of("{" + one + R"(,"method":"no_post_processing"})"), Ids{257});
  EXPECT_EQ(info().width, 1);
  EXPECT_NE(error_of("{" + one + R"(,"method":"from_2_way_softmax"})").find("method"),
            std::string::npos);
  EXPECT_NE(error_of("{" + two + R"(,"method":"no_post_processing"})").find("method"),
            std::string::npos);
  for (const char* wrong : {"[]", "\"<s>\"", R"(["<s>","<s>","<s>"])", R"(["<s>",1])", "[1]"}) {
    EXPECT_NE(error_of(R"({"classifier_from_token":)" + std::string(wrong) + "}")
                  .find("classifier_from_token"),
              std::string::npos)
        << wrong;
  }
  EXPECT_NE(error_of(R"({"classifier_from_token":["Yes"]})").find("\"Yes\""), std::string::npos);
}

TEST_F(Judges, TheModuleNamesTheTokens) {
  using Ids = std::vector<TokenId>;
  write("modules.json",
        R"([{"type":"a.Transformer","path":""},{"type":"a.LogitScore","path":"1_LogitScore"}])");
  write("config_sentence_transformers.json",
        R"({"model_type":"CrossEncoder","activation_fn":"torch.nn.modules.linear.Identity"})");
  write("1_LogitScore/config.json", R"({"true_token_id":7,"false_token_id":9})");
  EXPECT_EQ(info().label_tokens, (Ids{9, 7}));
  EXPECT_EQ(info().function, ScoreFunction::kIdentity);
  write("1_LogitScore/config.json", R"({"true_token_id":7,"false_token_id":null})");
  EXPECT_EQ(info().label_tokens, Ids{7});
  write("1_LogitScore/config.json", R"({"false_token_id":7})");
  EXPECT_NE(error().find("true_token_id"), std::string::npos) << error();
  write("1_LogitScore/config.json", R"({"true_token_id":7})");
  EXPECT_EQ(tokens_of(R"({"classifier_from_token":["<s>"]})"), Ids{258}) << "the flag's";
  const auto options = [this](const std::string& text) {
    write("sentence_bert_config.json", R"({"processing_kwargs":{"chat_template":)" + text + "}}");
  };
  EXPECT_FALSE(info().begins_answer);
  options(R"({"add_generation_prompt":true})");
  EXPECT_TRUE(info().begins_answer);
  options(R"({"add_generation_prompt":false})");
  EXPECT_FALSE(info().begins_answer);
  options(R"({"enable_thinking":false})");
  EXPECT_NE(error().find("enable_thinking"), std::string::npos) << error();
}

// Logits of an embedding's rows would be scores that nothing was trained for.
class WithYesAndNo : public ByteTokenizer {
 public:
  [[nodiscard]] TokenId find_token(std::string_view name) const override {
    if (name == "no") return 'n';
    return name == "yes" ? 'y' : ByteTokenizer::find_token(name);
  }
};

TEST_F(Judges, AFamilySaysWhetherAChatModelMayBeQwen3Reranker) {
  write("config.json", R"({"is_original_qwen3_reranker":true})");
  config_.convert = "classify";
  for (const bool may_be : {false, true}) {
    spec_.may_be_qwen3_reranker = may_be;
    const EmptyCheckpoint checkpoint(folder_.path(), spec_);
    const auto pooling = read_pooling(config_, checkpoint, WithYesAndNo(), model_);
    ASSERT_TRUE(pooling && *pooling) << pooling.error().message;
    EXPECT_EQ((*pooling)->info.is_qwen3_reranker, may_be);
  }
}

TEST_F(Judges, AModelWithoutAnOutputLayerHasNoTokensForScores) {
  model_.lacks_output = true;
  EXPECT_NE(error_of(R"({"classifier_from_token":["<s>"]})").find("nor an output layer"),
            std::string::npos)
      << error();
}

// NVIDIA's models divide scores by a temperature, also where modules say how they pool.
TEST_F(PoolingFiles, KeysOfAFamilyAreItsOwn) {
  model_.num_labels = 1;
  write("modules.json",
        R"([{"type":"a.Transformer","path":""},{"type":"a.Pooling","path":"1_Pooling"}])");
  write("1_Pooling/config.json", R"({"pooling_mode":"mean"})");
  write("config.json",
        R"({"architectures":["AForSequenceClassification"],"pooling":"avg","temperature":0.5})");
  EXPECT_EQ(error(), "");
  spec_.names_pooling = true;
  EXPECT_NE(error().find("temperature"), std::string::npos) << error();
  spec_.names_pooling = false;
  write("config.json", R"({"pooling":"average"})");
  std::filesystem::remove(folder_.at("modules.json"));
  EXPECT_EQ(error(), "");
}

TEST_F(Classifiers, LabelsHaveTheirNames) {
  function_of(3, R"("id2label":{"0":"bad","2":"good"})");
  EXPECT_EQ(info().labels, (std::vector<std::string>{"bad", "LABEL_1", "good"}));
}

TEST_F(PoolingFiles, TheWayToPoolIsTheFiles) {
  const std::string kPooling = "1_Pooling/config.json";
  write("modules.json",
        R"([{"type":"sentence_transformers.models.Transformer","path":""},)"
        R"({"type":"sentence_transformers.models.Pooling","path":"1_Pooling"}])");
  write(kPooling, R"({"pooling_mode_cls_token":false,"pooling_mode_mean_tokens":true})");
  EXPECT_EQ(info().type, PoolingType::kMean);
  EXPECT_FALSE(info().normalizes) << "there is no module Normalize";
  write(kPooling, R"({"pooling_mode_cls_token":true})");
  EXPECT_EQ(info().type, PoolingType::kCls);
  write(kPooling, R"({"pooling_mode":"lasttoken"})");
  EXPECT_EQ(info().type, PoolingType::kLast);
  write(kPooling, "{}");
  EXPECT_EQ(info().type, PoolingType::kMean) << "none is true";
  write(kPooling, R"({"pooling_mode_cls_token":true,"pooling_mode_max_tokens":true})");
  EXPECT_NE(error().find("pooling_mode_max_tokens"), std::string::npos) << error();
  // The flag is put over what the files say; an encoder without files is pooled by its first token.
  config_.pooling = "mean";
  write(kPooling, R"({"pooling_mode":"cls"})");
  EXPECT_EQ(info().type, PoolingType::kMean);
  config_.pooling = "auto";
  std::filesystem::remove(folder_.at("modules.json"));
  EXPECT_EQ(info().type, PoolingType::kCls);
  EXPECT_TRUE(info().normalizes);
}

// Texts are cut where sentence-transformers cuts them, which may be before the model's limit.
TEST_F(PoolingFiles, TheLengthIsTheLowerOne) {
  EXPECT_EQ(info().max_tokens, 64);
  write("sentence_bert_config.json", R"({"max_seq_length":32})");
  EXPECT_EQ(info().max_tokens, 32);
  write("sentence_bert_config.json", R"({"max_seq_length":4096})");
  EXPECT_EQ(info().max_tokens, 64);
  write("sentence_bert_config.json", R"({"max_seq_length":4294967296})");
  EXPECT_EQ(info().max_tokens, 64);
  write("sentence_bert_config.json", R"({"max_seq_length":0})");
  EXPECT_NE(error().find("max_seq_length"), std::string::npos) << error();
}

// Newer files leave max_seq_length out: the tokenizer has the limit.
TEST_F(PoolingFiles, TheLengthMayBeTheTokenizers) {
  write("sentence_bert_config.json", R"({"transformer_task":"feature-extraction"})");
  write("tokenizer_config.json", R"({"model_max_length":32})");
  EXPECT_EQ(info().max_tokens, 32);
  write("sentence_bert_config.json", R"({"max_seq_length":48})");
  EXPECT_EQ(info().max_tokens, 48);
  std::filesystem::remove(folder_.at("sentence_bert_config.json"));
  for (const char* none : {"1000000000000000019884624838656", "1e30", "4096", "null", "\"32\""}) {
    write("tokenizer_config.json", R"({"model_max_length":)" + std::string(none) + "}");
    EXPECT_EQ(info().max_tokens, 64) << none;
  }
  write("tokenizer_config.json", R"({"model_max_length":16})");
  model_.num_labels = 1;
  EXPECT_TRUE(info().is_classifier);
  EXPECT_EQ(info().max_tokens, 16);
}

// sentence-transformers makes texts lower case itself, which this tokenizer does not.
TEST_F(PoolingFiles, LowerCaseIsRefusedWhereItMakesADifference) {
  write("sentence_bert_config.json", R"({"max_seq_length":32,"do_lower_case":false})");
  EXPECT_EQ(info().max_tokens, 32);
  write("sentence_bert_config.json", R"({"max_seq_length":32,"do_lower_case":true})");
  EXPECT_NE(error().find("do_lower_case"), std::string::npos) << error();
}

TEST_F(PoolingFiles, VectorsAreCutWhereConfigSaysThatTheyMayBe) {
  write("config.json", "{}");
  EXPECT_FALSE(info().is_matryoshka);
  write("config.json", R"({"is_matryoshka":true})");
  EXPECT_TRUE(info().is_matryoshka);
  write("config.json", R"({"matryoshka_dimensions":[2,3,9]})");
  EXPECT_TRUE(info().is_matryoshka);
  EXPECT_EQ(info().matryoshka_dimensions, (std::vector<int32_t>{2, 3}));
  write("config.json", "{}");
  config_.hf_overrides = R"({"is_matryoshka":true})";
  EXPECT_TRUE(info().is_matryoshka);
  for (const char* wrong : {R"({"hiden_size":3})", "[]", "{"}) {
    config_.hf_overrides = wrong;
    EXPECT_NE(error().find("hf-overrides"), std::string::npos) << wrong;
  }
}

// A module that is not known is not skipped: vectors without it are unrelated ones.
TEST_F(PoolingFiles, EveryModuleIsKnown) {
  const auto with = [this](const std::string& type) {
    write("modules.json",
          R"([{"type":"a.Transformer","path":""},{"type":")" + type + R"(","path":"2_X"}])");
    return error();
  };
  EXPECT_NE(with("sentence_transformers.models.LSTM").find("LSTM"), std::string::npos);
  EXPECT_NE(with("sentence_transformers.models.LayerNorm").find("a Dense before it"),
            std::string::npos);
  EXPECT_NE(with("sentence_transformers.models.Dense").find("2_X"), std::string::npos);
  EXPECT_EQ(with("sentence_transformers.models.Normalize"), "");
  EXPECT_EQ(with("sentence_transformers.base.modules.Normalize"), "");
  write("modules.json", R"([{"type":"a.Pooling","path":"../1_Pooling"}])");
  EXPECT_NE(error().find("path"), std::string::npos) << error();
}

// sentence-transformers runs modules as they are listed.
TEST_F(PoolingFiles, ModulesInAnotherOrderAreRefused) {
  write("1_Pooling/config.json", R"({"pooling_mode":"mean"})");
  const auto listed = [this](const std::vector<std::string>& types) {
    std::string list;
    for (const std::string& type : types) {
      list += (list.empty() ? "" : ",") + (R"({"type":"a.)" + type + R"(","path":"1_Pooling"})");
    }
    write("modules.json", "[" + list + "]");
    return error();
  };
  EXPECT_EQ(listed({"Transformer", "Pooling", "Normalize"}), "");
  for (const auto& types : std::vector<std::vector<std::string>>{
           {"Transformer", "Pooling", "Normalize", "Dense"},
           {"Transformer", "Normalize", "Pooling"},
           {"Transformer", "Normalize", "Dense"}}) {
    EXPECT_NE(listed(types).find("no Normalize before it"), std::string::npos) << listed(types);
  }
  EXPECT_NE(listed({"Transformer", "Pooling", "Pooling"}).find("one way"), std::string::npos);
}

// A layer takes the vector of the one before it, under its usual name.
TEST_F(PoolingFiles, LayersThatReadOrWriteSomethingElseAreRefused) {
  write("modules.json",
        R"([{"type":"a.Transformer","path":""},{"type":"a.Pooling","path":"1_Pooling"},)"
        R"({"type":"a.Dense","path":"2_Dense"}])");
  write("1_Pooling/config.json", R"({"pooling_mode":"mean"})");
  for (const std::string name : {"module_input_name", "module_output_name"}) {
    write("2_Dense/config.json",
          R"({"in_features":4,"out_features":1,")" + name + R"(":"token_embeddings"})");
    EXPECT_NE(error().find(name), std::string::npos) << error();
  }
}

}  // namespace
}  // namespace sluice
