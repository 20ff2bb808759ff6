// SPDX-License-Identifier: Apache-2.0
// Chats of directories that have Mistral's tekken.json alone, from their messages to ids. Goldens
// are mistral-common's (golden/templates/make_mistral_goldens.py).
#include "engine/tokenizer/files/mistral_templates.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/core/config.h"
#include "engine/engine.h"
#include "engine/tokenizer/files/hf_tokenizer.h"
#include "server/prompt/prompt.h"
#include "server/tools/families.h"
#include "server/tools/output_format.h"
#include "tests/support/golden_folder.h"
#include "tests/support/temporary_folder.h"

namespace sluice {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kVersions[] = {"v3", "v7", "v11", "v13"};

Json golden(const std::string& name) {
  std::ifstream file(golden_folder() + "/" + name, std::ios::binary);
  return Json::parse(std::string(std::istreambuf_iterator<char>(file), {}));
}

// A directory whose tekken.json states this version, and has the control tokens that it needs.
class MistralModel {
 public:
  explicit MistralModel(const std::string& version, const std::vector<std::string>& left_out = {}) {
    Json file = golden("tokenizer/tekken/v3/tekken.json");
    file["config"]["version"] = version;
    if (version == "v11" || version == "v13") {
      const auto v3 = load_hf_text(golden_folder() + "/tokenizer/tekken/v3");
      for (TokenId id = 0; id < 20; ++id) {
        add(file, std::string(v3->tokenizer->token_name(id)));
      }
      for (const std::string name : {"[ARGS]", "[CALL_ID]", "[THINK]", "[/THINK]"}) {
        if (std::ranges::count(left_out, name) == 0) add(file, name);
      }
    }
    std::ofstream(folder_.at("tekken.json")) << file.dump();
    std::ofstream(folder_.at("config.json")) << R"({"model_type": "mistral"})";
    auto text = load_hf_text(folder_.path());
    EXPECT_TRUE(text.has_value()) << text.error().message;
    text_ = std::move(*text);
    model_.vocab_size = static_cast<int32_t>(tokenizer().vocab_size());
    model_.max_model_len = 100000;
    template_ = ChatTemplate::compile(source());
    EXPECT_TRUE(template_.has_value()) << template_.error().message;
  }

  [[nodiscard]] const Tokenizer& tokenizer() const { return *text_.tokenizer; }

  [[nodiscard]] const std::string& source() const { return text_.chat_template; }

  [[nodiscard]] const MessageForms& forms() const { return template_->forms(); }

  [[nodiscard]] Expected<ChatPrompt> prompt(const Json& body) const {
    return chat_prompt(ValidationContext{config_,
                                         model_,
                                         tokenizer(),
                                         template_,
                                         names_,
                                         7,
                                         0,
                                         std::chrono::steady_clock::now()},
                       body);
  }

  // The ids of a text in which control tokens stand between ⟪ and ⟫.
  [[nodiscard]] std::vector<TokenId> marked_ids(std::string_view text) const {
    constexpr std::string_view kOpen = "⟪";
    constexpr std::string_view kClose = "⟫";
    std::vector<TokenId> ids;
    while (!text.empty()) {
      const size_t at = std::min(text.find(kOpen), text.size());
      EXPECT_TRUE(tokenizer().encode(text.substr(0, at), SpecialText::kText, ids).has_value());
      text.remove_prefix(at);
      if (text.empty()) break;
      const size_t end = text.find(kClose);
      ids.push_back(tokenizer().find_token(text.substr(kOpen.size(), end - kOpen.size())));
      text.remove_prefix(end + kClose.size());
    }
    return ids;
  }

 private:
  static void add(Json& file, const std::string& name) {
    Json& list = file["special_tokens"];
    list.push_back({{"rank", list.size()}, {"token_str", name}, {"is_control", true}});
  }

