// SPDX-License-Identifier: Apache-2.0
#include "engine/model_runner.h"

#include <xxhash.h>

#include <algorithm>
#include <cstdio>
#include <limits>
#include <thread>

#include "engine/core/log.h"
#include "engine/core/version.h"
#include "engine/models/rank_share.h"
#include "engine/sampling/sampler.h"
#include "engine/weights/gguf_parse.h"
#include "kernels/trace.h"

namespace sluice {
namespace {

std::vector<KvGroupSpec> group_specs(const Model& model, const MemoryPlan& plan) {
  std::vector<KvGroupSpec> specs;
  const std::vector<KvLayout> layouts = model.kv_layouts();
  for (size_t i = 0; i < layouts.size(); ++i) {
    KvGroupSpec spec = layouts[i].spec;
    spec.num_blocks = plan.kv_groups[i].num_blocks;
    specs.push_back(spec);
  }
  return specs;
}

// Which of LongRoPE's two sets of factors is in use, or for what length frequencies were stretched,
// changes what the model computes.
std::string rope_variant(const ModelConfig& model, const MemoryPlan& plan) {
  const DynamicRope& dynamic = model.dynamic_rope;
  if (dynamic.trained_context > 0 && plan.max_model_len > dynamic.trained_context) {
    return "|rope for " + std::to_string(plan.max_model_len);
  }
  const int32_t original = model.long_rope.original_context;
  if (original == 0) return "";
  return plan.max_model_len > original ? "|long rope" : "|short rope";
}

// Of the headers and of the tensors that were packed.
uint64_t content_hash(const Checkpoint& checkpoint, const WeightStore& weights) {
  uint64_t hash = weights.content_hash();
  for (const CheckpointFile& file : checkpoint.files()) {
    hash = XXH3_64bits_withSeed(file.bytes.data(), file.header_bytes, hash);
  }
  return hash;
}

std::string fingerprint_of(uint64_t file_hash,
                           const Config& config,
                           const ModelConfig& model,
                           const MemoryPlan& plan) {
  const std::string key =
      std::string(version()) + "|" + build_id() + (plan.on_device ? "|cuda|" : "|cpu|") +
      std::to_string(config.activation_bits) + "|" + std::string(to_string(plan.kv_dtype)) + "|" +
      std::to_string(file_hash) + rope_variant(model, plan);
  char text[24];
  std::snprintf(text,
                sizeof text,
                "fp_%016llx",
                static_cast<unsigned long long>(XXH3_64bits(key.data(), key.size())));
  return text;
}

using Pages = AlignedBuffer::Pages;

// The ranks of the CPU share its threads; of GPUs the host's work is rank 0's.
Expected<std::unique_ptr<kernels::Device>> make_device(const Config& config,
                                                       DeviceType type,
                                                       const Placement& placement,
                                                       int32_t rank) {
  const int32_t ranks = config.tensor_parallel_size;
  if (type == DeviceType::kCuda) {
    return kernels::Device::create(
        {.type = type,
         .isa = config.isa,
         .threads = rank == 0 ? config.threads : 1,
         .number = rank,
         .placement = rank == 0 ? placement : placement.share(rank, ranks)});
  }
  return kernels::Device::create(
      {.type = type,
       .isa = config.isa,
       .threads = ranks == 1 ? config.threads : threads_per_rank(config, placement),
       .placement = placement.share(rank, ranks)});
}

Expected<std::vector<std::unique_ptr<kernels::Device>>> make_devices(const Config& config,
                                                                     DeviceType type,
                                                                     const Placement& placement) {
  std::vector<std::unique_ptr<kernels::Device>> devices(
      static_cast<size_t>(config.tensor_parallel_size));
  // From the last on: where there are not so many GPUs, none is opened.
  for (size_t rank = devices.size(); rank-- > 0;) {
    SLUICE_TRY(devices[rank], make_device(config, type, placement, static_cast<int32_t>(rank)));
  }
  return devices;
}

int64_t least_free_bytes(std::span<const std::unique_ptr<kernels::Device>> devices) {
  int64_t least = std::numeric_limits<int64_t>::max();
  for (const auto& device : devices) least = std::min(least, device->memory()->free_bytes());
  return least;
}

// body(rank) for each, at the same time, rank 0's on this thread.
template <typename Body>
void side_by_side(int32_t num_ranks, const Body& body) {
  std::vector<std::thread> threads;
  for (int32_t rank = 1; rank < num_ranks; ++rank) threads.emplace_back([&, rank] { body(rank); });
  body(0);
  for (std::thread& thread : threads) thread.join();
}

// What a mapped file does not obey: its pages are the system's cache, shared by whoever maps it.
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

}  // namespace

Placement placement_of(const Config& config) {
  return make_placement(parse_numa_mode(config.numa), config.cpu_strict);
}

LoadFormat load_format(const Config& config) {
  return config.load_format == "dummy" ? LoadFormat::kDummy : LoadFormat::kAuto;
}

int32_t threads_per_rank(const Config& config, const Placement& placement) {
  const int32_t threads =
      config.threads > 0 ? config.threads : kernels::default_num_threads(placement);
  return std::max(1, threads / config.tensor_parallel_size);
}

namespace {

InputBatch::Bounds batch_bounds_of(const StepBounds& bounds,
                                   int32_t max_model_len,
                                   int32_t block_size,
                                   size_t num_groups) {
  return {.max_tokens = bounds.max_tokens,
          .max_seqs = bounds.max_seqs,
          .max_blocks_per_seq = static_cast<int32_t>(ceil_div(max_model_len, block_size)),
          .num_groups = static_cast<int32_t>(num_groups),
          .block_size = block_size};
}

DeviceSampling::Bounds sampling_bounds_of(const Config& config, int32_t vocab_size) {
  return {.max_rows = static_cast<int32_t>(config.max_num_seqs),
          .max_logprobs = static_cast<int32_t>(config.max_logprobs),
          .vocab_size = vocab_size};
}

// Of ranks of the CPU together, of devices of the one with the most.
struct RanksMemory {
  int64_t weight_bytes = 0;
  int64_t arena_bytes = 0;
  int64_t part_bytes = 0;
  int32_t num_kv_heads = 0;  // some ranks may have the same
};

FixedMemory fixed_memory(const Config& config,
                         const PlannedModel& planned,
                         size_t num_kv_groups,
                         const RanksMemory& ranks,
                         const PlanTarget& target) {
  const int32_t vocab = planned.model.vocab_size;
  const int64_t logits_bytes =
      int64_t{vocab} * config.max_num_seqs * static_cast<int64_t>(sizeof(float));
  const int64_t sampler_bytes =
      Sampler::buffer_bytes(vocab, config.max_num_seqs, config.max_logprobs, target.num_threads);
  const int32_t size = config.tensor_parallel_size;
  FixedMemory fixed = {.file_bytes = planned.checkpoint->file_bytes(),
                       .weight_bytes = ranks.weight_bytes,
                       .rope_bytes_per_token = size * planned.model.rope_bytes(1),
                       .arena_bytes = ranks.arena_bytes,
                       .logits_bytes = logits_bytes + sampler_bytes};
  if (target.device == DeviceType::kCpu) return fixed;
  const ModelRank::Bounds bounds = {
      .step = planned.bounds,
      .batch = batch_bounds_of(
          planned.bounds, planned.bounds.max_seq_len, config.block_size, num_kv_groups),
      .largest = planned.largest};
  const DeviceSampling::Bounds sampling = sampling_bounds_of(config, vocab);
  fixed.rope_bytes_per_token = planned.model.rope_bytes(1);
  fixed.arena_bytes += ModelRank::device_bytes(bounds, ranks.part_bytes, size) +
                       DeviceSampling::device_bytes(sampling);
  fixed.logits_bytes = logits_bytes;
  fixed.device_free_bytes = target.free_bytes;
  fixed.num_devices = size;
  fixed.num_recorded_steps = static_cast<int64_t>(DecodeBuckets::sizes_of(config).size());
  fixed.host_bytes = logits_bytes + sampler_bytes + DeviceSampling::host_bytes(sampling) +
                     size * (ModelRank::pinned_bytes(bounds) +
                             std::min(2 * ranks.weight_bytes, DeviceUpload::kBytes));
  return fixed;
}

}  // namespace

Expected<PlannedModel> plan_model(const Config& config, const PlanTarget& target) {
  if (config.tensor_parallel_size > 1 &&
      (config.kv_offloading_size > 0 || !config.kv_disk_path.empty())) {
    return make_error(ErrorCode::kUnsupported,
                      "--tensor-parallel-size: found " +
                          std::to_string(config.tensor_parallel_size) +
                          " with --kv-offloading-size or --kv-disk-path, expected 1 with them",
                      "tensor-parallel-size");
  }
  PlannedModel planned;
  SLUICE_TRY(planned.checkpoint, Checkpoint::open(config.model, load_format(config)));
  SLUICE_TRY(planned.spec, find_model_spec(*planned.checkpoint));
  SLUICE_TRY(planned.model, read_model_config(*planned.spec, *planned.checkpoint));

  // Every step samples at most one row a request; a chunk per request is at least one token. The
  // logits of prompts that are scored come that many rows at a time.
  const auto max_seq_len = static_cast<int32_t>(
      config.max_model_len > 0 ? config.max_model_len : planned.model.context_len);
  planned.bounds = {.max_tokens = std::max(config.max_num_batched_tokens, config.max_num_seqs),
                    .max_seqs = config.max_num_seqs,
                    .max_logits = config.max_num_seqs,
                    .max_seq_len = max_seq_len,
                    .num_threads = target.num_threads,
                    .device = target.device};
  const bool on_device = target.device != DeviceType::kCpu;
  std::optional<WeightStore> names_and_shapes;
  std::unique_ptr<Model> shape;
  RanksMemory ranks;
  for (int32_t rank = 0; rank < config.tensor_parallel_size; ++rank) {
    SLUICE_TRY(const ModelConfig own, share_of(planned.model, rank, config.tensor_parallel_size));
    if (on_device || !names_and_shapes) {
      names_and_shapes.emplace(*planned.checkpoint, target.device);
    }
    SLUICE_TRY(shape,
               planned.spec->build(own,
                                   {.activation_bits = config.activation_bits, .max_model_len = 1},
                                   *names_and_shapes));
    const auto add = [&](auto& total, auto part) {
      total = on_device ? std::max(total, part) : total + part;
    };
    ranks.weight_bytes = std::max(ranks.weight_bytes, names_and_shapes->packed_bytes());
    add(ranks.arena_bytes, shape->arena_bytes(planned.bounds));
    add(ranks.num_kv_heads, own.num_kv_heads);
    ranks.part_bytes = std::max(ranks.part_bytes, shape->max_part_bytes(planned.bounds));
    planned.largest.add(names_and_shapes->largest());
  }
  const std::vector<std::string> unused = names_and_shapes->unused();
  if (!unused.empty()) {
    return make_error(ErrorCode::kUnsupported,
                      config.model + ": tensor " + quoted(unused.front()) + ": found it and " +
                          std::to_string(unused.size() - 1) +
                          " more that have no place in architecture " + planned.model.architecture +
                          ", expected none");
  }
  // A device's weights are in memory of its own: there is nothing to map.
  if (!config.packed_weights_cache.empty() && !planned.checkpoint->is_dummy() &&
      target.device == DeviceType::kCpu) {
    planned.packed = PackedPlace(config.packed_weights_cache,
                                 static_cast<uint64_t>(config.packed_weights_cache_size),
                                 *planned.checkpoint,
                                 names_and_shapes->layout());
  }
  const std::vector<KvLayout> layouts = shape->kv_layouts();
  ModelConfig counted = planned.model;
  counted.num_kv_heads = ranks.num_kv_heads;
  SLUICE_TRY(
      planned.plan,
      plan_memory(
          config, counted, layouts, fixed_memory(config, planned, layouts.size(), ranks, target)));
  planned.plan.weights_mapped = planned.packed.has_file();
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
                    .free_bytes = first.memory() == nullptr ? 0 : least_free_bytes(devices)}));
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
      // Only what its backend lacks is a reason to do without it.
      if (planned || config.device == "cuda" || planned.error().param != "device") return planned;
      log_event(LogLevel::kWarning, "cpu_chosen", "reason", planned.error().message);
    }
  }
  SLUICE_TRY(Devices cpu, make_devices(config, DeviceType::kCpu, placement));
  return plan(std::move(cpu));
}

