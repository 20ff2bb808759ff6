// SPDX-License-Identifier: Apache-2.0
// Models whose weights torch.save() wrote (tests/golden/torch/make_torch.py) give the same bits as
// those with the same weights as safetensors.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "engine/weights/checkpoint.h"
#include "tests/engine/pooled_answers.h"
#include "tests/support/golden_folder.h"
#include "tests/support/golden_models.h"
#include "tests/support/model_harness.h"
#include "tests/support/temporary_folder.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;
using testing::ModelHarness;

const std::string kTorch = golden_folder() + "/torch/";

// A copy of a golden directory with other weights: a file, or a folder of them.
class TorchCopy {
 public:
  TorchCopy(const std::string& golden, const std::string& weights) {
    fs::copy(golden_folder() + "/" + golden, folder_.path(), fs::copy_options::recursive);
    fs::remove(folder_.at("model.safetensors"));
    if (fs::is_directory(kTorch + weights)) {
      fs::copy(kTorch + weights, folder_.path());
    } else {
      fs::copy(kTorch + weights, folder_.at("pytorch_model.bin"));
    }
  }

  [[nodiscard]] std::string path() const { return folder_.path(); }

 private:
  testing::TemporaryFolder folder_;
};

std::vector<float> logits_of_model(const std::string& path) {
  const std::vector<TokenId> tokens = {3, 9, 4, 17, 5, 21, 8, 33, 40, 12, 6, 7, 11, 60};
  auto harness = ModelHarness::create(path, 32, DType::kF32, static_cast<int32_t>(tokens.size()));
  EXPECT_TRUE(harness.has_value()) << path << ": " << harness.error().message;
  return harness ? (*harness)->forward(tokens) : std::vector<float>();
}

// OPT has two parts, an output layer that shares its storage, and a matrix column by column; the
// other is as PyTorch before 1.6 wrote it, whose values are at any byte.
TEST(TorchWeights, TextModelsHaveTheSameBits) {
  for (const auto& [golden, weights] :
       {std::pair("models/opt", "opt"),
        std::pair("models/gpt-neox-sequential", "gpt-neox-sequential.bin")}) {
    const TorchCopy copy(golden, weights);
    const std::vector<float> expected = logits_of_model(golden_folder() + "/" + golden);
    EXPECT_FALSE(expected.empty());
    EXPECT_EQ(logits_of_model(copy.path()), expected) << golden;
  }
}

// A model as BAAI/bge-m3 is published: vectors are transformers' too.
TEST(TorchWeights, EncodersHaveTheSameBits) {
  const std::string name = "xlm-roberta-cls";
  const TorchCopy copy("embeddings/" + name, name + ".bin");
  const auto golden = testing::pooled::golden(name);
  Config config = testing::pooled::config_of(name);
  const auto expected = testing::pooled::run(config, testing::pooled::requests_of(golden));
  config.model = copy.path();
  const auto found = testing::pooled::run(config, testing::pooled::requests_of(golden));
  EXPECT_FALSE(found.empty());
  EXPECT_EQ(found, expected);
  testing::pooled::expect_close(found, golden["vectors"]);
}

// The pickle says which tensors there are: it is what names cached weights and a fingerprint.
TEST(TorchWeights, ThePicklesAreTheHeader) {
  const TorchCopy copy("models/opt", "opt");
  const auto checkpoint = Checkpoint::open(copy.path());
  ASSERT_TRUE(checkpoint.has_value()) << checkpoint.error().message;
  const std::vector<CheckpointFile> files = (*checkpoint)->files();
  ASSERT_EQ(files.size(), 3U);
  for (size_t i = 1; i < files.size(); ++i) {
    EXPECT_LT(files[i].header.size(), files[i].bytes.size());
    EXPECT_EQ(files[i].header[0], std::byte{0x80});
    EXPECT_EQ(files[i].header.back(), std::byte{'.'});
  }
  EXPECT_NE((*checkpoint)->describe(false).find("2 weight file(s)"), std::string::npos);
}

}  // namespace
}  // namespace sluice
