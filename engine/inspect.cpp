// SPDX-License-Identifier: Apache-2.0
#include "engine/inspect.h"

#include "engine/core/config.h"
#include "engine/model_runner.h"
#include "engine/tokenizer/tokenizer.h"
#include "engine/weights/checkpoint.h"

namespace sluice {
Expected<std::string> inspect_model(const Config& config, bool all_tensors) {
  SLUICE_TRY(const std::unique_ptr<Checkpoint> checkpoint,
             Checkpoint::open(config.model, load_format(config)));
  std::string text = checkpoint->describe(all_tensors);
  const Expected<PlannedDevices> planned = plan_on_devices(config);
  text += "\n";
  if (planned) return text + planned->model.plan.describe();
  const std::string& why = planned.error().message;
  return text + (why.starts_with("memory plan: ") ? "" : "memory plan: ") + why + "\n";
}

Expected<std::string> plan_text(const Config& config) {
  SLUICE_TRY(const PlannedDevices planned, plan_on_devices(config));
  return planned.model.plan.describe();
}

Expected<std::unique_ptr<Tokenizer>> load_tokenizer(const std::string& model_path) {
  SLUICE_TRY(const std::unique_ptr<Checkpoint> checkpoint, Checkpoint::open(model_path));
  SLUICE_TRY(CheckpointText text, checkpoint->text());
  return std::move(text.tokenizer);
}

}  // namespace sluice
