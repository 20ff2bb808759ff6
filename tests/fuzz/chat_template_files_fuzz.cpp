// SPDX-License-Identifier: Apache-2.0
// The files of a model's directory that hold chat templates: one by itself renders what it renders
// joined with the others, where its turn is. The input: tokenizer_config.json, chat_template.json,
// chat_template.jinja, tool_use.jinja and rag.jinja, separated by lines of "---".
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "engine/core/status.h"
#include "engine/tokenizer/files/hf_tokenizer.h"
#include "server/prompt/chat_template.h"
#include "tests/fuzz/target.h"

namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;
using sluice::ChatTemplate;
using sluice::ErrorCode;

constexpr std::string_view kTokenizer =
    R"({"model":{"type":"BPE","vocab":{"a":0,"b":1},"merges":[]}})";
constexpr const char* kFiles[] = {"tokenizer_config.json",
                                  "chat_template.json",
                                  "chat_template.jinja",
                                  "additional_chat_templates/tool_use.jinja",
                                  "additional_chat_templates/rag.jinja"};

// One level and some steps are the joined template's own tags.
constexpr sluice::TemplateLimits kAlone = {
    .fuel = 20'000, .max_output_bytes = 1 << 16, .max_memory_bytes = 1 << 20, .max_depth = 30};
constexpr sluice::TemplateLimits kJoined = {
    .fuel = 21'000, .max_output_bytes = 1 << 17, .max_memory_bytes = 2 << 20, .max_depth = 32};

std::optional<ChatTemplate> compile(const std::string& source,
                                    const sluice::TemplateLimits& limits) {
  auto made = ChatTemplate::compile(source, limits, [] { return 0; });
  if (!made) return std::nullopt;
  return std::move(*made);
}

const fs::path& folder() {
  static const fs::path path = [] {
    fs::path made = fs::temp_directory_path() / ("chat_template_files-" + std::to_string(getpid()));
    fs::create_directories(made / "additional_chat_templates");
    std::ofstream(made / "tokenizer.json") << kTokenizer;
    return made;
  }();
  return path;
}

// What `alone` renders, `joined` renders with the same variables.
void compare(const std::string& source, const ChatTemplate& joined, const char* extra) {
  Json variables = Json::parse(R"({
      "messages": [{"role": "system", "content": "Be"}, {"role": "user", "content": "<a> x"}],
      "bos_token": "<s>", "add_generation_prompt": true})");
  if (*extra != '\0') variables[extra] = Json::parse(R"([{"name": "f", "text": "t"}])");
  const auto alone = compile(source, kAlone);
  if (!alone) return;
  const auto expected = alone->render_text(variables);
  if (!expected && expected.error().code == ErrorCode::kResourceExhausted) return;
  const auto rendered = joined.render_text(variables);
  CHECK_EQ(rendered.has_value(), expected.has_value());
  if (rendered) CHECK(*rendered == *expected);
}

}  // namespace

static int chat_template_files_input(const uint8_t* data, size_t size) {
  std::string_view text(reinterpret_cast<const char*>(data), size);
  constexpr std::string_view kBetween = "\n---\n";
  std::string sources[std::size(kFiles)];
  for (size_t i = 0; i < std::size(kFiles); ++i) {
    const size_t end = text.find(kBetween);
    sources[i] = text.substr(0, end);
    fs::remove(folder() / kFiles[i]);
    if (!sources[i].empty()) std::ofstream(folder() / kFiles[i], std::ios::binary) << sources[i];
    text.remove_prefix(end == text.npos ? text.size() : end + kBetween.size());
  }
  const auto loaded = sluice::load_hf_text(folder().string());
  if (!loaded) {
    CHECK(!loaded.error().message.empty());
    return 0;
  }
  const auto joined = compile(loaded->chat_template, kJoined);
  const auto& [config, beside, standard, of_tools, of_documents] = sources;
  bool are_whole = true;
  for (const std::string* source : {&standard, &of_tools, &of_documents}) {
    are_whole = are_whole && compile(*source, kAlone).has_value();
  }
  if (!are_whole || standard.empty()) return 0;
  CHECK(joined.has_value());
  compare(standard, *joined, "");
  if (!of_tools.empty()) compare(of_tools, *joined, "tools");
  if (!of_documents.empty()) compare(of_documents, *joined, "documents");
  return 0;
}

const sluice::fuzz::Target chat_template_files_target("chat_template_files_fuzz",
                                                      chat_template_files_input);
