// SPDX-License-Identifier: Apache-2.0
// A model by name: found in the local cache, or downloaded from a hub into it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "engine/core/status.h"
#include "server/hub/hub_options.h"
#include "server/hub/repo_files.h"

namespace sluice {
struct Config;
}

namespace sluice::hub {

// The configuration, then the environment that the hub's other clients read (HF_ENDPOINT, HF_TOKEN,
// HF_HUB_CACHE, HF_HOME, HF_HUB_OFFLINE and the token file), then their defaults.
Expected<HubOptions> hub_options(const Config& config);

// What a download says while it runs.
class DownloadProgress {
 public:
  virtual ~DownloadProgress() = default;
  virtual void on_note(const std::string& line) = 0;
  // Bytes of all files of the model; those that were there before count as done.
  virtual void on_bytes(const std::string& file, int64_t done, int64_t total) = 0;
};

// The path to open: a directory, or a GGUF file. A complete model in the cache is used as it is,
// without asking the hub whether its branch has moved; only an encoder whose modules.json was never
// asked for makes one request, for the same commit. Several processes may fetch at once: a file
// is downloaded by one of them. Errors are one line and name the URL or the file.
Expected<std::string> fetch_model(const HubOptions& options,
                                  const ModelName& name,
                                  bool with_weights,
                                  DownloadProgress& progress);

// The commit of a model at such a path; empty: it is in no cache.
std::string commit_of_path(const std::string& path);

}  // namespace sluice::hub