Expected<std::unique_ptr<ModelRunner>> ModelRunner::create(const Config& config,
                                                           const RankGroups& groups) {
  SLUICE_TRY(PlannedDevices planned, plan_on_devices(config));
  ConnectRanks connect;
  if (planned.model.plan.on_device && planned.devices.size() > 1) {
    Expected<ConnectRanks> found = groups.on_devices();
    if (!found && config.device == "cuda") return tl::unexpected(std::move(found).error());
    if (found) {
      connect = std::move(*found);
    } else {
      log_event(LogLevel::kWarning, "cpu_chosen", "reason", found.error().message);
      Config on_cpu = config;
      on_cpu.device = "cpu";
      SLUICE_TRY(planned, plan_on_devices(on_cpu));
    }
  }
  std::unique_ptr<ModelRunner> runner(new ModelRunner());
  SLUICE_TRY_VOID(runner->load(planned, config));
  if (runner->plan_.on_device) {
    SLUICE_TRY_VOID(runner->start_devices(config, connect));
  } else if (runner->ranks_.size() > 1) {
    runner->connect(groups.on_cpu(static_cast<int32_t>(runner->ranks_.size())));
  }
  if (auto& ranks = runner->ranks_; ranks.size() > 1) {
    runner->followers_ = std::make_unique<Followers>(std::span(ranks).subspan(1));
  }
  return runner;
}

