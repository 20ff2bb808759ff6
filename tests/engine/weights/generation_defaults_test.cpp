// SPDX-License-Identifier: Apache-2.0
#include "engine/weights/generation_defaults.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>

#include "engine/core/config.h"
#include "engine/weights/checkpoint.h"
#include "tests/engine/weights/corrupt_ledger.h"
#include "tests/engine/weights/gguf_builder.h"
#include "tests/support/captured_log.h"
#include "tests/support/temporary_folder.h"

namespace sluice {
namespace {

class GenerationDefaultsTest : public ::testing::Test {
 protected:
  GenerationDefaultsTest() {
    std::filesystem::create_directory(folder_ + "/other");
    write("/config.json", R"({"model_type":"llama"})");
  }

  void write(const std::string& name, const std::string& text) const {
    std::ofstream(folder_ + name, std::ios::binary) << text;
  }

  // Reads a directory for its configuration only, or a GGUF file.
  Expected<GenerationDefaults> read(const std::string& name = "") const {
    const auto checkpoint =
        Checkpoint::open(folder_ + name, name.empty() ? LoadFormat::kDummy : LoadFormat::kAuto);
    EXPECT_TRUE(checkpoint.has_value()) << checkpoint.error().message;
    return read_generation_defaults(config_, **checkpoint);
  }

  [[nodiscard]] std::string error_of(const std::string& name = "") const {
    const auto defaults = read(name);
    return defaults ? "" : defaults.error().message;
  }

