// SPDX-License-Identifier: Apache-2.0
#include "engine/plan/model_plan.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <set>
#include <span>

#include "engine/core/log.h"
#include "engine/models/rank_share.h"
#include "engine/parallel/rank_transport.h"
#include "engine/rank/decode_buckets.h"
#include "engine/rank/model_rank.h"
#include "engine/sampling/sampler.h"
#include "engine/spec/spec_config.h"
#include "engine/spec/speculator.h"
#include "engine/weights/causal_flags.h"
#include "engine/weights/device_upload.h"
#include "engine/weights/gguf_parse.h"
#include "engine/weights/override_keys.h"
#include "kvcache/store/kv_storage.h"

namespace sluice {

std::string ignored_by_mapped_weights(const Config& config) {
  std::string flags = config.numa == "off" ? "" : "--numa " + config.numa;
  if (config.huge_pages == "explicit") {
    flags += std::string(flags.empty() ? "" : ", ") + "--huge-pages explicit";
  }
  return flags;
}

std::string placement_text(const Config& config,
                           const Placement& placement,
                           const MemoryPlan& plan) {
  std::string pages = "huge pages " + config.huge_pages;
  if (config.huge_pages == "explicit") {
    int64_t count = 0;
    for (const int64_t bytes :
         {plan.weights_mapped ? 0 : plan.weight_bytes, plan.kv_bytes, plan.arena_bytes}) {
      count += ceil_div(bytes, AlignedBuffer::kHugePageBytes);
    }
    pages += ", " + std::to_string(count) + " of 2 MiB";
  }
  std::string text = placement.describe() + "; " + pages;
  if (const std::string ignored = ignored_by_mapped_weights(config);
      plan.weights_mapped && !ignored.empty()) {
    text += "; mapped weights as the page cache has them, without " + ignored;
  }
  return text;
}

Placement placement_of(const Config& config) {
  return make_placement(parse_numa_mode(config.numa), config.cpu_strict);
}

LoadFormat load_format(const Config& config) {
  return config.load_format == "dummy" ? LoadFormat::kDummy : LoadFormat::kAuto;
}

int32_t threads_per_rank(const Config& config, const Placement& placement) {
  const int32_t threads =
      config.threads > 0 ? config.threads : kernels::default_num_threads(placement);
  return std::max(1, threads / local_ranks(config).at_once);
}

LocalRanks local_ranks(const Config& config) {
  const int32_t of_stage = config.tensor_parallel_size;
  const int32_t count = std::max(1, config.pipeline_parallel_size * of_stage / config.nnodes);
  return {.first = config.node_rank * count, .count = count, .at_once = std::min(count, of_stage)};
}

int32_t num_node_stages(const Config& config) {
  return config.nnodes > 1 ? config.pipeline_parallel_size : 1;
}

Expected<ModelConfig> model_of_rank(const ModelConfig& whole, const Config& config, int32_t rank) {
  const int32_t of_stage = config.tensor_parallel_size;
  ModelConfig own = whole;
  SLUICE_TRY_VOID(take_stage(own, rank / of_stage, config.pipeline_parallel_size));
  return share_of(own, rank % of_stage, of_stage);
}

WeightStore::Kept kept_weights(const Config& config) {
  const bool is_alone = config.nnodes > 1 && local_ranks(config).count == 1;
  return is_alone ? WeightStore::Kept::kShare : WeightStore::Kept::kAll;
}

int32_t max_chosen_rows(const Config& config) {
  constexpr int32_t kMost = 512;  // unless more requests run
  const Expected<SpecConfig> speculation = parse_spec_config(config.speculative_config);
  if (!speculation || !speculation->has_method()) return config.max_num_seqs;
  const int64_t wanted = int64_t{config.max_num_seqs} * (1 + speculation->num_speculative_tokens);
  return std::max(config.max_num_seqs, static_cast<int32_t>(std::min<int64_t>(wanted, kMost)));
}

InputBatch::Bounds batch_bounds_of(const StepBounds& bounds,
                                   int32_t max_model_len,
                                   int32_t block_size,
                                   std::span<const KvGroupSpec> groups) {
  return {.max_tokens = bounds.max_tokens,
          .max_seqs = bounds.max_seqs,
          .max_rows = bounds.max_logits,
          .tables = InputBatch::Bounds::tables_of(groups, max_model_len, block_size)};
}

int64_t host_rows_bytes(const ModelConfig& model, int64_t num_rows) {
  return num_rows * std::max(model.vocab_size, model.hidden) * static_cast<int64_t>(sizeof(float));
}

int32_t most_recorded_rows(const StepBounds& bounds) {
  return std::min(bounds.max_logits, bounds.max_tokens);
}

DeviceSampling::Bounds sampling_bounds_of(const Config& config, int32_t vocab_size) {
  return {.max_rows = max_chosen_rows(config),
          .max_logprobs = static_cast<int32_t>(config.max_logprobs),
          .vocab_size = vocab_size};
}

namespace {

// CPU ranks share the machine's threads; with GPUs, rank 0 does the host's work.
Expected<std::unique_ptr<kernels::Device>> make_device(const Config& config,
                                                       DeviceType type,
                                                       const Placement& placement,
                                                       int32_t rank) {
  const int32_t ranks = local_ranks(config).at_once;
  if (type == DeviceType::kCuda) {
    return kernels::Device::create(
        {.type = type,
         .isa = config.isa,
         .threads = rank == 0 && config.node_rank == 0 ? config.threads : 1,
         .number = rank,
         .placement = rank == 0 ? placement : placement.share(rank, ranks)});
  }
  return kernels::Device::create(
      {.type = type,
       .isa = config.isa,
       .threads = ranks == 1 ? config.threads : threads_per_rank(config, placement),
       .placement = placement.share(rank % ranks, ranks)});
}

Expected<std::vector<std::unique_ptr<kernels::Device>>> make_devices(const Config& config,
                                                                     DeviceType type,
                                                                     const Placement& placement) {
  std::vector<std::unique_ptr<kernels::Device>> devices(
      static_cast<size_t>(local_ranks(config).count));
  // The last one first: when there are too few GPUs, none is opened.
  for (size_t rank = devices.size(); rank-- > 0;) {
    SLUICE_TRY(devices[rank], make_device(config, type, placement, static_cast<int32_t>(rank)));
  }
  return devices;
}

// All CPUs compute the same bits. A GPU's generation decides how its tensor cores add up and which
// kernels run; whether two models of one generation agree is not known.
std::string processor_of(std::span<const std::unique_ptr<kernels::Device>> devices) {
  if (devices.front()->type() == DeviceType::kCpu) return "cpu";
  std::set<std::string> names;
  for (const auto& device : devices) names.insert(device->name());
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : "+") + name;
  return text;
}

int64_t least_free_bytes(std::span<const std::unique_ptr<kernels::Device>> devices) {
  int64_t least = std::numeric_limits<int64_t>::max();
  for (const auto& device : devices) least = std::min(least, device->memory().free_bytes());
  return least;
}

// Memory of all CPU ranks together, or of the device that needs most.
struct RanksMemory {
  int64_t weight_bytes = 0;
  int64_t arena_bytes = 0;
  ExchangeSizes exchange;
  std::vector<LayerGroup> layouts;  // heads summed over ranks, which may replicate some
  std::vector<int32_t> num_layers = {};  // that this process has of each of them
};

// Combines one rank's heads of each plane into `totals` by `add`.
template <typename Add>
void add_heads(std::vector<LayerGroup>& totals,
               const std::vector<LayerGroup>& rank,
               const Add& add) {
  if (totals.empty()) {
    totals = rank;
    return;
  }
  for (size_t group = 0; group < totals.size(); ++group) {
    for (size_t plane = 0; plane < totals[group].spec.planes.size(); ++plane) {
      add(totals[group].spec.planes[plane].num_heads, rank[group].spec.planes[plane].num_heads);
    }
  }
}

// Without a configured method, proposers only follow clients' predictions and grammars.
int64_t proposer_bytes(const Config& config, int32_t max_length) {
  const Expected<SpecConfig> speculation = parse_spec_config(config.speculative_config);
  if (!speculation || !(speculation->ngram || speculation->suffix)) return 0;
  return Speculator::max_memory_bytes(*speculation, config.max_num_seqs, max_length);
}

// Bytes in which a process receives the parts of ranks in others.
int64_t exchange_bytes(const Config& config,
                       const PlanTarget& target,
                       const ExchangeSizes& sizes) {
  if (config.nnodes == 1 || target.device != DeviceType::kCpu) return 0;
  return rank_transport_bytes(config.node_rank, config.nnodes, sizes);
}

FixedMemory fixed_memory(const Config& config,
                         const PlannedModel& planned,
                         const RanksMemory& ranks,
                         const PlanTarget& target) {
  const int32_t vocab = planned.model.vocab_size;
  const int64_t logits_bytes =
      int64_t{vocab} * max_chosen_rows(config) * static_cast<int64_t>(sizeof(float));
  const int64_t sampler_bytes = Sampler::buffer_bytes(
      vocab, max_chosen_rows(config), config.max_logprobs, target.num_threads);
  const bool chooses = config.node_rank == 0;
  const int32_t size = local_ranks(config).count;
  FixedMemory fixed = {.file_bytes = planned.checkpoint->file_bytes(),
                       .weight_bytes = ranks.weight_bytes,
                       .rope_bytes_per_token = size * planned.model.rope_bytes(1),
                       .arena_bytes =
                           ranks.arena_bytes + exchange_bytes(config, target, ranks.exchange),
                       .logits_bytes = chooses ? logits_bytes + sampler_bytes : 0,
                       .proposer_bytes = proposer_bytes(config, planned.bounds.max_seq_len),
                       .host_free_bytes = available_memory_bytes()};
  if (target.device == DeviceType::kCpu) return fixed;
  std::vector<KvGroupSpec> groups;
  for (const LayerGroup& layout : ranks.layouts) groups.push_back(layout.spec);
  const ModelRank::Bounds bounds = {
      .step = planned.bounds,
      .batch =
          batch_bounds_of(planned.bounds, planned.bounds.max_seq_len, config.block_size, groups),
      .largest = planned.largest};
  const DeviceSampling::Bounds sampling = sampling_bounds_of(config, vocab);
  fixed.rope_bytes_per_token = planned.model.rope_bytes(1);
  const int32_t num_ranks = config.tensor_parallel_size;
  fixed.arena_bytes += ModelRank::device_bytes(bounds, ranks.exchange.part_bytes, num_ranks) +
                       ModelRank::window_bytes(config) + DeviceSampling::device_bytes(sampling);
  fixed.logits_bytes = logits_bytes;
  fixed.device_free_bytes = target.free_bytes;
  fixed.num_devices = size;
  fixed.has_nccl = num_ranks > 1;
  fixed.num_recorded_steps = static_cast<int64_t>(
      DecodeBuckets::sizes_of(config, most_recorded_rows(planned.bounds)).size());
  fixed.host_bytes = host_rows_bytes(planned.model, max_chosen_rows(config)) + sampler_bytes +
                     DeviceSampling::host_bytes(sampling) +
                     size * (ModelRank::pinned_bytes(bounds) +
                             std::min(2 * ranks.weight_bytes, DeviceUpload::kBytes));
  return fixed;
}

tl::unexpected<Error> wrong_number(const char* knob, int64_t value, const std::string& rule) {
  return make_error(ErrorCode::kInvalidArgument,
                    "--" + std::string(knob) + ": found " + std::to_string(value) + ", " + rule,
                    knob);
}

// Refuses numbers of ranks that nodes do not add up to.
Expected<void> check_counts(const Config& config) {
  if (config.node_rank >= config.nnodes) {
    return wrong_number("node-rank",
                        config.node_rank,
                        "expected less than --nnodes, " + std::to_string(config.nnodes));
  }
  if (config.nnodes == 1) return {};
  const std::string nodes = std::to_string(config.nnodes);
  const int32_t stages = config.pipeline_parallel_size;
  const int32_t of_stage = config.tensor_parallel_size;
  if (stages > 1 && stages != config.nnodes && stages * of_stage != config.nnodes) {
    std::string rule = "expected --nnodes, " + nodes + ": each node has one stage";
    if (of_stage > 1) {
      rule += "; or --nnodes " + std::to_string(stages * of_stage) + ": each has one of the " +
              std::to_string(of_stage) + " ranks of a stage";
    }
    return wrong_number("pipeline-parallel-size", stages, rule);
  }
  if (stages == 1 && of_stage != config.nnodes) {
    return wrong_number("tensor-parallel-size",
                        config.tensor_parallel_size,
                        "expected --nnodes, " + nodes + ": each node has one rank");
  }
  return {};
}

// Refuses what ranks in several processes do not have.
Expected<void> check_nodes(const Config& config, const PlanTarget& target) {
  SLUICE_TRY_VOID(check_counts(config));
  if (config.nnodes == 1) return {};
  const auto refuse = [](const std::string& knob, const char* why, const char* param = nullptr) {
    return make_error(ErrorCode::kUnsupported,
                      "--nnodes: found more than 1 with --" + knob + ": " + why,
                      param == nullptr ? knob : param);
  };
  const std::string& transport = config.kv_transport;
  // Processes of one machine would find the same GPU, and one without a GPU could not follow.
  if (target.device != DeviceType::kCpu && config.device == "auto") {
    return refuse("device auto", "ranks are on GPUs where --device cuda says so", "device");
  }
  if (target.device != DeviceType::kCpu && transport != "auto" && transport != "nccl") {
    return refuse("kv-transport", "ranks on GPUs take auto or nccl");
  }
  if (target.device == DeviceType::kCpu && (transport == "cuda_ipc" || transport == "nccl")) {
    return refuse("kv-transport", "ranks on CPUs take auto, shm or tcp");
  }
  if (!config.kv_listen.empty()) {
    return refuse("kv-listen", "another worker's KV reaches one process alone");
  }
  return {};
}

// Refuses what stages do not have.
Expected<void> check_stages(const Config& config, const PlanTarget& target) {
  if (config.pipeline_parallel_size == 1) return {};
  const auto refuse = [](const char* knob, const char* why) {
    return make_error(
        ErrorCode::kUnsupported,
        "--pipeline-parallel-size: found more than 1 with --" + std::string(knob) + ": " + why,
        knob);
  };
  if (target.device != DeviceType::kCpu) return refuse("device", "stages are on CPUs");
  if (!config.kv_listen.empty()) {
    return refuse("kv-listen", "another worker's KV has all layers");
  }
  return {};
}

Expected<void> check_ranks(const Config& config, const PlanTarget& target) {
  SLUICE_TRY_VOID(check_nodes(config, target));
  SLUICE_TRY_VOID(check_stages(config, target));
  const bool has_tier = config.kv_offloading_size > 0 || !config.kv_disk_path.empty();
  const bool has_ranks = config.tensor_parallel_size > 1;
  if (!has_tier || !(has_ranks || config.pipeline_parallel_size > 1)) return {};
  const char* const knob = has_ranks ? "tensor-parallel-size" : "pipeline-parallel-size";
  return make_error(
      ErrorCode::kUnsupported,
      "--" + std::string(knob) + ": found " +
          std::to_string(has_ranks ? config.tensor_parallel_size : config.pipeline_parallel_size) +
          " with --kv-offloading-size or --kv-disk-path, expected 1 with them",
      knob);
}

// Counts the drafts that a request's state takes back. Without a method there are none, also where
// a client predicts: room for them is up to a sixth of a state.
void plan_states(const SpecConfig& spec, ModelConfig& model) {
  if (model.is_recurrent() && spec.has_method()) model.most_drafts = spec.num_speculative_tokens;
}

// Latents have no codes with scales: which would serve has yet to be measured.
Expected<void> check_latents(const Config& config, DType kv_dtype, const ModelConfig& model) {
  if (!model.has_latents() || !kernels::has_kv_scales(kv_dtype)) return {};
  return make_error(ErrorCode::kUnsupported,
                    "--kv-cache-dtype: found " + config.kv_cache_dtype +
                        " with a model of architecture " + model.architecture +
                        ", whose attention caches latents: expected bfloat16, float16 or float32",
                    "kv-cache-dtype");
}

Expected<void> check_all_used(const ModelConfig& model, const WeightStore& weights) {
  const std::vector<std::string> unused = weights.unused();
  if (unused.empty()) return {};
  return make_error(ErrorCode::kUnsupported,
                    weights.place_of(unused.front()) + ": found it and " +
                        std::to_string(unused.size() - 1) +
                        " more that have no place in architecture " + model.architecture +
                        ", expected none");
}

}  // namespace