// A group that has failed waits for what was recorded on any rank.
ModelRunner::~ModelRunner() {
  followers_.reset();
  for (const auto& rank : ranks_) rank->drop_recorded();
}

Expected<void> ModelRunner::load(PlannedDevices& planned, const Config& config) {
  PlannedModel& model = planned.model;
  checkpoint_ = std::move(model.checkpoint);
  plan_ = model.plan;
  placement_ = std::move(planned.placement);
  bounds_ = {.step = model.bounds,
             .batch = batch_bounds_of(
                 model.bounds, plan_.max_model_len, plan_.block_size, plan_.kv_groups.size()),
             .largest = model.largest,
             .max_model_len = plan_.max_model_len};
  devices_ = std::move(planned.devices);
  // Vocabularies take as long as the weights of a small model, and other cores.
  Expected<CheckpointText> text;
  std::thread text_reader([&] { text = checkpoint_->text(); });
  Expected<void> made = allocate_weights(model, config);
  if (made) made = make_ranks(model, config);
  text_reader.join();
  SLUICE_TRY_VOID(std::move(made));
  SLUICE_TRY(text_, std::move(text));
  const WeightStore& weights = *weights_.front();
  if (!plan_.on_device) {
    cache_writer_ = model.packed.write(weights.arena(), weights.matrix_hashes());
  }
  fingerprint_ = fingerprint_of(content_hash(*checkpoint_, weights), config, model.model, plan_);
  return {};
}

