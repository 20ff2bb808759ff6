// SPDX-License-Identifier: Apache-2.0
// One version of a router's model: an engine whose requests go to workers of one fingerprint. Its
// model and tokenizer are those workers'; the router does everything else that an engine does.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/engine.h"
#include "engine/tokenizer/tokenizer.h"

namespace sluice {

class RouterVersion final : public Engine, public std::enable_shared_from_this<RouterVersion> {
 public:
  using Files = std::vector<NamedFile>;

  // Submits a request of one version.
  using Submit = std::function<Expected<RequestId>(
      std::shared_ptr<const RouterVersion> version, ValidRequest request, OutputSink& sink)>;

  // `submit`: the router's, which outlives it.
  RouterVersion(Engine& router,
                Submit submit,
                ModelInfo model,
                std::shared_ptr<const Tokenizer> tokenizer,
                std::shared_ptr<const Files> files)
      : router_(router),
        submit_(std::move(submit)),
        model_(std::move(model)),
        tokenizer_(std::move(tokenizer)),
        files_(std::move(files)) {}

  [[nodiscard]] const std::string& fingerprint() const { return model_.system_fingerprint; }

  // Implement Engine. kUnavailable also: no worker of the fingerprint may get a request.
  Expected<RequestId> submit(ValidRequest request, OutputSink& sink) override {
    return submit_(shared_from_this(), std::move(request), sink);
  }

  void abort(RequestId id) override { router_.abort(id); }

  [[nodiscard]] EngineStats stats() const override { return router_.stats(); }

  void report_state(int32_t num_steps, std::function<void(EngineState)> done) override {
    router_.report_state(num_steps, std::move(done));
  }

  [[nodiscard]] const ModelInfo& model() const override { return model_; }

  [[nodiscard]] const Tokenizer& tokenizer() const override { return *tokenizer_; }

  [[nodiscard]] Expected<Files> tokenizer_files() const override { return *files_; }

  void drain() override { router_.drain(); }

  void stop() override { router_.stop(); }

  // Returns what versions with equal files may share.
  [[nodiscard]] const std::shared_ptr<const Tokenizer>& shared_tokenizer() const {
    return tokenizer_;
  }

  [[nodiscard]] const std::shared_ptr<const Files>& shared_files() const { return files_; }

 private:
  Engine& router_;
  const Submit submit_;
  const ModelInfo model_;
  const std::shared_ptr<const Tokenizer> tokenizer_;
  const std::shared_ptr<const Files> files_;
};

}  // namespace sluice
