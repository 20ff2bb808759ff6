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

// Makes the bundle at the first call, and keeps it until it is asked for another model's.
class TokenizerBundleSource {
 public:
  // `given_template`: a file or a template (--chat-template) instead of the model's own; empty:
  // none.
  explicit TokenizerBundleSource(std::string given_template)
      : template_(std::move(given_template)) {}

  // Any thread; the first call takes up to seconds, during which other calls wait. Failures are
  // retried.
  Expected<std::shared_ptr<const TokenizerBundle>> get(const Engine& engine);

 private:
  [[nodiscard]] Expected<std::vector<NamedFile>> files_of(const Engine& engine) const;

  const std::string template_;
  std::mutex mutex_;
  std::string fingerprint_;                        // whose bundle it is; guarded by mutex_
  std::shared_ptr<const TokenizerBundle> bundle_;  // guarded by mutex_
};

}  // namespace sluice
