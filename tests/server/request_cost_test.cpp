// SPDX-License-Identifier: Apache-2.0
// What requests cost the I/O thread that reads them, which serves other connections meanwhile.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "server/api/response_tools.h"
#include "server/api/responses_codec.h"
#include "server/front/ignored_arguments.h"
#include "server/prompt/tool_list.h"
#include "tests/support/thread_time.h"

namespace sluice {
namespace {

using Json = nlohmann::ordered_json;
using testing::in_time;

TEST(RequestCost, ToolsOfAResponseAreRefusedBeforeTheyAreSearched) {
  Json tools = Json::array();
  for (int i = 0; i < 100'000; ++i) {
    tools.push_back({{"type", "custom"}, {"name", "a" + std::to_string(100'000 + i)}});
  }
  Json body = {{"input", "a"}, {"tools", std::move(tools)}};
  const auto expect_refusal = [&] {
    IgnoredArguments ignored(UnknownArguments::kIgnore);
    std::vector<ResponseTool> read;
    const auto chat =
        in_time([&] { return chat_of_responses(body, Json::array(), ignored, read); });
    ASSERT_FALSE(chat);
    EXPECT_EQ(chat.error().param, "tools");
    EXPECT_NE(chat.error().message.find("at most 512"), std::string::npos) << chat.error().message;
  };
  expect_refusal();
  Json in_namespace = {{"type", "namespace"}, {"name", "n"}, {"tools", std::move(body["tools"])}};
  body["tools"] = Json::array({std::move(in_namespace)});
  expect_refusal();
}

TEST(RequestCost, AResponseMayHaveAsManyToolsAsAChat) {
  Json tools = Json::array();
  for (size_t i = 0; i < kMaxTools; ++i) {
    tools.push_back({{"type", "function"}, {"name", "a" + std::to_string(i)}});
  }
  IgnoredArguments ignored(UnknownArguments::kIgnore);
  Json functions = Json::array();
  EXPECT_EQ(read_response_tools(tools, ignored, functions)->size(), kMaxTools);
  tools.push_back({{"type", "function"}, {"name", "another"}});
  functions = Json::array();
  EXPECT_FALSE(read_response_tools(tools, ignored, functions));
}

}  // namespace
}  // namespace sluice