// Those of devices side by side; on the host they take the same weights.
Expected<void> ModelRunner::make_ranks(const PlannedModel& planned, const Config& config) {
  const int32_t size = config.tensor_parallel_size;
  std::vector<Expected<std::unique_ptr<ModelRank>>> made(static_cast<size_t>(size));
  const auto make = [&](int32_t rank) {
    made[static_cast<size_t>(rank)] = make_rank(planned, config, rank);
  };
  if (plan_.on_device) {
    side_by_side(size, make);
  } else {
    // What one could not take from the store, the next one would take again.
    for (int32_t rank = 0; rank < size && (rank == 0 || made[static_cast<size_t>(rank) - 1]);
         ++rank) {
      make(rank);
    }
  }
  for (auto& rank : made) {
    SLUICE_TRY(ranks_.emplace_back(), std::move(rank));
  }
  return {};
}

// One store for all ranks of the host, which read the same bytes, or one for each device.
Expected<void> ModelRunner::allocate_weights(PlannedModel& planned, const Config& config) {
  using Hashed = WeightStore::Hashed;
  if (plan_.on_device) {
    for (int32_t rank = 0; rank < config.tensor_parallel_size; ++rank) {
      weights_.push_back(std::make_unique<WeightStore>(
          *checkpoint_, DeviceType::kCuda, rank == 0 ? Hashed::kTensors : Hashed::kShares));
    }
    return {};
  }
  WeightStore& weights =
      *weights_.emplace_back(std::make_unique<WeightStore>(*checkpoint_, DeviceType::kCpu));
  auto cache = planned.packed.open();
  plan_.weights_mapped = cache.has_value();
  plan_.placement = placement_text(config, placement_, plan_);
  if (!cache) {
    SLUICE_TRY(const auto arena,
               weights.allocate(plan_.weight_bytes, pages_of(config, Pages::kHuge)));
    place_memory(arena, placement_);
    return {};
  }
  if (const std::string ignored = ignored_by_mapped_weights(config); !ignored.empty()) {
    log_event(LogLevel::kWarning, "mapped_weights_not_placed", "ignored", ignored);
  }
  weights.use(std::move(*cache));
  return {};
}