int32_t max_step_tokens(const Config& config, const ModelConfig& model) {
  if (!model.is_encoder) return config.max_num_batched_tokens;
  const int32_t longest = config.max_model_len > 0
                              ? std::min(static_cast<int32_t>(config.max_model_len),
                                         model.context_len)
                              : model.context_len;
  return std::max(config.max_num_batched_tokens, longest);
}

std::vector<int32_t> taps_of(const PlannedModel& planned) {
  return planned.draft ? planned.draft->model.head.taps : std::vector<int32_t>();
}

namespace {

// Models without data.
struct RankShapes {
  std::optional<WeightStore> store;  // what this process reads; on devices, the last rank's
  std::unique_ptr<Model> model;      // the last rank's
  RanksMemory memory;
};

Expected<std::unique_ptr<Model>> shape_of(const Config& config,
                                          const PlannedModel& planned,
                                          const ModelConfig& model,
                                          WeightStore& names_and_shapes) {
  return planned.spec->build(model,
                             {.activation_bits = config.activation_bits,
                              .max_model_len = 1,
                              .taps = taps_of(planned)},
                             names_and_shapes);
}

// Checks the whole model of which `shapes` is a stage, and counts layers: the groups get the most
// that any stage has of them, so that all plan as many blocks.
Expected<void> add_stages(const Config& config,
                          const PlannedModel& planned,
                          DType kv_dtype,
                          RankShapes& shapes) {
  const int32_t num_stages = config.pipeline_parallel_size;
  WeightStore all = shapes.store->without_data();
  SLUICE_TRY(const ModelConfig whole, share_of(planned.model, 0, config.tensor_parallel_size));
  SLUICE_TRY(const std::unique_ptr<Model> model, shape_of(config, planned, whole, all));
  SLUICE_TRY_VOID(check_all_used(planned.model, all));
  const std::vector<LayerGroup> groups = model->layer_groups(kv_dtype);
  const bool has_all = config.nnodes == 1;  // their ranks take turns
  for (size_t i = 0; i < groups.size(); ++i) {
    int32_t& most = shapes.memory.layouts[i].spec.num_layers;
    shapes.memory.num_layers.push_back(has_all ? groups[i].spec.num_layers : most);
    most = shapes.memory.num_layers.back();
  }
  for (int32_t stage = 0; stage < num_stages && !has_all; ++stage) {
    ModelConfig part = planned.model;
    SLUICE_TRY_VOID(take_stage(part, stage, num_stages));
    for (size_t i = 0; i < groups.size(); ++i) {
      const auto count = std::ranges::count_if(groups[i].layers, [&](int32_t layer) {
        return part.has_layer(layer % part.num_layers);
      });
      int32_t& most = shapes.memory.layouts[i].spec.num_layers;
      most = std::max(most, static_cast<int32_t>(count));
    }
  }
  return {};
}

Expected<RankShapes> shape_ranks(const Config& config,
                                 const PlanTarget& target,
                                 DType kv_dtype,
                                 PlannedModel& planned) {
  const bool on_device = target.device != DeviceType::kCpu;
  const LocalRanks local = local_ranks(config);
  RankShapes shapes;
  for (int32_t i = 0; i < local.count; ++i) {
    SLUICE_TRY(const ModelConfig own, model_of_rank(planned.model, config, local.first + i));
    if (on_device || !shapes.store) {
      shapes.store.emplace(*planned.checkpoint, target.device, kept_weights(config));
    }
    SLUICE_TRY(shapes.model, shape_of(config, planned, own, *shapes.store));
    const auto add = [&](auto& total, auto part) {
      total = on_device ? std::max(total, part) : total + part;
    };
    RanksMemory& ranks = shapes.memory;
    ranks.weight_bytes = std::max(ranks.weight_bytes, shapes.store->packed_bytes());
    add(ranks.arena_bytes, shapes.model->arena_bytes(planned.bounds));
    // Other stages have the same heads.
    if (i < local.at_once) add_heads(ranks.layouts, shapes.model->layer_groups(kv_dtype), add);
    const ExchangeSizes sizes = ModelRank::exchange_sizes(*shapes.model, planned.bounds);
    const int64_t part_bytes = std::max(ranks.exchange.part_bytes, sizes.part_bytes);
    ranks.exchange = sizes;
    ranks.exchange.part_bytes = part_bytes;
    planned.largest.add(shapes.store->largest());
  }
  if (config.pipeline_parallel_size > 1) {
    SLUICE_TRY_VOID(add_stages(config, planned, kv_dtype, shapes));
  } else {
    SLUICE_TRY_VOID(check_all_used(planned.model, *shapes.store));
  }
  return shapes;
}

// Counts the bytes of blocks by the layers that this process has, and names these.
void plan_stage(const Config& config,
                const ModelConfig& model,
                const RanksMemory& ranks,
                MemoryPlan& plan) {
  if (ranks.num_layers.empty()) return;
  plan.kv_bytes = 0;
  plan.state_bytes = 0;
  for (size_t i = 0; i < plan.kv_groups.size(); ++i) {
    KvGroupSpec& group = plan.kv_groups[i];
    group.num_layers = ranks.num_layers[i];
    const int64_t bytes = group.num_blocks * kv_block_bytes(group, plan.block_size);
    plan.kv_bytes += bytes;
    if (group.kind == KvGroupKind::kState) plan.state_bytes += bytes;
  }
  const std::string stages = std::to_string(config.pipeline_parallel_size) + " stages";
  ModelConfig own = model;
  const bool is_one = config.nnodes > 1;
  const int32_t stage = local_ranks(config).first / config.tensor_parallel_size;
  if (!is_one || !take_stage(own, stage, config.pipeline_parallel_size)) {
    plan.layers = "all of " + stages;
    return;
  }
  plan.layers = std::to_string(own.first_layer()) + " to " + std::to_string(own.end_layer() - 1) +
                " of " + std::to_string(own.num_layers) + ", stage " + std::to_string(stage) +
                " of " + stages;
}

}  // namespace

