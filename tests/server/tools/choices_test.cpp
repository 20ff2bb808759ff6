// SPDX-License-Identifier: Apache-2.0
// The texts of `structured_outputs.choice` are what the grammar allows, whatever is in them.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "server/tools/structured_outputs.h"
#include "tests/support/byte_grammar.h"

namespace sluice {
namespace {

using Json = nlohmann::ordered_json;

TEST(Choices, ControlCharactersBeforeDigits) {
  const auto backend = testing::byte_backend();
  for (int c = 1; c < 0x80; c = c == 0x1F ? 0x7F : c + 1) {
    Json texts = Json::array();
    std::string all = "0123456789abcdefABCDEFg\"\\";
    for (const char d : all) texts.push_back(std::string{static_cast<char>(c), d});
    const Json body = {{"structured_outputs", {{"choice", texts}}}};
    const auto spec = read_structured_outputs(body);
    ASSERT_TRUE(spec) << spec.error().message;
    const auto grammar = backend->compile(*spec);
    ASSERT_TRUE(grammar) << spec->text << grammar.error().message;
    const auto matcher = (*grammar)->match();
    EXPECT_EQ(testing::allowed_tokens(*matcher), std::vector<TokenId>({c})) << spec->text;
    ASSERT_TRUE(matcher->accept(c));
    for (int d = 0; d < 256; ++d) {
      const std::string text = {static_cast<char>(c), static_cast<char>(d)};
      EXPECT_EQ(testing::accepts(**grammar, text), all.find(text[1]) != std::string::npos)
          << c << " " << d;
    }
  }
}

}  // namespace
}  // namespace sluice
