// SPDX-License-Identifier: Apache-2.0
// A server of a scripted model for tests of /v1/responses, and the tools that they name.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "tests/server/running_server.h"
#include "tests/server/tool_template.h"

namespace sluice {

inline constexpr const char* kResponses = "/v1/responses";
inline constexpr const char* kTools =
    R"("tools":[{"type":"namespace","name":"crm","description":"d","tools":[)"
    R"({"type":"function","name":"find","parameters":{"type":"object"}}]},)"
    R"({"type":"custom","name":"patch","description":"Edits files","format":{"type":"grammar",)"
    R"("syntax":"lark","definition":"start: \"*** Begin\""}},)"
    R"({"type":"web_search"},{"type":"image_generation"}])";

class ResponsesApi : public ::testing::Test {
 protected:
  ResponsesApi() {
    engine_.editable_model().chat_template = kToolTemplate;
    engine_.editable_model().max_model_len = 4000;
  }

  HttpReply send(const std::string& method, const std::string& path, const std::string& body = {}) {
    if (server_ == nullptr) server_ = std::make_unique<RunningServer>(engine_, config_);
    HttpClient client(server_->port());
    client.request(method, path, body);
    return client.read_reply();
  }

  HttpReply ask(const std::string& fields) {
    return send("POST", kResponses, R"({"input":"a",)" + fields + "}");
  }

  nlohmann::ordered_json ok(const std::string& fields) {
    const HttpReply reply = ask(fields);
    EXPECT_EQ(reply.status, 200) << fields << reply.body;
    return nlohmann::ordered_json::parse(reply.status == 200 ? reply.body : "{}");
  }

  // Makes the model call the function, by its name in the chat.
  void call(const std::string& name, const std::string& arguments) {
    engine_.say("<tool_call>\n{\"name\": \"" + name + "\", \"arguments\": " + arguments +
                "}\n</tool_call>");
  }

  std::string last_prompt() const { return engine_.last_prompt(); }

  FakeEngine engine_;
  Config config_;
  std::unique_ptr<RunningServer> server_;
};

inline bool holds(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace sluice
