// SPDX-License-Identifier: Apache-2.0
// What lines of `sluice chat` mean, and how its sampling is chosen and changed.
#include "server/cli/chat_line.h"

#include <gtest/gtest.h>

#include <limits>
#include <string>

namespace sluice {
namespace {

TEST(ChatLine, TellsCommandsFromText) {
  const auto is = [](const char* line, ChatCommand command, const std::string& argument) {
    const ChatLine parsed = parse_chat_line(line);
    EXPECT_EQ(parsed.command, command) << line;
    EXPECT_EQ(parsed.argument, argument) << line;
  };
  is("Hello /help", ChatCommand::kText, "Hello /help");
  is("/help", ChatCommand::kHelp, "");
  is("/system  Be brief. ", ChatCommand::kSystem, "Be brief.");
  is("/system", ChatCommand::kSystem, "");
  is("/regen", ChatCommand::kRegenerate, "");
  is("/set temperature 0.7", ChatCommand::kSet, "temperature 0.7");
  is("/set\ttop_k 5", ChatCommand::kSet, "top_k 5");
  is("/save a b.json", ChatCommand::kSave, "a b.json");
  is("/clear", ChatCommand::kClear, "");
  is("/quit", ChatCommand::kQuit, "");
  is("/sett temperature 1", ChatCommand::kUnknown, "sett");
  is("/etc/hosts is a file", ChatCommand::kText, "/etc/hosts is a file");
  is("/", ChatCommand::kText, "/");
  is("/ help", ChatCommand::kText, "/ help");
  is("/Help", ChatCommand::kText, "/Help");
  is("", ChatCommand::kText, "");
}

TEST(ChatLine, HelpNamesEveryCommand) {
  for (const char* name : {"/help", "/system", "/regen", "/set", "/save", "/clear", "/quit"}) {
    EXPECT_NE(chat_help().find(name), std::string::npos) << name;
    EXPECT_NE(parse_chat_line(name).command, ChatCommand::kUnknown) << name;
  }
}

TEST(ChatLine, SetsParametersByTheirNamesWithinTheirRanges) {
  SamplingParams params;
  const auto set = [&](const char* text) {
    const Expected<void> done = set_by_text(params, text);
    return done ? std::string() : done.error().message;
  };
  EXPECT_EQ(set("temperature 0.7"), "");
  EXPECT_FLOAT_EQ(params.temperature, 0.7F);
  EXPECT_EQ(set("top-p=0.9"), "");
  EXPECT_FLOAT_EQ(params.top_p, 0.9F);
  EXPECT_EQ(set("top_k = 40"), "");
  EXPECT_EQ(params.top_k, 40);
  EXPECT_EQ(set("seed 9007199254740993"), "");
  EXPECT_EQ(params.seed, 9007199254740993U);
  EXPECT_EQ(set("ignore_eos true"), "");
  EXPECT_TRUE(params.ignore_eos);
  const SamplingParams before = params;
  EXPECT_NE(set("temperature 3").find("[0, 2]"), std::string::npos) << set("temperature 3");
  EXPECT_NE(set("temperature").find("needs a value"), std::string::npos);
  EXPECT_NE(set("temperature =").find("needs a value"), std::string::npos);
  EXPECT_NE(set("temperature warm").find("a number"), std::string::npos);
  EXPECT_NE(set("temperature nan"), "");
  EXPECT_NE(set("top_k 1.5").find("an integer"), std::string::npos);
  EXPECT_NE(set("ignore_eos maybe").find("true or false"), std::string::npos);
  EXPECT_NE(set("heat 1").find("temperature"), std::string::npos);  // which names there are
  EXPECT_NE(set("min_tokens 2147483647"), set("min_tokens 1"));     // a rule between fields
  EXPECT_FLOAT_EQ(params.temperature, before.temperature);
  EXPECT_EQ(params.top_k, before.top_k);
}

TEST(ChatLine, AModelThatSaysNothingIsSampledAsChatsAre) {
  const SamplingParams chosen = chat_defaults(SamplingParams{});
  EXPECT_FLOAT_EQ(chosen.temperature, 0.7F);
  EXPECT_FLOAT_EQ(chosen.top_p, 0.95F);
  SamplingParams warm;
  warm.temperature = 1.0F;
  warm.top_p = 0.95F;
  EXPECT_FLOAT_EQ(chat_defaults(warm).temperature, 1.0F);
  SamplingParams cut;
  cut.top_k = 20;
  EXPECT_FLOAT_EQ(chat_defaults(cut).temperature, 1.0F);
  SamplingParams cool;
  cool.temperature = 0.2F;
  EXPECT_FLOAT_EQ(chat_defaults(cool).temperature, 0.2F);
  EXPECT_FLOAT_EQ(chat_defaults(cool).top_p, 1.0F);
}

TEST(ChatLine, DescribesWhatDecides) {
  SamplingParams params = chat_defaults(SamplingParams{});
  params.max_tokens = std::numeric_limits<int32_t>::max();
  EXPECT_EQ(describe_sampling(params), "temperature 0.7, top_p 0.95");
  params.top_k = 40;
  params.max_tokens = 5;
  const std::string text = describe_sampling(params);
  EXPECT_NE(text.find("top_k 40"), std::string::npos);
  EXPECT_NE(text.find("max_tokens 5"), std::string::npos);
}

// A model can be made to write what sets a terminal's title, clears it, or types into it.
TEST(ChatLine, AnswersDoNotSteerTheTerminal) {
  EXPECT_EQ(shown_on_terminal("a\x1b]0;title\x07 b\x7f\r\n\tc"),
            "a\uFFFD]0;title\uFFFD b\uFFFD\uFFFD\n\tc");
  EXPECT_EQ(shown_on_terminal("\xC2\x9B" "2J caf\xC3\xA9 \xC2\xA0 \xE2\x82\xAC"),
            "\uFFFD" "2J caf\xC3\xA9 \xC2\xA0 \xE2\x82\xAC");
}

}  // namespace
}  // namespace sluice
