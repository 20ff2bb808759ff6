// SPDX-License-Identifier: Apache-2.0
#include "engine/draft/draft_plan.h"

#include <algorithm>

#include "engine/models/eagle.h"
#include "engine/models/eagle3.h"
#include "engine/models/mtp.h"
#include "engine/rank/decode_buckets.h"
#include "engine/rank/model_rank.h"
#include "engine/weights/device_upload.h"
#include "engine/weights/gguf_parse.h"
#include "engine/weights/override_keys.h"
#include "engine/weights/weight_store.h"

namespace sluice {
namespace {

tl::unexpected<Error> unsupported(const std::string& what) {
  return make_error(ErrorCode::kUnsupported, "speculative-config: " + what, "speculative-config");
}

Expected<int32_t> group_of_all_tokens(const std::vector<LayerGroup>& layouts) {
  for (size_t i = 0; i < layouts.size(); ++i) {
    const KvGroupKind kind = layouts[i].spec.kind;
    if (kind == KvGroupKind::kFull || kind == KvGroupKind::kLatent) return static_cast<int32_t>(i);
  }
  return unsupported(
      "drafting with a model needs a target with a layer that attends to every token, found none");
}

// A windowed layer keeps every token as the other layers do: block tables are the target's.
std::vector<KvGroupSpec> draft_groups(const std::vector<LayerGroup>& layouts) {
  std::vector<KvGroupSpec> groups;
  for (const LayerGroup& layout : layouts) {
    groups.push_back({.kind = KvGroupKind::kFull,
                      .num_layers = layout.spec.num_layers,
                      .planes = layout.spec.planes});
  }
  return groups;
}

// Rows of a pass: one catch-up, or what a step has committed for every request. A head takes all
// rows of a step, plus per request an earlier one, and unknown ones up to a block border.
StepBounds pass_bounds(const Config& config,
                       const PlannedDraft& planned,
                       const StepBounds& target,
                       int64_t max_len) {
  const bool is_head = planned.spec->is_head;
  const int32_t rows = config.max_num_seqs * (planned.num_tokens + 1);
  const int32_t more = config.max_num_seqs * (config.block_size + 1);
  return {.max_tokens = is_head ? target.max_tokens + more : std::max(kMaxDraftCatchUp, rows),
          .max_seqs = config.max_num_seqs,
          .max_logits = config.max_num_seqs,
          .max_seq_len = static_cast<int32_t>(max_len),
          .num_threads = target.num_threads,
          .device = target.device};
}

// Checks that the head reads what the target provides.
Expected<void> fit_head(SpecConfig::ModelKind kind,
                        const std::string& path,
                        const ModelConfig& target,
                        ModelConfig& model) {
  HeadConfig& head = model.head;
  const auto expect = [&](const char* what, int64_t found, int64_t expected) -> Expected<void> {
    if (found == expected) return {};
    return unsupported(path + ": " + what + ": found " + std::to_string(found) +
                       ", the target has " + std::to_string(expected));
  };
  SLUICE_TRY_VOID(expect("tokens", head.target_vocab, target.vocab_size));
  SLUICE_TRY_VOID(expect("hidden size of the target", head.target_hidden, target.hidden));
  if (!head.has_embedding) {
    SLUICE_TRY_VOID(expect("hidden size", model.hidden, target.hidden));
    if (target.embedding_scale != 1) {
      return unsupported(path + ": found no token embedding, and the target's is scaled by " +
                         std::to_string(target.embedding_scale) +
                         "; expected a head with its own, or a target that does not scale it");
    }
  }
  if (kind == SpecConfig::ModelKind::kMtp) return {};  // derived from the target's configuration
  if (kind == SpecConfig::ModelKind::kEagle) {
    head.taps = {target.num_layers + 1};
    // The output layer and what follows it are the target's.
    model.logit_scale = target.logit_scale;
    model.logit_soft_cap = target.logit_soft_cap;
    return {};
  }
  if (head.taps.empty()) {
    SLUICE_TRY(head.taps, usual_taps(target.num_layers));
  }
  if (head.taps.back() < target.num_layers) return {};
  return unsupported(path + ": found layer " + std::to_string(head.taps.back()) +
                     ", the target has " + std::to_string(target.num_layers));
}

// The longest sequence that both models accept; a head's own context is no limit.
Expected<int64_t> longest(const SpecConfig& spec,
                          const ModelConfig& target,
                          const ModelConfig& model) {
  const bool is_head = model.head.target_hidden > 0;
  const int64_t shorter =
      is_head ? target.context_len : std::min(model.context_len, target.context_len);
  if (spec.draft_max_model_len == 0) return shorter;
  if (spec.draft_max_model_len <= shorter) return spec.draft_max_model_len;
  return make_error(ErrorCode::kInvalidArgument,
                    "speculative-config: max_model_len: found " +
                        std::to_string(spec.draft_max_model_len) + ", the models' contexts hold " +
                        std::to_string(shorter),
                    "speculative-config");
}

// Plans everything but weights and KV.
void add_buffers(const Config& config,
                 const Model& shape,
                 int32_t max_seq_len,
                 PlannedDraft& planned) {
  DraftMemory& memory = planned.memory;
  const StepBounds& bounds = planned.bounds;
  const DraftChoice::Bounds choice = choice_bounds_of(planned);
  const HeadRows::Bounds rows = head_rows_bounds_of(bounds);
  const bool is_head = planned.spec->is_head;
  const int64_t logits_row =
      int64_t{planned.model.vocab_size} * static_cast<int64_t>(sizeof(float));
  memory.arena_bytes = shape.arena_bytes(bounds) + logits_row * bounds.max_logits +
                       DraftChoice::bytes(choice, bounds.device, bounds.num_threads) +
                       (is_head ? HeadRows::device_bytes(planned.model.head, rows) : 0);
  if (bounds.device == DeviceType::kCpu) return;
  const ModelRank::Bounds rank = {.step = bounds,
                                  .batch = {.max_tokens = bounds.max_tokens,
                                            .max_seqs = bounds.max_seqs,
                                            .max_rows = bounds.max_logits,
                                            .tables = InputBatch::Bounds::tables_of(
                                                memory.kv_groups, max_seq_len, config.block_size)},
                                  .largest = planned.largest};
  memory.arena_bytes += ModelRank::device_bytes(rank, 0, 1);
  memory.host_bytes = ModelRank::pinned_bytes(rank) +
                      DraftChoice::host_bytes(choice, bounds.num_threads) +
                      (is_head ? HeadRows::pinned_bytes(rows) : 0) +
                      std::min(2 * memory.weight_bytes, DeviceUpload::kBytes);
  const auto num_passes =
      static_cast<int64_t>(DecodeBuckets::sizes_of(config, bounds.max_logits).size());
  memory.num_recorded_layers = num_passes * planned.model.num_layers;
}

}  // namespace

Expected<PlannedDraft> open_draft(const Config& config,
                                  const SpecConfig& spec,
                                  const ModelConfig& target) {
  PlannedDraft planned;
  const LoadFormat format = config.load_format == "dummy" ? LoadFormat::kDummy : LoadFormat::kAuto;
  const bool is_first = spec.model_kind == SpecConfig::ModelKind::kEagle;
  const bool is_mtp = spec.model_kind == SpecConfig::ModelKind::kMtp;
  const bool is_head = is_first || is_mtp || spec.model_kind == SpecConfig::ModelKind::kEagle3;
  const std::string& path = spec.model.empty() ? config.model : spec.model;
  // What is put over the model's keys is meant for its own module too.
  SLUICE_TRY(const std::string overrides,
             model_overrides(path == config.model ? config.hf_overrides : std::string()));
  SLUICE_TRY(
      planned.checkpoint,
      Checkpoint::open(
          path, format, is_mtp ? CheckpointPart::kNextToken : CheckpointPart::kModel, overrides));
  if (is_head && config.pipeline_parallel_size > 1) {
    return unsupported("a head reads the states of all layers, which several stages have: found "
                       "--pipeline-parallel-size " +
                       std::to_string(config.pipeline_parallel_size) + ", expected 1");
  }
  if ((is_first || is_mtp) && config.tensor_parallel_size > 1) {
    return unsupported(std::string("method ") + (is_mtp ? "mtp" : "eagle") +
                       " reads the output layer, which several ranks share: found "
                       "--tensor-parallel-size " +
                       std::to_string(config.tensor_parallel_size) + ", expected 1");
  }
  if (is_mtp) {
    if (planned.checkpoint->tensors().empty() && !planned.checkpoint->is_dummy()) {
      return unsupported(path +
                         ": found no module that guesses further tokens, which method mtp "
                         "drafts with");
    }
    planned.source = DraftSource::kMtp;
    planned.spec = &kMtpSpec;
    SLUICE_TRY(planned.model, mtp_config(target, *planned.checkpoint));
  } else {
    if (is_head) {
      planned.source = DraftSource::kEagle;
      planned.spec = is_first ? &kEagleSpec : &kEagle3Spec;
    } else {
      SLUICE_TRY(planned.spec, find_model_spec(*planned.checkpoint));
    }
    SLUICE_TRY(planned.model, read_model_config(*planned.spec, *planned.checkpoint));
  }
  if (planned.model.is_recurrent()) {
    return unsupported(path + ": found recurrent layers in a model that drafts, whose states keep "
                              "no rejected token apart; expected attention");
  }
  if (is_head) SLUICE_TRY_VOID(fit_head(*spec.model_kind, path, target, planned.model));
  SLUICE_TRY(planned.memory.max_model_len, longest(spec, target, planned.model));
  planned.num_tokens = spec.num_speculative_tokens;
  planned.vocab_size = target.vocab_size;
  return planned;
}

Expected<void> size_draft(const Config& config,
                          const SpecConfig& spec,
                          const Model& target,
                          const std::vector<LayerGroup>& target_layouts,
                          const StepBounds& target_bounds,
                          PlannedDraft& planned) {
  DraftMemory& memory = planned.memory;
  SLUICE_TRY(memory.kv_group, group_of_all_tokens(target_layouts));
  planned.bounds = pass_bounds(config, planned, target_bounds, memory.max_model_len);
  WeightStore shapes(*planned.checkpoint, target_bounds.device);
  SLUICE_TRY(const std::unique_ptr<Model> shape,
             planned.spec->build(planned.model,
                                 {.activation_bits = config.activation_bits,
                                  .max_model_len = 1,
                                  .output = &target.output()},
                                 shapes));
  if (const std::vector<std::string> unused = shapes.unused(); !unused.empty()) {
    return unsupported(planned.checkpoint->path() + ": tensor " + in_quotes(unused.front()) +
                       " has no place in what drafts");
  }
  planned.largest.add(shapes.largest());
  memory.weight_bytes = shapes.packed_bytes();
  memory.rope_bytes_per_token = planned.model.rope_bytes(1);
  SLUICE_TRY(memory.kv_dtype,
             parse_kv_dtype(spec.draft_kv_cache_dtype.empty() ? config.kv_cache_dtype
                                                              : spec.draft_kv_cache_dtype));
  memory.kv_groups = draft_groups(shape->layer_groups(memory.kv_dtype));
  memory.num_own_blocks =
      config.max_num_seqs * static_cast<int32_t>(ceil_div(planned.num_tokens, config.block_size));
  add_buffers(config, *shape, target_bounds.max_seq_len, planned);
  return {};
}

DraftChoice::Bounds choice_bounds_of(const PlannedDraft& planned) {
  return {.vocab_size = planned.vocab_size,
          .num_logits = planned.model.vocab_size,
          .is_mapped = !planned.checkpoint->id_offsets().empty(),
          .max_rows = planned.bounds.max_logits};
}

HeadRows::Bounds head_rows_bounds_of(const StepBounds& bounds) {
  return {.max_rows = bounds.max_tokens, .max_kept = bounds.max_seqs};
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