Expected<std::unique_ptr<ModelRank>> ModelRunner::make_rank(const PlannedModel& planned,
                                                            const Config& config,
                                                            int32_t rank) const {
  const int32_t size = config.tensor_parallel_size;
  const kernels::Device& device = *devices_[static_cast<size_t>(rank)];
  kernels::DeviceMemory* const memory = device.memory();
  WeightStore& weights = *weights_[memory == nullptr ? 0 : static_cast<size_t>(rank)];
  if (memory != nullptr) {
    memory->enter();
    SLUICE_TRY_VOID(weights.allocate_on(*memory, plan_.weight_bytes));
  }
  SLUICE_TRY(const ModelConfig own, share_of(planned.model, rank, size));
  SLUICE_TRY(std::unique_ptr<Model> model,
             planned.spec->build(own,
                                 {.activation_bits = config.activation_bits,
                                  .max_model_len = plan_.max_model_len,
                                  .memory = memory},
                                 weights));
  SLUICE_TRY(auto made,
             ModelRank::create(
                 device, std::move(model), bounds_, plan_, placement_.share(rank, size), config));
  weights.end_uploads();
  return made;
}

void ModelRunner::connect(std::vector<std::unique_ptr<Communicator>> communicators) const {
  CHECK_EQ(communicators.size(), ranks_.size());
  for (size_t i = 0; i < ranks_.size(); ++i) ranks_[i]->connect(std::move(communicators[i]));
}

