// SPDX-License-Identifier: Apache-2.0
// One version of the model behind a router: an engine whose requests go to workers of one
// fingerprint. Its model and tokenizer are those workers', and what else an engine can do the
// router does.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/engine.h"
#include "engine/tokenizer/tokenizer.h"

namespace sluice {

class RemoteEngine;

class RouterVersion final : public Engine, public std::enable_shared_from_this<RouterVersion> {
 public:
  using Files = std::vector<NamedFile>;

  // The router outlives it.
  RouterVersion(RemoteEngine& router,
                ModelInfo model,
                std::shared_ptr<const Tokenizer> tokenizer,
                std::shared_ptr<const Files> files)
      : router_(router),
        model_(std::move(model)),
        tokenizer_(std::move(tokenizer)),
        files_(std::move(files)) {}

  [[nodiscard]] const std::string& fingerprint() const { return model_.system_fingerprint; }

  // Implement Engine. kUnavailable also: no worker of the fingerprint may get a request.
  Expected<RequestId> submit(ValidRequest request, OutputSink& sink) override;
  void abort(RequestId id) override;
  [[nodiscard]] EngineStats stats() const override;
  void report_state(int32_t num_steps, std::function<void(EngineState)> done) override;

  [[nodiscard]] const ModelInfo& model() const override { return model_; }

  [[nodiscard]] const Tokenizer& tokenizer() const override { return *tokenizer_; }

  [[nodiscard]] Expected<Files> tokenizer_files() const override { return *files_; }

  void wait_until_backed() const override {}

  void drain() override;
  void stop() override;

  // Returns what versions with equal files may share.
  [[nodiscard]] const std::shared_ptr<const Tokenizer>& shared_tokenizer() const {
    return tokenizer_;
  }

  [[nodiscard]] const std::shared_ptr<const Files>& shared_files() const { return files_; }

 private:
  RemoteEngine& router_;
  const ModelInfo model_;
  const std::shared_ptr<const Tokenizer> tokenizer_;
  const std::shared_ptr<const Files> files_;
};

}  // namespace sluice
