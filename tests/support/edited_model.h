// SPDX-License-Identifier: Apache-2.0
// Golden models whose config.json is changed, to see what a key is worth.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "engine/core/status.h"
#include "engine/models/model_config.h"
#include "tests/support/temporary_folder.h"

namespace sluice::testing {

// Reads the configuration of a model by its path, as an engine does.
Expected<ModelConfig> read_model_config_at(const std::string& path);

// A copy of a golden directory, in a folder that ends with it.
class EditedModel {
 public:
  // `name`: of a directory among tests/golden/models.
  explicit EditedModel(const std::string& name);

  // The configuration of the text model.
  nlohmann::json& text() { return json.contains("text_config") ? json["text_config"] : json; }

  // Writes the copy with `json` as it is now, and returns its path.
  std::string path();
  // Why its configuration is refused; empty: it is not.
  std::string error();

  nlohmann::json json;  // config.json

 private:
  std::string source_;
  TemporaryFolder folder_;
};

}  // namespace sluice::testing
