// SPDX-License-Identifier: Apache-2.0
#include "engine/inspect.h"

#include <cstddef>
#include <cstdint>

#include "engine/core/config.h"
#include "engine/plan/model_plan.h"
#include "engine/spec/spec_config.h"
#include "engine/tokenizer/tokenizer.h"
#include "engine/weights/causal_flags.h"
#include "engine/weights/checkpoint.h"
#include "engine/weights/override_keys.h"
#include "scheduler/row_times.h"

namespace sluice {
namespace {

// Step times by rows depend on the weights, which a plan does not read, and on the machine's other
// load: steps measure them as they run, and a plan only lists the sizes.
std::string row_times_text(const Config& config) {
  const int32_t most = max_chosen_rows(config);
  std::string text =
      "drafts: as many as pay by the milliseconds of steps, whose medians are measured as they run\n"
      "(row_times of /debug/state), for up to";
  for (size_t bucket = 0; bucket < RowTimes::kNumBuckets; ++bucket) {
    const int64_t end = RowTimes::bucket_end(bucket);
    text += (bucket == 0 ? " " : ", ") + std::to_string(end);
    if (end >= most) break;
  }
  return text + " rows\n";
}

}  // namespace

Expected<std::string> inspect_model(const Config& config, bool all_tensors) {
  SLUICE_TRY_VOID(causal_override(config).map([](const auto&) {}));
  SLUICE_TRY(const std::string overrides, model_overrides(config.hf_overrides));
  SLUICE_TRY(
      const std::unique_ptr<Checkpoint> checkpoint,
      Checkpoint::open(config.model, load_format(config), CheckpointPart::kModel, overrides));
  std::string text = checkpoint->describe(all_tensors);
  const Expected<PlannedDevices> planned = plan_on_devices(config);
  text += "\n";
  if (planned) return text + planned->model.plan.describe();
  const std::string& why = planned.error().message;
  return text + (why.starts_with("memory plan: ") ? "" : "memory plan: ") + why + "\n";
}

Expected<std::string> plan_text(const Config& config) {
  SLUICE_TRY(const PlannedDevices planned, plan_on_devices(config));
  SLUICE_TRY(const SpecConfig speculation, parse_spec_config(config.speculative_config));
  const bool is_adaptive = speculation.has_method() && !speculation.is_fixed;
  return planned.model.plan.describe() + (is_adaptive ? row_times_text(config) : "");
}

Expected<std::unique_ptr<Tokenizer>> load_tokenizer(const std::string& model_path) {
  SLUICE_TRY(const std::unique_ptr<Checkpoint> checkpoint, Checkpoint::open(model_path));
  SLUICE_TRY(CheckpointText text, checkpoint->text());
  return std::move(text.tokenizer);
}

}  // namespace sluice
