// SPDX-License-Identifier: Apache-2.0
#include "engine/handoff/handoff_config.h"

#include <gtest/gtest.h>

#include <string>

#include "engine/core/config.h"

namespace sluice {
namespace {

using Names = std::vector<std::string>;

HandoffConfig read(const std::string& json, const std::string& role = "both") {
  Config config;
  config.role = role;
  config.kv_transfer_config = json;
  auto read = handoff_config(config);
  EXPECT_TRUE(read) << json << ": " << (read ? "" : read.error().message);
  return read ? *read : HandoffConfig{};
}

std::string refusal(const std::string& json, const std::string& role = "both") {
  Config config;
  config.role = role;
  config.kv_transfer_config = json;
  const auto read = handoff_config(config);
  if (read) return "accepted";
  EXPECT_EQ(read.error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(read.error().param, "kv-transfer-config");
  return read.error().message;
}

TEST(HandoffConfig, ARoleAloneNamesTheConnectorThatRoutersExpect) {
  EXPECT_EQ(read("").role, HandoffRole::kBoth);
  EXPECT_EQ(read("").connector, "");
  EXPECT_EQ(read("", "prefill").role, HandoffRole::kPrefill);
  EXPECT_EQ(read("", "prefill").connector, "NixlConnector");
  EXPECT_EQ(read("", "decode").role, HandoffRole::kDecode);
}

TEST(HandoffConfig, RolesOfVllmAreOurs) {
  const auto role = [](const std::string& name) {
    return read(R"({"kv_connector":"NixlConnector","kv_role":")" + name + "\"}").role;
  };
  EXPECT_EQ(role("kv_producer"), HandoffRole::kPrefill);
  EXPECT_EQ(role("kv_consumer"), HandoffRole::kDecode);
  EXPECT_EQ(role("kv_both"), HandoffRole::kBoth);
  for (const HandoffRole each : {HandoffRole::kBoth, HandoffRole::kPrefill, HandoffRole::kDecode}) {
    EXPECT_EQ(role(std::string(kv_role_name(each))), each);
  }
}

TEST(HandoffConfig, MembersWithoutMeaningAreNamed) {
  const HandoffConfig config =
      read(R"({"kv_connector":"MooncakeConnector","kv_role":"kv_producer","engine_id":"abc",)"
           R"("kv_buffer_device":"cpu","kv_port":14579,"kv_ip":null,)"
           R"("kv_connector_extra_config":{"backends":["UCX"]}})");
  EXPECT_EQ(config.connector, "MooncakeConnector");
  EXPECT_EQ(config.engine_id, "abc");
  EXPECT_EQ(config.without_meaning,
            (Names{"kv_buffer_device", "kv_port", "kv_connector_extra_config"}));
}

// Such configurations keep more of a cache; leaving them out changes no answer.
TEST(HandoffConfig, AConnectorThatMovesNothingBetweenWorkersIsNamedAndLeavesTheRole) {
  const std::string json = R"({"kv_connector":"OffloadingConnector","kv_role":"kv_both"})";
  const HandoffConfig config = read(json, "both");
  EXPECT_EQ(config.without_meaning, Names{"kv_connector OffloadingConnector"});
  EXPECT_EQ(config.connector, "");
  EXPECT_EQ(config.role, HandoffRole::kBoth);
}

TEST(HandoffConfig, WhatVllmRefusesIsRefusedByName) {
  EXPECT_NE(refusal(R"({"kv_connector":"NixelConnector","kv_role":"kv_both"})")
                .find("unknown kv_connector \"NixelConnector\""),
            std::string::npos);
  EXPECT_NE(refusal(R"({"kv_connector":"NixlConnector","kv_role":"prefill"})").find("kv_producer"),
            std::string::npos);
  EXPECT_NE(refusal(R"({"kv_connector":"NixlConnector"})").find("needs a kv_role"),
            std::string::npos);
  EXPECT_NE(refusal(R"({"kv_role":"kv_both"})").find("needs a kv_connector"), std::string::npos);
  EXPECT_NE(refusal(R"({"kv_conector":"NixlConnector"})").find("\"kv_conector\""),
            std::string::npos);
  EXPECT_NE(refusal(R"({"kv_role":7})").find("must be a string, got 7"), std::string::npos);
  EXPECT_NE(refusal("NixlConnector").find("must be a JSON object"), std::string::npos);
}

TEST(HandoffConfig, WhatFailedTransfersDoIsChosenInVllmsNames) {
  const auto policy = [](const std::string& name) {
    return R"({"kv_connector":"NixlConnector","kv_role":"kv_both","kv_load_failure_policy":)" +
           name + "}";
  };
  EXPECT_EQ(read("").failure_policy, KvFailurePolicy::kRecompute);
  EXPECT_EQ(read(policy("\"recompute\"")).failure_policy, KvFailurePolicy::kRecompute);
  EXPECT_EQ(read(policy("\"fail\"")).failure_policy, KvFailurePolicy::kFail);
  EXPECT_TRUE(read(policy("\"fail\"")).without_meaning.empty());
  EXPECT_NE(refusal(policy("\"retry\"")).find("one of recompute, fail, got \"retry\""),
            std::string::npos);
  EXPECT_NE(refusal(policy("1")).find("must be a string, got 1"), std::string::npos);
}

TEST(HandoffConfig, TwoRolesMustAgree) {
  const std::string producer = R"({"kv_connector":"NixlConnector","kv_role":"kv_producer"})";
  EXPECT_EQ(read(producer, "prefill").role, HandoffRole::kPrefill);
  EXPECT_NE(refusal(producer, "decode").find("--role is decode"), std::string::npos);
}

}  // namespace
}  // namespace sluice