Expected<PlannedModel> plan_model(const Config& config, const PlanTarget& target) {
  SLUICE_TRY_VOID(check_ranks(config, target));
  PlannedModel planned;
  SLUICE_TRY(const std::string overrides, model_overrides(config.hf_overrides));
  SLUICE_TRY(
      planned.checkpoint,
      Checkpoint::open(config.model, load_format(config), CheckpointPart::kModel, overrides));
  SLUICE_TRY(planned.spec, find_model_spec(*planned.checkpoint));
  SLUICE_TRY(const std::optional<bool> is_causal, causal_override(config));
  if (is_causal) planned.checkpoint->override_causal(*is_causal);
  SLUICE_TRY(planned.model, read_model_config(*planned.spec, *planned.checkpoint));
  SLUICE_TRY(const SpecConfig spec, parse_spec_config(config.speculative_config));
  plan_states(spec, planned.model);
  if (spec.has_model()) {
    SLUICE_TRY(planned.draft, open_draft(config, spec, planned.model));
  }
  // One chunk per request needs at least one token. Logits of scored prompts are computed in
  // batches as large as the rows that may choose a token.
  const auto max_seq_len = static_cast<int32_t>(
      config.max_model_len > 0 ? config.max_model_len : planned.model.context_len);
  planned.bounds = {.max_tokens =
                        std::max(max_step_tokens(config, planned.model), config.max_num_seqs),
                    .max_seqs = config.max_num_seqs,
                    .max_logits = max_chosen_rows(config),
                    .max_seq_len = max_seq_len,
                    .num_threads = target.num_threads,
                    .device = target.device};
  SLUICE_TRY(const DType kv_dtype, kv_dtype_of(config.kv_cache_dtype, planned.model));
  SLUICE_TRY_VOID(check_latents(config, kv_dtype, planned.model));
  SLUICE_TRY(const RankShapes shapes, shape_ranks(config, target, kv_dtype, planned));
  const RanksMemory& ranks = shapes.memory;
  // A device's weights are in its own memory: there is nothing to map.
  if (!config.packed_weights_cache.empty() && !planned.checkpoint->is_dummy() &&
      target.device == DeviceType::kCpu) {
    planned.packed = PackedPlace(config.packed_weights_cache,
                                 static_cast<uint64_t>(config.packed_weights_cache_size),
                                 *planned.checkpoint,
                                 shapes.store->layout());
  }
  FixedMemory fixed = fixed_memory(config, planned, ranks, target);
  if (planned.draft) {
    SLUICE_TRY_VOID(
        size_draft(config, spec, *shapes.model, ranks.layouts, planned.bounds, *planned.draft));
    fixed.file_bytes += planned.draft->checkpoint->file_bytes();
    fixed.draft = planned.draft->memory;
  }
  SLUICE_TRY(planned.plan, plan_memory(config, planned.model, ranks.layouts, fixed));
  plan_stage(config, planned.model, ranks, planned.plan);
  planned.plan.weights_mapped = planned.packed.has_file();
  planned.plan.weight_types = shapes.store->types_text();
  return planned;
}