  const testing::TemporaryFolder temporary_;
  const std::string folder_ = temporary_.path();
  Config config_;
};

TEST_F(GenerationDefaultsTest, ComeFromTheFileBesideTheModel) {
  EXPECT_EQ(read()->summary, "");
  write("/generation_config.json",
        R"({"temperature":0.6,"top_p":0.95,"top_k":20,"min_p":0.05,"repetition_penalty":1.05,
            "max_new_tokens":2048,"do_sample":true,"eos_token_id":[1,2],"typical_p":null})");
  const auto defaults = read();
  ASSERT_TRUE(defaults.has_value()) << defaults.error().message;
  EXPECT_EQ(defaults->sampling.temperature, 0.6F);
  EXPECT_EQ(defaults->sampling.top_p, 0.95F);
  EXPECT_EQ(defaults->sampling.top_k, 20);
  EXPECT_EQ(defaults->sampling.min_p, 0.05F);
  EXPECT_EQ(defaults->sampling.repetition_penalty, 1.05F);
  EXPECT_EQ(defaults->max_output_tokens, 2048);
  EXPECT_EQ(defaults->summary,
            "temperature 0.6, top_p 0.95, top_k 20, min_p 0.05, repetition_penalty 1.05, "
            "max_new_tokens 2048");
}

TEST_F(GenerationDefaultsTest, TheFlagNamesNoneOrAnotherFile) {
  write("/generation_config.json", R"({"temperature":0.6})");
  write("/other/generation_config.json", R"({"temperature":0.7})");
  config_.generation_config = "vllm";
  EXPECT_EQ(read()->sampling.temperature, 1.0F);
  for (const char* path : {"/other", "/other/generation_config.json"}) {
    config_.generation_config = folder_ + path;
    EXPECT_EQ(read()->sampling.temperature, 0.7F);
  }
  config_.generation_config = folder_ + "/missing.json";
  EXPECT_EQ(error_of(),
            folder_ +
                "/missing.json: open: found \"No such file or directory\", expected a readable "
                "file");
}

TEST_F(GenerationDefaultsTest, TheOverrideWinsOverAll) {
  write("/generation_config.json", R"({"temperature":0.6,"top_k":20})");
  config_.override_generation_config = R"({"temperature":0,"max_new_tokens":7})";
  const auto defaults = read();
  EXPECT_EQ(defaults->sampling.temperature, 0.0F);
  EXPECT_EQ(defaults->sampling.top_k, 20);
  EXPECT_EQ(defaults->max_output_tokens, 7);
  config_.generation_config = "vllm";
  EXPECT_EQ(read()->sampling.top_k, 0);
  EXPECT_EQ(read()->max_output_tokens, 7);
  config_.override_generation_config = "{";
  EXPECT_EQ(error_of(),
            "--override-generation-config: found no JSON object, expected one of parameters; "
            "--generation-config vllm leaves it out");
}

TEST_F(GenerationDefaultsTest, GgufFilesMayNameThem) {
  GgufImage image = small_gguf();
  image.set("general.sampling.temp", GgufType::kFloat32, raw(0.5F));
  image.set("general.sampling.top_k", GgufType::kInt32, raw<int32_t>(40));
  image.set("general.sampling.penalty_repeat", GgufType::kFloat32, raw(1.25F));
  image.set("general.sampling.xtc_probability", GgufType::kFloat32, raw(0.0F));
  write("/model.gguf", image.bytes());
  const auto defaults = read("/model.gguf");
  ASSERT_TRUE(defaults.has_value()) << defaults.error().message;
  EXPECT_EQ(defaults->summary, "temperature 0.5, top_k 40, repetition_penalty 1.25");
  image.set("general.sampling.temp", GgufType::kFloat32, raw(-0.5F));
  image.set_string("general.sampling.top_p", "high");
  write("/model.gguf", image.bytes());
  const std::string log = logged_by(
      [&] { EXPECT_EQ(read("/model.gguf")->summary, "top_k 40, repetition_penalty 1.25"); });
  EXPECT_NE(log.find("key=general.sampling.temp found=\"temperature must be in [0, 2], got -0.5"),
            std::string::npos)
      << log;
  EXPECT_NE(log.find("key=general.sampling.top_p found="), std::string::npos) << log;
}

// Not even --generation-config vllm changes what a model never says.
TEST_F(GenerationDefaultsTest, SuppressedTokensAreThoseOfTheModelsOwnFile) {
  constexpr int32_t kVocab = 8;
  const auto suppressed = [&](const std::string& name = "") {
    const auto checkpoint =
        Checkpoint::open(folder_ + name, name.empty() ? LoadFormat::kDummy : LoadFormat::kAuto);
    EXPECT_TRUE(checkpoint.has_value()) << checkpoint.error().message;
    return read_suppressed_tokens(**checkpoint, kVocab);
  };
  using Ids = std::vector<TokenId>;
  EXPECT_EQ(suppressed(), Ids());
  for (const char* none : {"null", "[]"}) {
    write("/generation_config.json", R"({"suppress_tokens":)" + std::string(none) + "}");
    EXPECT_EQ(logged_by([&] { EXPECT_EQ(suppressed(), Ids()); }), "");
  }
  write("/generation_config.json", R"({"suppress_tokens":[5,3.0,5,0,7],"top_p":NaN})");
  EXPECT_EQ(suppressed(), (Ids{0, 3, 5, 7}));
  write("/generation_config.json", R"({"suppress_tokens":[-1,8,2.5,"6",6]})");
  std::string log = logged_by([&] { EXPECT_EQ(suppressed(), Ids{6}); });
  EXPECT_EQ(std::count(log.begin(), log.end(), '\n'), 4) << log;
  std::string many = "[0";
  for (int i = 0; i < 256; ++i) many += ",1";
  for (const std::string& wrong : {std::string("7"), many + "]"}) {
    write("/generation_config.json", R"({"suppress_tokens":)" + wrong + "}");
    EXPECT_NE(logged_by([&] { EXPECT_EQ(suppressed(), Ids()) << wrong; }), "");
  }
  GgufImage image = small_gguf();
  image.set("tokenizer.ggml.suppress_tokens",
            GgufType::kArray,
            raw_array(GgufType::kInt32, 3, raw<int32_t>(4) + raw<int32_t>(-1) + raw<int32_t>(2)));
  write("/model.gguf", image.bytes());
  log = logged_by([&] { EXPECT_EQ(suppressed("/model.gguf"), (Ids{2, 4})); });
  EXPECT_NE(log.find("key=tokenizer.ggml.suppress_tokens found=-1"), std::string::npos) << log;
  image.set_string("tokenizer.ggml.suppress_tokens", "4");
  write("/model.gguf", image.bytes());
  EXPECT_NE(logged_by([&] { EXPECT_EQ(suppressed("/model.gguf"), Ids()); }), "");
}

struct BrokenRule {
  const char* key;
  const char* value;
  const char* message;
};

constexpr BrokenRule kBroken[] = {
    {"temperature", R"("hot")", "temperature must be a number"},
    {"temperature", "true", "temperature must be a number"},
    {"temperature", "-1", "temperature must be in [0, 2], got -1"},
    {"temperature", "5.0", "temperature must be in [0, 2], got 5"},
    {"top_p", "1.5", "top_p must be in [0, 1], got 1.5"},
    {"top_k", "2.5", "top_k must be an integer, got 2.5"},
    {"top_k", "-2", "top_k must be in [-1"},
    {"min_p", "2", "min_p must be in [0, 1], got 2"},
    {"repetition_penalty", "0", "repetition_penalty must be in"},
    {"repetition_penalty", "1e300", "repetition_penalty must be in"},
    {"max_new_tokens", "0", "max_new_tokens must be an integer in [1, 2147483647]"},
    {"max_new_tokens", "-5", "max_new_tokens must be"},
    {"max_new_tokens", "4294967296", "max_new_tokens must be"},
    {"max_new_tokens", "2048.5", "max_new_tokens must be"},
    {"max_new_tokens", "1e300", "max_new_tokens must be"},
    {"max_new_tokens", R"("9")", "max_new_tokens must be"},
};

TEST_F(GenerationDefaultsTest, AValueThatAFileCannotMeanIsLeftOutWithAWarning) {
  for (const BrokenRule& row : kBroken) {
    const std::string other = row.key == std::string("min_p") ? "temperature" : "min_p";
    write("/generation_config.json",
          "{\"" + std::string(row.key) + "\":" + row.value + ",\"" + other + "\":0.25}");
    const std::string log = logged_by([&] {
      const auto defaults = read();
      ASSERT_TRUE(defaults.has_value()) << defaults.error().message;
      EXPECT_EQ(defaults->summary, other + " 0.25") << row.value;
    });
    EXPECT_NE(log.find(folder_ + "/generation_config.json key=" + row.key + " found="),
              std::string::npos)
        << log;
    EXPECT_NE(log.find(row.message), std::string::npos) << log;
    EXPECT_EQ(std::count(log.begin(), log.end(), '\n'), 1) << log;
  }
}

TEST_F(GenerationDefaultsTest, AFloatWithoutAFractionIsAnInteger) {
  write("/generation_config.json", R"({"max_new_tokens":2048.0,"top_k":20.0})");
  EXPECT_EQ(read()->summary, "top_k 20, max_new_tokens 2048");
}

TEST_F(GenerationDefaultsTest, AValueThatAFlagCannotMeanIsRefused) {
  for (const BrokenRule& row : kBroken) {
    config_.override_generation_config = "{\"" + std::string(row.key) + "\":" + row.value + "}";
    EXPECT_TRUE(error_of().starts_with("--override-generation-config: ")) << error_of();
    EXPECT_NE(error_of().find(row.message), std::string::npos) << error_of();
  }
  for (const char* ids : {"-1", "2.5", R"("</s>")", "[1,null]", "4294967295", "{}"}) {
    config_.override_generation_config = "{\"eos_token_id\":" + std::string(ids) + "}";
    EXPECT_NE(error_of().find("eos_token_id must be a token id or a list of them"),
              std::string::npos)
        << ids;
  }
}

TEST_F(GenerationDefaultsTest, AKeyOfAFlagThatIsNoParameterIsWarnedOf) {
  config_.override_generation_config = R"({"temprature":0.5,"top_p":0.9})";
  const std::string log = logged_by([&] { EXPECT_EQ(read()->summary, "top_p 0.9"); });
  EXPECT_NE(log.find("key=temprature found=0.5"), std::string::npos) << log;
  EXPECT_NE(log.find("did you mean temperature?"), std::string::npos) << log;
  EXPECT_EQ(std::count(log.begin(), log.end(), '\n'), 1) << log;
}

TEST_F(GenerationDefaultsTest, EndTokensOfAFlagAreThereInThePlaceOfTheModels) {
  write("/generation_config.json", R"({"eos_token_id":[1,2]})");
  EXPECT_FALSE(read()->end_tokens.has_value());  // the tokenizer reads that file
  config_.override_generation_config = R"({"eos_token_id":7})";
  EXPECT_EQ(read()->end_tokens, std::vector<TokenId>{7});
  EXPECT_EQ(read()->summary, "eos_token_id 7");
  config_.override_generation_config = R"({"eos_token_id":[8,9.0]})";
  EXPECT_EQ(read()->end_tokens, (std::vector<TokenId>{8, 9}));
  config_.override_generation_config = R"({"eos_token_id":null})";
  EXPECT_FALSE(read()->end_tokens.has_value());
  config_.override_generation_config = "";
  write("/other/generation_config.json", R"({"eos_token_id":5})");
  config_.generation_config = folder_ + "/other";
  EXPECT_EQ(read()->end_tokens, std::vector<TokenId>{5});
}

TEST_F(GenerationDefaultsTest, AFileThatIsNoneIsOneLine) {
  const std::string path = folder_ + "/generation_config.json";
  for (const char* text : {"", "[]", "{\"temperature\":", "7", "null", "{\"temperature\":0.5,}"}) {
    write("/generation_config.json", text);
    config_.generation_config = "auto";
    const std::string log = logged_by([&] {
      const auto defaults = read();
      ASSERT_TRUE(defaults.has_value()) << text << defaults.error().message;
      EXPECT_EQ(defaults->summary, "");
    });
    EXPECT_NE(log.find("file=" + path + " key="), std::string::npos) << log;
    EXPECT_EQ(std::count(log.begin(), log.end(), '\n'), 1) << log;
    config_.generation_config = path;  // named by the flag
    CorruptFile corrupt(std::string("generation config ") + text, 64);
    const auto defaults = read();
    ASSERT_FALSE(defaults.has_value()) << text;
    corrupt.refused(defaults.error(), path, "found ");
  }
}

TEST_F(GenerationDefaultsTest, NumbersThatPythonAloneWritesAreNull) {
  write("/generation_config.json", R"({"top_p":NaN,"temperature":-Infinity,"top_k":5})");
  const std::string log = logged_by([&] { EXPECT_EQ(read()->summary, "top_k 5"); });
  EXPECT_NE(log.find("found=NaN"), std::string::npos) << log;
  EXPECT_EQ(std::count(log.begin(), log.end(), '\n'), 1) << log;
}

}  // namespace
}  // namespace sluice
