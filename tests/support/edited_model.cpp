// SPDX-License-Identifier: Apache-2.0
#include "tests/support/edited_model.h"

#include <fstream>
#include <memory>

#include "engine/models/model_spec.h"
#include "engine/weights/checkpoint.h"
#include "tests/support/golden_folder.h"
#include "tests/support/golden_models.h"

namespace sluice::testing {

Expected<ModelConfig> read_model_config_at(const std::string& path) {
  SLUICE_TRY(const std::unique_ptr<Checkpoint> checkpoint, Checkpoint::open(path));
  SLUICE_TRY(const ModelSpec* spec, find_model_spec(*checkpoint));
  return read_model_config(*spec, *checkpoint);
}

EditedModel::EditedModel(const std::string& name) : source_(golden_folder() + "/models/" + name) {
  json = nlohmann::json::parse(read_whole_file(source_ + "/config.json"));
}

std::string EditedModel::path() {
  std::ofstream(folder_.at("config.json")) << json.dump();
  std::ofstream(folder_.at("model.safetensors"), std::ios::binary)
      << read_whole_file(source_ + "/model.safetensors");
  return folder_.path();
}

std::string EditedModel::error() {
  const auto config = read_model_config_at(path());
  return config ? "" : config.error().message;
}

}  // namespace sluice::testing
