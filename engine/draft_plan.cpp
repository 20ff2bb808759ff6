// SPDX-License-Identifier: Apache-2.0
#include "engine/draft_plan.h"

#include <algorithm>
#include <optional>
#include <string_view>

#include "engine/sampling/sampler.h"
#include "engine/weights/gguf_parse.h"
#include "engine/weights/weight_store.h"

namespace sluice {
namespace {

tl::unexpected<Error> unsupported(const std::string& what) {
  return make_error(
      ErrorCode::kUnsupported, "speculative-config: " + what, "speculative-config");
}

Expected<int32_t> group_of_all_tokens(const std::vector<KvLayout>& layouts) {
  for (size_t i = 0; i < layouts.size(); ++i) {
    if (layouts[i].spec.kind == KvGroupKind::kFull) return static_cast<int32_t>(i);
  }
  return unsupported(
      "method draft_model needs a target with a layer that attends to every token, found none");
}

// A windowed layer keeps what all others do: block tables are the target's.
std::vector<KvStorageGroup> storage_groups(const ModelConfig& model,
                                           const std::vector<KvLayout>& layouts) {
  std::vector<KvStorageGroup> groups;
  for (const KvLayout& layout : layouts) {
    groups.push_back({.num_layers = static_cast<int32_t>(layout.layers.size()),
                      .num_kv_heads = model.num_kv_heads,
                      .head_dim = model.head_dim,
                      .num_blocks = 0});
  }
  return groups;
}

// Rows of a pass: a catch-up, or what a step has committed for every request.
StepBounds pass_bounds(const Config& config,
                       const SpecConfig& spec,
                       const StepBounds& target,
                       int64_t max_len) {
  const int32_t committed = config.max_num_seqs * (spec.num_speculative_tokens + 1);
  return {.max_tokens = std::max(kMaxDraftCatchUp, committed),
          .max_seqs = config.max_num_seqs,
          .max_logits = config.max_num_seqs,
          .max_seq_len = static_cast<int32_t>(max_len),
          .num_threads = target.num_threads,
          .device = target.device};
}

}  // namespace

Expected<PlannedDraft> plan_draft(const Config& config,
                                  const SpecConfig& spec,
                                  const ModelConfig& target,
                                  const std::vector<KvLayout>& target_layouts,
                                  const StepBounds& target_bounds) {
  if (target_bounds.device != DeviceType::kCpu) {
    return unsupported("method draft_model runs on --device cpu alone");
  }
  PlannedDraft planned;
  DraftMemory& memory = planned.memory;
  SLUICE_TRY(memory.kv_group, group_of_all_tokens(target_layouts));
  const LoadFormat format = config.load_format == "dummy" ? LoadFormat::kDummy : LoadFormat::kAuto;
  SLUICE_TRY(planned.checkpoint, Checkpoint::open(spec.model, format));
  SLUICE_TRY(planned.spec, find_model_spec(*planned.checkpoint));
  SLUICE_TRY(planned.model, read_model_config(*planned.spec, *planned.checkpoint));
  const int64_t shorter = std::min(planned.model.context_len, target.context_len);
  if (spec.draft_max_model_len > shorter) {
    return make_error(ErrorCode::kInvalidArgument,
                      "speculative-config: max_model_len: found " +
                          std::to_string(spec.draft_max_model_len) + ", the models' contexts hold " +
                          std::to_string(shorter),
                      "speculative-config");
  }
  memory.max_model_len = spec.draft_max_model_len > 0 ? spec.draft_max_model_len : shorter;
  planned.bounds = pass_bounds(config, spec, target_bounds, memory.max_model_len);
  planned.num_tokens = spec.num_speculative_tokens;
  planned.vocab_size = std::min(planned.model.vocab_size, target.vocab_size);

  WeightStore shapes(*planned.checkpoint);
  SLUICE_TRY(const std::unique_ptr<Model> shape,
             planned.spec->build(planned.model,
                                 {.activation_bits = config.activation_bits, .max_model_len = 1},
                                 shapes));
  if (const std::vector<std::string> unused = shapes.unused(); !unused.empty()) {
    return unsupported(spec.model + ": tensor " + quoted(unused.front()) +
                       " has no place in architecture " + planned.model.architecture);
  }
  planned.largest.add(shapes.largest());
  memory.weight_bytes = shapes.packed_bytes();
  memory.rope_bytes_per_token = planned.model.rope_bytes(1);
  memory.arena_bytes =
      shape->arena_bytes(planned.bounds) +
      int64_t{planned.model.vocab_size} * planned.bounds.max_logits *
          static_cast<int64_t>(sizeof(float)) +
      Sampler::buffer_bytes(
          planned.vocab_size, planned.bounds.max_logits, 0, planned.bounds.num_threads);
  SLUICE_TRY(memory.kv_dtype,
             parse_kv_dtype(spec.draft_kv_cache_dtype.empty() ? config.kv_cache_dtype
                                                              : spec.draft_kv_cache_dtype));
  memory.kv_groups = storage_groups(planned.model, shape->kv_layouts());
  memory.num_own_blocks =
      config.max_num_seqs *
      static_cast<int32_t>(ceil_div(spec.num_speculative_tokens, config.block_size));
  return planned;
}

Expected<void> check_draft_vocabulary(const Tokenizer& target,
                                      const Tokenizer& draft,
                                      const std::string& draft_path) {
  const int32_t size = target.vocab_size();
  int32_t num_equal = 0;
  for (TokenId id = 0; id < std::min(size, draft.vocab_size()); ++id) {
    num_equal += target.token_bytes(id) == draft.token_bytes(id) ? 1 : 0;
  }
  if (int64_t{10} * num_equal >= int64_t{9} * size) return {};
  return make_error(ErrorCode::kInvalidArgument,
                    "speculative-config: " + draft_path + ": found " + std::to_string(num_equal) +
                        " of the target's " + std::to_string(size) +
                        " tokens under the same ids, expected at least nine tenths: a draft model "
                        "needs the target's vocabulary",
                    "speculative-config");
}

}  // namespace sluice
