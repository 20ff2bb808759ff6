// SPDX-License-Identifier: Apache-2.0
#include "server/cli/follower.h"

#include <memory>
#include <thread>
#include <utility>

#include "engine/core/config.h"
#include "engine/core/log.h"
#include "engine/core/node_watch.h"
#include "engine/engine.h"
#include "engine/tokenizer/tokenizer.h"
#include "server/cli/listen_lines.h"
#include "server/http_server.h"

namespace sluice {
namespace {

// Probes need no text.
class NoTokens final : public Tokenizer {
 public:
  Expected<void> encode(std::string_view, SpecialText, std::vector<TokenId>&) const override {
    return {};
  }

  Expected<void> encode_marked(std::string_view,
                               std::span<const TextRange>,
                               std::vector<TokenId>&) const override {
    return {};
  }

  [[nodiscard]] std::string_view token_bytes(TokenId) const override { return {}; }

  [[nodiscard]] bool is_special(TokenId) const override { return false; }

  [[nodiscard]] TokenId find_token(std::string_view) const override { return kInvalidToken; }

  [[nodiscard]] int32_t vocab_size() const override { return 0; }

  [[nodiscard]] TokenId bos() const override { return kInvalidToken; }

  [[nodiscard]] bool add_bos() const override { return false; }

  [[nodiscard]] const std::vector<TokenId>& end_tokens() const override { return ends_; }

  Expected<void> replace_more_ends(std::vector<TokenId>) override { return {}; }

  [[nodiscard]] const std::vector<NamedToken>& named_tokens() const override { return names_; }

  [[nodiscard]] std::string_view token_name(TokenId) const override { return {}; }

 private:
  std::vector<TokenId> ends_;
  std::vector<NamedToken> names_;
};

// The engine of a follower's probes: it takes no requests, and is healthy while its node computes.
class FollowerEngine final : public Engine {
 public:
  explicit FollowerEngine(const Config& config) { model_.path = config.model; }

  Expected<RequestId> submit(ValidRequest, OutputSink&) override {
    return make_error(ErrorCode::kUnavailable, "node 0 of the model takes requests");
  }

  void abort(RequestId) override {}

  [[nodiscard]] EngineStats stats() const override { return {}; }

  void report_state(int32_t, std::function<void(EngineState)> done) override { done({}); }

  [[nodiscard]] const ModelInfo& model() const override { return model_; }

  [[nodiscard]] const Tokenizer& tokenizer() const override { return tokenizer_; }

  [[nodiscard]] Expected<std::vector<NamedFile>> tokenizer_files() const override {
    return make_error(ErrorCode::kUnavailable, "node 0 of the model has the tokenizer");
  }

  [[nodiscard]] std::string failure() const override {
    switch (node_stage()) {
      case NodeStage::kMeeting:
        return "The nodes of the model have not met yet.";
      case NodeStage::kLoading:
        return "This node loads its part of the model.";
      case NodeStage::kReady:
        break;
    }
    return {};
  }

  void drain() override {}

  void stop() override {}

 private:
  ModelInfo model_;
  NoTokens tokenizer_;
};

// Answers probes while it lives, if the port is free.
class Probes {
 public:
  explicit Probes(const Config& config) : engine_(config) {
    // Text is node 0's affair.
    Config own = config;
    own.chat_template.clear();
    own.tool_call_parser = own.reasoning_parser = "none";
    Expected<std::unique_ptr<HttpServer>> made = HttpServer::create_for_probes(own, engine_);
    if (!made) {
      log_event(LogLevel::kWarning, "no_probes", "reason", made.error().message);
      return;
    }
    server_ = std::move(*made);
    log_event(LogLevel::kInfo, "probes", "url", url_of(own, server_->port()));
    thread_ = std::thread([this] { server_->run(); });
  }

  ~Probes() {
    if (!thread_.joinable()) return;
    server_->stop();
    thread_.join();
  }

  Probes(const Probes&) = delete;
  Probes& operator=(const Probes&) = delete;

 private:
  FollowerEngine engine_;
  std::unique_ptr<HttpServer> server_;
  std::thread thread_;
};

}  // namespace

Expected<void> run_follower(const Config& config) {
  const Probes probes(config);
  return run_follower_node(config);
}

}  // namespace sluice
