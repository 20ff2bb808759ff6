// SPDX-License-Identifier: Apache-2.0
// The template of a served model: its own, a given one, or the one that is built in.
#include "server/front/served_model.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "engine/core/config.h"
#include "tests/support/fake_engine.h"

namespace sluice {
namespace {

class ServedTemplate : public ::testing::Test {
 protected:
  // Empty: chats are refused.
  std::string source(const std::string& architecture,
                     const std::string& own,
                     const std::string& given = "") {
    engine_.editable_model().architecture = architecture;
    engine_.editable_model().chat_template = own;
    config_.chat_template = given;
    const auto served = ServedModel::create(config_, engine_, nullptr);
    if (!served || !(*served)->chat_template) return {};
    return (*served)->template_source;
  }

  FakeEngine engine_;
  Config config_;
};

TEST_F(ServedTemplate, DeepseekV32HasOneThoughItsFilesHaveNone) {
  const std::string built_in(built_in_template("deepseek_v32"));
  EXPECT_EQ(source("deepseek_v32", ""), built_in);
  EXPECT_EQ(source("deepseek32", ""), built_in);  // a GGUF file's
  EXPECT_EQ(source("llama", ""), "");
  EXPECT_EQ(source("deepseek_v32", "{{ messages }}"), "{{ messages }}");
  EXPECT_EQ(source("llama", "{{ messages }}", "deepseek_v32"), built_in);
  EXPECT_EQ(source("deepseek_v32", "", "{{ messages }} "), "{{ messages }} ");
}

}  // namespace
}  // namespace sluice
