// SPDX-License-Identifier: Apache-2.0
// A server whose engine makes vectors of four elements, or scores, without a model.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "tests/server/running_server.h"

namespace sluice {

class Embeddings : public ::testing::Test {
 protected:
  using Json = nlohmann::ordered_json;
  static constexpr const char* kPath = "/v1/embeddings";

  Embeddings() {
    PoolingInfo& info = engine_.editable_model().pooling.emplace();
    info.width = 4;
    info.max_tokens = 64;
    info.normalizes = true;
  }

  PoolingInfo& info() { return *engine_.editable_model().pooling; }

  void make_classifier(std::vector<std::string> labels) {
    info().is_classifier = true;
    info().function = ScoreFunction::kSigmoid;
    info().width = static_cast<int32_t>(labels.size());
    info().labels = std::move(labels);
  }

  HttpReply post(const std::string& path, const std::string& body) {
    if (server_ == nullptr) server_ = std::make_unique<RunningServer>(engine_, config_);
    HttpClient client(server_->port());
    client.post(path, body);
    return client.read_reply();
  }

  HttpReply get(const std::string& path) {
    if (server_ == nullptr) server_ = std::make_unique<RunningServer>(engine_, config_);
    HttpClient client(server_->port());
    client.request("GET", path, {});
    return client.read_reply();
  }

  Json ok(const std::string& path, const Json& body) {
    const HttpReply reply = post(path, body.dump());
    EXPECT_EQ(reply.status, 200) << path << body.dump() << reply.body;
    return reply.status == 200 ? Json::parse(reply.body) : Json();
  }

  // The `param` of a refusal.
  std::string refused(const std::string& path, const Json& body, int status = 400) {
    const HttpReply reply = post(path, body.dump());
    EXPECT_EQ(reply.status, status) << path << body.dump() << reply.body;
    const Json json = Json::parse(reply.body, nullptr, false);
    if (!json.is_object() || !json.contains("error")) return "no error";
    if (json["error"].is_string()) {  // TEI's
      EXPECT_TRUE(json["error_type"].is_string()) << reply.body;
      message_ = json["error"].get<std::string>();
      return json.value("param", "");
    }
    message_ = json["error"]["message"].get<std::string>();
    return json["error"]["param"].is_string() ? json["error"]["param"].get<std::string>() : "";
  }

  // The vector of a text: its length with <s>, <s>, its last byte, 0.5.
  static Json vector_of(const std::string& text) {
    return {static_cast<double>(text.size() + 1),
            258.0,
            static_cast<double>(text.back()),
            0.5};
  }

  Config config_;
  FakeEngine engine_;
  std::unique_ptr<RunningServer> server_;
  std::string message_;
};

}  // namespace sluice
