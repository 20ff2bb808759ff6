// SPDX-License-Identifier: Apache-2.0
// The files of a model that others tokenize and render with.
#include "engine/weights/tokenizer_files.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>

#include "engine/tokenizer/files/hf_tokenizer.h"
#include "engine/tokenizer/files/named_templates.h"
#include "engine/tokenizer/files/pretokenizer_names.h"
#include "tests/support/captured_log.h"
#include "tests/support/golden_folder.h"
#include "tests/support/temporary_folder.h"

namespace sluice {
namespace {

// Writes a model's directory with these templates, and returns the template of one that is made of
// its files.
std::string template_of_copy(const NamedTemplates& templates) {
  const testing::TemporaryFolder model;
  const testing::TemporaryFolder copy;
  std::filesystem::copy_file(golden_folder() + "/tokenizer/json/qwen.json",
                             model.at("tokenizer.json"));
  std::ofstream(model.at("other.jinja")) << "no template of its";
  std::filesystem::create_directory(model.at("additional_chat_templates"));
  const auto& [standard, tool_use, rag] = templates;
  for (const auto& [name, text] : {std::pair("chat_template.jinja", standard),
                                   std::pair("additional_chat_templates/tool_use.jinja", tool_use),
                                   std::pair("additional_chat_templates/rag.jinja", rag)}) {
    if (!text.empty()) std::ofstream(model.at(name)) << text;
  }
  const auto files = read_tokenizer_files(model.path(), "", {});
  EXPECT_TRUE(files.has_value());
  for (const NamedFile& file : *files) {
    EXPECT_NE(file.name, "other.jinja");
    std::filesystem::create_directories(std::filesystem::path(copy.at(file.name)).parent_path());
    std::ofstream(copy.at(file.name)) << file.content;
  }
  const auto text = load_hf_text(copy.path());
  EXPECT_TRUE(text.has_value());
  EXPECT_EQ(text->chat_template, load_hf_text(model.path())->chat_template);
  return text->chat_template;
}

TEST(TokenizerFiles, HoldNamedTemplatesToo) {
  for (const NamedTemplates& templates :
       {NamedTemplates{.standard = "S", .tool_use = "U", .rag = "R"},
        NamedTemplates{.standard = "S", .tool_use = "U", .rag = ""},
        NamedTemplates{.standard = "S", .tool_use = "", .rag = "R"},
        NamedTemplates{.standard = "", .tool_use = "U", .rag = ""},
        NamedTemplates{.standard = "S", .tool_use = "", .rag = ""}}) {
    EXPECT_EQ(template_of_copy(templates), joined_templates(templates));
  }
}

// Returns what loading a tokenizer logs whose first stage splits by `expression`, or if it is empty
// by Llama 3's.
std::string log_of_mistral(const std::string& config, const std::string& expression) {
  const testing::TemporaryFolder model;
  std::ifstream source(golden_folder() + "/tokenizer/json/llama3.json");
  auto tokenizer = nlohmann::json::parse(source);
  auto& stage = tokenizer["pre_tokenizer"]["pretokenizers"][0];
  EXPECT_EQ(stage["type"], "Split");
  if (!expression.empty()) stage["pattern"]["Regex"] = expression;
  std::ofstream(model.at("tokenizer.json")) << tokenizer.dump();
  std::ofstream(model.at("config.json")) << config;
  return logged_by([&] {
    const auto text = load_hf_text(model.path());
    EXPECT_TRUE(text.has_value()) << text.error().message;
  });
}

// Files that transformers wrote for Mistral before version 5 may have Llama 3's expression.
TEST(TokenizerFiles, AnExpressionThatIsNotTekkensIsSaidOfMistral) {
  const std::string tekken(pretokenizer_by_name("tekken")->patterns.front());
  constexpr std::string_view kSaid = "key=pre_tokenizer.pattern";
  for (const char* type : {"mistral", "mistral3", "ministral", "pixtral", "voxtral"}) {
    for (const char* version : {R"("transformers_version":"4.52.4",)",
                                R"("transformers_version":"5.0.0.dev0",)",
                                ""}) {
      const std::string config = std::string("{") + version + R"("model_type":")" + type + "\"}";
      EXPECT_NE(log_of_mistral(config, "").find(kSaid), std::string::npos) << config;
      EXPECT_EQ(log_of_mistral(config, tekken).find(kSaid), std::string::npos) << config;
    }
  }
  for (const char* config : {R"({"model_type":"llama","transformers_version":"4.52.4"})",
                             R"({"model_type":"mistral3","transformers_version":"5.1.0"})",
                             R"({"transformers_version":"4.52.4"})"}) {
    EXPECT_EQ(log_of_mistral(config, "").find(kSaid), std::string::npos) << config;
  }
}

// Readers of the files know no template of a version.
TEST(TokenizerFiles, ATemplateThatIsBuiltInIsAFile) {
  const std::string folder = golden_folder() + "/tokenizer/tekken/v3";
  const auto text = load_hf_text(folder);
  ASSERT_TRUE(text.has_value()) << text.error().message;
  ASSERT_FALSE(text->chat_template.empty());
  const auto files = read_tokenizer_files(folder, text->chat_template, {});
  ASSERT_TRUE(files.has_value()) << files.error().message;
  EXPECT_EQ(files->back().name, "chat_template.jinja");
  EXPECT_EQ(files->back().content, text->chat_template);
  const testing::TemporaryFolder own;
  std::filesystem::copy(folder, own.path());
  std::ofstream(own.at("chat_template.json")) << R"({"chat_template": "own"})";
  const auto as_given = read_tokenizer_files(own.path(), "own", {});
  ASSERT_TRUE(as_given.has_value()) << as_given.error().message;
  EXPECT_EQ(as_given->back().name, "chat_template.json");
}

TEST(TokenizerFiles, ATokenizerInAnotherLayoutIsNamed) {
  for (const char* name : {"tokenizer.model", "sentencepiece.bpe.model", "vocab.json"}) {
    const testing::TemporaryFolder model;
    std::ofstream(model.at(name)) << "{}";
    const auto text = load_hf_text(model.path());
    ASSERT_FALSE(text.has_value());
    EXPECT_NE(text.error().message.find(std::string("nothing, and ") + name), std::string::npos)
        << text.error().message;
    EXPECT_NE(text.error().message.find("expected a tokenizer.json: "), std::string::npos);
  }
}

}  // namespace
}  // namespace sluice