Expected<PlannedDevices> plan_on_devices(const Config& config) {
  const Placement placement = placement_of(config);
  using Devices = std::vector<std::unique_ptr<kernels::Device>>;
  const auto plan = [&](Devices devices) -> Expected<PlannedDevices> {
    const kernels::Device& first = *devices.front();
    SLUICE_TRY(
        PlannedModel model,
        plan_model(config,
                   {.device = first.type(),
                    .num_threads = first.num_threads(),
                    .free_bytes = least_free_bytes(devices)}));
    model.plan.processor = processor_of(devices);
    model.plan.placement = placement_text(config, placement, model.plan);
    return PlannedDevices{std::move(devices), std::move(model), placement};
  };
  if (config.device != "cpu") {
    Expected<Devices> gpus = make_devices(config, DeviceType::kCuda, placement);
    if (!gpus && config.device == "cuda") return tl::unexpected(std::move(gpus).error());
    if (!gpus) {
      const bool is_there = gpus.error().code != ErrorCode::kUnsupported;
      log_event(is_there ? LogLevel::kWarning : LogLevel::kDebug,
                "cpu_chosen",
                "reason",
                gpus.error().message);
    } else {
      Expected<PlannedDevices> planned = plan(std::move(*gpus));
      // A device is given up only for what its backend lacks.
      if (planned || config.device == "cuda" || planned.error().param != "device") return planned;
      log_event(LogLevel::kWarning, "cpu_chosen", "reason", planned.error().message);
    }
  }
  SLUICE_TRY(Devices cpu, make_devices(config, DeviceType::kCpu, placement));
  return plan(std::move(cpu));
}

}  // namespace sluice