  testing::TemporaryFolder folder_;
  HfText text_;
  Config config_;
  ModelInfo model_;
  std::vector<std::string> names_ = {"m"};
  Expected<ChatTemplate> template_ = make_error(ErrorCode::kInternal, "none");
};

TEST(MistralTemplates, IdsEqualThoseOfMistralCommon) {
  const Json rows = golden("templates/mistral.json");
  for (const std::string version : kVersions) {
    const MistralModel model(version);
    size_t num_equal = 0;
    for (Json row : rows) {
      const Json text = row["texts"][version];
      row.erase("texts");
      const auto found = model.prompt(row);
      ASSERT_TRUE(found.has_value()) << version << row << found.error().message;
      if (text.is_null()) continue;  // mistral-common refuses it
      EXPECT_EQ(found->ids, model.marked_ids(text.get<std::string>())) << version << row << text;
      ++num_equal;
    }
    EXPECT_GE(num_equal, 46U) << version;
  }
}

TEST(MistralTemplates, LongIdsAreCutAndMissingOnesLeftOut) {
  const Json call = {{"type", "function"}, {"function", {{"name", "f"}, {"arguments", "{}"}}}};
  Json named = call;
  named["id"] = "call_0123456789";
  const auto body = [](const Json& made, const Json& id) {
    return Json{{"messages",
                 {{{"role", "user"}, {"content", "u"}},
                  {{"role", "assistant"}, {"content", ""}, {"tool_calls", Json::array({made})}},
                  {{"role", "tool"}, {"content", "r"}, {"tool_call_id", id}}}}};
  };
  const std::map<std::string, std::pair<std::string, std::string>> kExpected = {
      {"v3",
       {"⟪[TOOL_CALLS]⟫[{\"name\": \"f\", \"arguments\": {}, \"id\": \"123456789\"}]⟪</s>⟫"
        "⟪[TOOL_RESULTS]⟫{\"content\": \"r\", \"call_id\": \"123456789\"}⟪[/TOOL_RESULTS]⟫",
        "⟪[TOOL_CALLS]⟫[{\"name\": \"f\", \"arguments\": {}}]⟪</s>⟫"
        "⟪[TOOL_RESULTS]⟫{\"content\": \"r\", \"call_id\": \"\"}⟪[/TOOL_RESULTS]⟫"}},
      {"v11",
       {"⟪[TOOL_CALLS]⟫f⟪[CALL_ID]⟫123456789⟪[ARGS]⟫{}⟪</s>⟫"
        "⟪[TOOL_RESULTS]⟫123456789⟪[TOOL_CONTENT]⟫r⟪[/TOOL_RESULTS]⟫",
        "⟪[TOOL_CALLS]⟫f⟪[ARGS]⟫{}⟪</s>⟫⟪[TOOL_RESULTS]⟫⟪[TOOL_CONTENT]⟫r⟪[/TOOL_RESULTS]⟫"}}};
  for (const auto& [version, texts] : kExpected) {
    const MistralModel model(version);
    const std::string before = "⟪<s>⟫⟪[INST]⟫u⟪[/INST]⟫";
    const auto with_id = model.prompt(body(named, named["id"]));
    ASSERT_TRUE(with_id.has_value()) << with_id.error().message;
    EXPECT_EQ(with_id->ids, model.marked_ids(before + texts.first)) << version;
    const auto without = model.prompt(body(call, nullptr));
    ASSERT_TRUE(without.has_value()) << without.error().message;
    EXPECT_EQ(without->ids, model.marked_ids(before + texts.second)) << version;
  }
}

TEST(MistralTemplates, TheirFormsAndFamiliesAreFound) {
  for (const std::string version : kVersions) {
    const MistralModel model(version);
    EXPECT_EQ(model.source(), mistral_template(version));
    EXPECT_TRUE(model.forms().prints_tools && model.forms().prints_calls) << version;
    EXPECT_FALSE(model.forms().text_arguments || model.forms().object_arguments) << version;
    EXPECT_FALSE(model.forms().takes_developer) << version;
    for (const char* role : {"system", "user", "assistant", "tool"}) {
      const ContentForms& content = model.forms().content_of(role);
      EXPECT_TRUE(content.strings && content.parts) << version << role;
    }
    const DetectedFamilies found = detect_families(model.source(), model.tokenizer());
    ASSERT_NE(found.calls, nullptr) << version;
    EXPECT_EQ(name_of(*found.calls), "mistral");
    EXPECT_EQ(id_rule_of(*found.calls), CallIdRule::kNineAlphanumeric);
    EXPECT_EQ(found.reasoning == nullptr ? "none" : name_of(*found.reasoning),
              version == "v13" ? "mistral" : "none");
    // What forced calls are written in.
    const CallForm form = call_form(*found.calls, model.tokenizer());
    EXPECT_EQ(form.marker.token, model.tokenizer().find_token("[TOOL_CALLS]")) << version;
    const TokenId args = model.tokenizer().find_token("[ARGS]");
    EXPECT_EQ(args != kInvalidToken, version == "v11" || version == "v13");
    if (args != kInvalidToken) {
      EXPECT_EQ(form.after_name, CallPieces({CallPiece{.token = args}})) << version;
    } else {
      EXPECT_EQ(form.open.back().text, "[") << version;
      EXPECT_EQ(form.close.front().text, "]") << version;
    }
  }
}

TEST(MistralTemplates, AVocabularyWithoutThoughtsHasNone) {
  const MistralModel model("v13", {"[THINK]", "[/THINK]"});
  EXPECT_EQ(model.source().find("[THINK]"), std::string::npos);
  EXPECT_NE(model.source().find("[ARGS]"), std::string::npos);
  EXPECT_EQ(detect_families(model.source(), model.tokenizer()).reasoning, nullptr);
}

}  // namespace
}  // namespace sluice
