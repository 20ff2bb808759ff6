// SPDX-License-Identifier: Apache-2.0
// A model directory's text files with one thing wrong at a time.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "engine/tokenizer/files/hf_tokenizer.h"
#include "tests/engine/weights/corrupt_ledger.h"
#include "tests/support/golden_folder.h"
#include "tests/support/temporary_folder.h"

namespace sluice {
namespace {

using Json = nlohmann::json;

class TextFiles : public ::testing::Test {
 protected:
  TextFiles() { write("tokenizer.json", good_); }

  static std::string read(const std::string& path) {
    std::ifstream in(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }

  void write(const std::string& name, const std::string& text) const {
    std::ofstream(folder_ + "/" + name, std::ios::binary) << text;
  }

  // Writes the file, expects its refusal and restores it.
  void expect_refused(const std::string& what,
                      const std::string& name,
                      const std::string& text,
                      const std::string& mentioned) {
    write(name, text);
    CorruptFile file(name + ": " + what, std::max(text.size(), good_.size()));
    const auto loaded = load_hf_text(folder_);
    ASSERT_FALSE(loaded.has_value()) << what;
    file.refused(loaded.error(), folder_ + ": " + name, mentioned);
    std::filesystem::remove(folder_ + "/" + name);
    write("tokenizer.json", good_);
  }

  const testing::TemporaryFolder temporary_;
  const std::string folder_ = temporary_.path();
  const std::string good_ = read(golden_folder() + "/tokenizer/json/qwen.json");
};

TEST_F(TextFiles, TokenizersThatAreNoneGetTheirLine) {
  struct Row {
    const char* what;
    std::function<void(Json&)> change;
    const char* mentioned;
  };

  const std::vector<Row> rows = {
      {"no model", [](Json& j) { j.erase("model"); }, "\"vocab\" is missing"},
      {"model a string", [](Json& j) { j["model"] = "BPE"; }, "\"vocab\" is missing"},
      {"no vocab", [](Json& j) { j["model"].erase("vocab"); }, "\"vocab\" is missing"},
      {"empty vocab", [](Json& j) { j["model"]["vocab"] = Json::object(); }, "\"vocab\""},
      {"vocab a list", [](Json& j) { j["model"]["vocab"] = Json::array({1}); }, "\"vocab\""},
      {"id a string", [](Json& j) { j["model"]["vocab"]["a"] = "1"; }, "a token id is no integer"},
      {"id negative", [](Json& j) { j["model"]["vocab"]["a"] = -1; }, "token id -1"},
      {"id huge",
       [](Json& j) { j["model"]["vocab"]["a"] = int64_t{1} << 40; },
       "token id 1099511627776 is out of range"},
      {"id twice", [](Json& j) { j["model"]["vocab"]["@@"] = 3; }, "token id 3 is"},
      {"unknown model",
       [](Json& j) { j["model"]["type"] = "Magic"; },
       "\"Magic\" is not supported"},
      {"type a number", [](Json& j) { j["model"]["type"] = 7; }, "\"type\" has to be a string"},
      {"merges a number", [](Json& j) { j["model"]["merges"] = 3; }, "\"merges\" has to be a list"},
      {"merge of three",
       [](Json& j) { j["model"]["merges"].push_back("a b c"); },
       "\"a b c\" is no pair"},
      {"merge of numbers",
       [](Json& j) { j["model"]["merges"].push_back(Json::array({1, 2})); },
       "an item is no pair"},
      {"merge of strangers", [](Json& j) { j["model"]["merges"].push_back("zz9 yy8"); }, "zz9"},
      {"dropout", [](Json& j) { j["model"]["dropout"] = 0.5; }, "dropout"},
      {"added no list",
       [](Json& j) { j["added_tokens"] = 1; },
       "added_tokens: it has to be a list"},
      {"added without name",
       [](Json& j) { j["added_tokens"][0].erase("content"); },
       "\"content\" has to be a string"},
      {"added id negative", [](Json& j) { j["added_tokens"][0]["id"] = -9; }, "token id -9"},
      {"added flag a number",
       [](Json& j) { j["added_tokens"][0]["special"] = 1; },
       "\"special\" has to be true or false"},
      {"added over another", [](Json& j) { j["added_tokens"][0]["id"] = 5; }, "token id 5 is"},
      {"normalizer unknown",
       [](Json& j) { j["normalizer"] = {{"type", "Mangle"}}; },
       "\"Mangle\" is not supported"},
      {"pattern broken",
       [](Json& j) { j["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = "[a"; },
       "[a"},
      {"decoder unknown",
       [](Json& j) { j["decoder"] = {{"type", "Morse"}}; },
       "\"Morse\" is not supported"},
      {"post-processor unknown",
       [](Json& j) { j["post_processor"] = {{"type", "Stamp"}}; },
       "\"Stamp\" is not supported"},
  };
  for (const Row& row : rows) {
    Json json = Json::parse(good_);
    row.change(json);
    expect_refused(row.what, "tokenizer.json", json.dump(), row.mentioned);
  }
  expect_refused("cut", "tokenizer.json", good_.substr(0, 100), "it is no JSON object");
  expect_refused("a list", "tokenizer.json", "[]", "it is no JSON object");
  expect_refused("binary", "tokenizer.json", std::string(64, '\xff'), "it is no JSON object");
}

TEST_F(TextFiles, ConfigsThatAreNoneGetTheirLine) {
  for (const char* name : {"config.json", "tokenizer_config.json"}) {
    expect_refused("a number", name, "7", "it is no JSON object");
    expect_refused("cut", name, "{\"a\":", "it is no JSON object");
  }
  const char* config = "config.json";
  expect_refused("end a string", config, R"({"eos_token_id":"x"})", "\"eos_token_id\"");
  expect_refused("end in a list", config, R"({"eos_token_id":[1,"x"]})", "\"eos_token_id\"");
  expect_refused("name without text", "tokenizer_config.json", R"({"bos_token":{}})", "content");
  expect_refused("class a number", "tokenizer_config.json", R"({"tokenizer_class":1})", "class");
}

}  // namespace
}  // namespace sluice
