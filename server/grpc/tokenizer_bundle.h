// SPDX-License-Identifier: Apache-2.0
// The files that routers tokenize with, as GetTokenizer sends them: one ZIP archive.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "engine/core/status.h"

namespace sluice {

class Engine;
struct NamedFile;

struct TokenizerBundle {
  std::string archive;
  std::string sha256;  // hex
};

// Makes the bundle at the first call, and keeps it: the model does not change.
class TokenizerBundleSource {
 public:
  // `given_template`: a file or a template (--chat-template) instead of the model's own; empty:
  // none.
  TokenizerBundleSource(const Engine& engine, std::string given_template)
      : engine_(engine), template_(std::move(given_template)) {}

  // Any thread; the first call takes up to seconds, during which other calls wait. Failures are
  // retried.
  Expected<std::shared_ptr<const TokenizerBundle>> get();

 private:
  Expected<std::vector<NamedFile>> files() const;

  const Engine& engine_;
  const std::string template_;
  std::mutex mutex_;
  std::shared_ptr<const TokenizerBundle> bundle_;  // guarded by mutex_
};

}  // namespace sluice
