// SPDX-License-Identifier: Apache-2.0
// The files of a model that others tokenize and render with.
#include "engine/weights/tokenizer_files.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <utility>

#include "engine/tokenizer/files/hf_tokenizer.h"
#include "engine/tokenizer/files/named_templates.h"
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

}  // namespace
}  // namespace sluice