Expected<void> ModelRunner::start_devices(const Config& config, const ConnectRanks& connect_ranks) {
  if (ranks_.size() > 1) {
    std::vector<DeviceRank> ends;
    for (const auto& rank : ranks_) {
      ends.push_back(rank->device_rank(static_cast<int32_t>(ends.size())));
    }
    SLUICE_TRY(auto communicators, connect_ranks(ends));
    connect(std::move(communicators));
  }
  const auto on_each = [&](const auto& body) -> Expected<void> {
    std::vector<Expected<void>> results(ranks_.size());
    side_by_side(static_cast<int32_t>(ranks_.size()), [&](int32_t i) {
      ModelRank& rank = *ranks_[static_cast<size_t>(i)];
      rank.device().memory()->enter();
      results[static_cast<size_t>(i)] = body(rank);
    });
    // Where one has failed, the others say that a rank has; the reason is its own.
    Expected<void> first = {};
    for (Expected<void>& result : results) {
      if (result) continue;
      if (result.error().code != ErrorCode::kUnavailable) return std::move(result);
      if (first) first = std::move(result);
    }
    return first;
  };
  SLUICE_TRY_VOID(on_each([&](ModelRank& rank) { return rank.warm_up(config); }));
  SLUICE_TRY_VOID(on_each([&](ModelRank& rank) { return rank.record_steps(config); }));
  return add_sampling(config);
}

// What chooses tokens on rank 0's device, and what brings the logits of others to the host.
Expected<void> ModelRunner::add_sampling(const Config& config) {
  kernels::DeviceMemory& memory = *ranks_.front()->device().memory();
  const int64_t logits_bytes =
      bounds_.step.max_logits * int64_t{model().vocab_size} * static_cast<int64_t>(sizeof(float));
  SLUICE_TRY(host_logits_, kernels::DeviceBuffer::allocate_pinned(memory, logits_bytes, "logits"));
  SLUICE_TRY(sampling_,
             DeviceSampling::create(memory, sampling_bounds_of(config, model().vocab_size)));
  ranks_.front()->use_chosen(sampling_->chosen());
  buckets_.emplace(DecodeBuckets::sizes_of(config), plan_.kv_groups.size());
  return {};
}

void ModelRunner::wait_until_backed() const {
  for (const auto& rank : ranks_) rank->wait_until_backed();
}

void ModelRunner::execute(std::span<const KvBlockCopy> copies, const InputBatch& batch) {
  ForwardBatch step = batch.view();
  const std::optional<size_t> bucket =
      buckets_ && batch.prompt_rows().empty() ? buckets_->find(step) : std::nullopt;
  has_logits_ = bucket.has_value() || step.logits_indices.empty();
  if (bucket) step = buckets_->pad(step, *bucket);
  run({.batch = &step,
       .copies = copies,
       .bucket = bucket,
       .begun = sampling_ ? sampling_->begun() : nullptr});
}

void ModelRunner::run(const RankJob& job) {
  if (followers_) followers_->start(job);
  ranks_.front()->run(job);
  if (followers_) followers_->finish();
}

void ModelRunner::compute_logits() {
  if (!has_logits_) run({.kind = RankJob::Kind::kLogits});
}

void ModelRunner::compute_logits(std::span<const int32_t> rows) {
  run({.kind = RankJob::Kind::kLogits, .rows = rows});
}

float* ModelRunner::begin_host_copy(size_t first, size_t count) {
  const size_t row = static_cast<size_t>(model().vocab_size) * sizeof(float);
  kernels::DeviceMemory* const memory = device().memory();
  std::byte* const from = reinterpret_cast<std::byte*>(logits()) + first * row;
  if (memory == nullptr) return reinterpret_cast<float*>(from);
  std::byte* const to = host_logits_.data() + first * row;
  memory->download(to, from, static_cast<int64_t>(count * row));
  is_copying_ = true;
  return reinterpret_cast<float*>(to);
}

void ModelRunner::wait_for_host_copies() {
  if (is_copying_) device().memory()->wait();
  is_copying_ = false;
}

std::vector<KvGroupSpec> ModelRunner::kv_groups() const {
  return group_specs(ranks_.front()->model(), plan_);
}

}  // namespace sluice
