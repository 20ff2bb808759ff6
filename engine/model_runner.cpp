// SPDX-License-Identifier: Apache-2.0
#include "engine/model_runner.h"

#include <xxhash.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <system_error>
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
  const std::string key = std::string(version()) + "|" + build_id() +
                          (plan.on_device ? "|cuda|" : "|cpu|") +
                          std::to_string(config.activation_bits) + "|" +
                          std::string(to_string(plan.kv_dtype)) + "|" + std::to_string(file_hash) +
                          rope_variant(model, plan);
  char text[24];
  std::snprintf(text,
                sizeof text,
                "fp_%016llx",
                static_cast<unsigned long long>(XXH3_64bits(key.data(), key.size())));
  return text;
}

// Which layer lives where: the group's index, and the layer's place inside the group.
std::vector<LayerCache> layer_caches(const Model& model, const KvStorage& storage) {
  std::vector<LayerCache> caches(static_cast<size_t>(model.config().num_layers));
  const std::vector<KvLayout> layouts = model.kv_layouts();
  for (size_t group = 0; group < layouts.size(); ++group) {
    for (size_t i = 0; i < layouts[group].layers.size(); ++i) {
      caches[static_cast<size_t>(layouts[group].layers[i])] = {
          .group = static_cast<int32_t>(group),
          .view = storage.layer_view(static_cast<int32_t>(group), static_cast<int32_t>(i))};
    }
  }
  return caches;
}

// The KV of one rank: its heads of every group.
std::vector<KvStorageGroup> rank_groups(const MemoryPlan& plan, const ModelConfig& own) {
  std::vector<KvStorageGroup> groups = plan.kv_groups;
  for (KvStorageGroup& group : groups) group.num_kv_heads = own.num_kv_heads;
  return groups;
}

using Pages = AlignedBuffer::Pages;

// --huge-pages. `transparent`: what the buffer asks for itself.
Pages pages_of(const Config& config, Pages transparent) {
  if (config.huge_pages == "explicit") return Pages::kReserved;
  return config.huge_pages == "off" ? Pages::kSmall : transparent;
}

Expected<std::unique_ptr<kernels::Device>> make_device(const Config& config,
                                                       DeviceType type,
                                                       const Placement& placement,
                                                       int32_t rank) {
  const int32_t ranks = config.tensor_parallel_size;
  return kernels::Device::create(
      {.type = type,
       .isa = config.isa,
       .threads = ranks == 1 ? config.threads : threads_per_rank(config, placement),
       .placement = placement.share(rank, ranks)});
}

// Where the system refuses, memory lies where it is first touched, which is slower and no error.
void place(std::span<std::byte> bytes, const Placement& placement) {
  if (bind_memory(bytes, placement)) return;
  log_event(LogLevel::kWarning,
            "memory_not_placed",
            "reason",
            "mbind: " + std::generic_category().message(errno));
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

DeviceSampling::Bounds sampling_bounds_of(const Config& config) {
  return {.max_rows = static_cast<int32_t>(config.max_num_seqs),
          .max_logprobs = static_cast<int32_t>(config.max_logprobs)};
}

// What the model's ranks need besides their KV; `arena_bytes`: their activations.
FixedMemory fixed_memory(const Config& config,
                         const PlannedModel& planned,
                         size_t num_kv_groups,
                         int64_t arena_bytes,
                         const WeightStore& weights,
                         const PlanTarget& target) {
  const int32_t vocab = planned.model.vocab_size;
  const int64_t logits_bytes =
      int64_t{vocab} * config.max_num_seqs * static_cast<int64_t>(sizeof(float));
  const int64_t sampler_bytes = Sampler::buffer_bytes(
      vocab, config.max_num_seqs, config.max_logprobs, target.num_threads);
  FixedMemory fixed = {
      .file_bytes = planned.checkpoint->file_bytes(),
      .weight_bytes = weights.packed_bytes(),
      .rope_bytes_per_token = config.tensor_parallel_size * planned.model.rope_bytes(1),
      .arena_bytes = arena_bytes,
      .logits_bytes = logits_bytes + sampler_bytes};
  if (target.device == DeviceType::kCpu) return fixed;
  const int64_t batch_bytes = DeviceBatch::bytes(batch_bounds_of(
      planned.bounds, planned.bounds.max_seq_len, config.block_size, num_kv_groups));
  const DeviceSampling::Bounds sampling = sampling_bounds_of(config);
  fixed.arena_bytes += batch_bytes + DeviceSampling::device_bytes(sampling) +
                       kernels::workspace_bytes(
                           target.device, planned.bounds.max_tokens, weights.max_outputs());
  fixed.logits_bytes = logits_bytes;
  fixed.device_free_bytes = target.free_bytes;
  fixed.num_recorded_steps = static_cast<int64_t>(DecodeBuckets::sizes_of(config).size());
  fixed.host_bytes = logits_bytes + sampler_bytes + batch_bytes +
                     DeviceSampling::host_bytes(sampling) +
                     std::min(weights.packed_bytes(), DeviceUpload::kPieceBytes);
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
  WeightStore names_and_shapes(*planned.checkpoint, target.device);
  std::unique_ptr<Model> shape;
  int64_t arena_bytes = 0;
  ModelConfig counted = planned.model;  // with the KV heads of all ranks: some may have the same
  counted.num_kv_heads = 0;
  for (int32_t rank = 0; rank < config.tensor_parallel_size; ++rank) {
    SLUICE_TRY(const ModelConfig own, share_of(planned.model, rank, config.tensor_parallel_size));
    SLUICE_TRY(shape,
               planned.spec->build(own,
                                   {.activation_bits = config.activation_bits, .max_model_len = 1},
                                   names_and_shapes));
    arena_bytes += shape->arena_bytes(planned.bounds);
    counted.num_kv_heads += own.num_kv_heads;
  }
  const std::vector<std::string> unused = names_and_shapes.unused();
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
    planned.packed =
        PackedPlace(config.packed_weights_cache,
                    static_cast<uint64_t>(config.packed_weights_cache_size),
                    *planned.checkpoint,
                    names_and_shapes.layout());
  }
  const std::vector<KvLayout> layouts = shape->kv_layouts();
  SLUICE_TRY(
      planned.plan,
      plan_memory(
          config,
          counted,
          layouts,
          fixed_memory(config, planned, layouts.size(), arena_bytes, names_and_shapes, target)));
  planned.plan.weights_mapped = planned.packed.has_file();
  return planned;
}

Expected<PlannedDevice> plan_on_device(const Config& config) {
  const Placement placement = placement_of(config);
  const auto plan = [&](std::unique_ptr<kernels::Device> device) -> Expected<PlannedDevice> {
    const kernels::DeviceMemory* const memory = device->memory();
    SLUICE_TRY(PlannedModel model,
               plan_model(config,
                          {.device = device->type(),
                           .num_threads = device->num_threads(),
                           .free_bytes = memory == nullptr ? 0 : memory->free_bytes()}));
    model.plan.placement = placement_text(config, placement, model.plan);
    return PlannedDevice{std::move(device), std::move(model), placement};
  };
  const bool has_ranks = config.tensor_parallel_size > 1;
  if (has_ranks && config.device == "cuda") {
    return make_error(ErrorCode::kUnsupported,
                      "--tensor-parallel-size: found " +
                          std::to_string(config.tensor_parallel_size) +
                          " with --device cuda, expected 1 with it",
                      "tensor-parallel-size");
  }
  if (config.device != "cpu" && !has_ranks) {
    Expected<std::unique_ptr<kernels::Device>> gpu = 
        make_device(config, DeviceType::kCuda, placement, 0);
    if (!gpu && config.device == "cuda") return tl::unexpected(std::move(gpu).error());
    if (!gpu) {
      log_event(LogLevel::kDebug, "cpu_chosen", "reason", gpu.error().message);
    } else {
      Expected<PlannedDevice> planned = plan(std::move(*gpu));
      // Only what its backend lacks is a reason to do without it.
      if (planned || config.device == "cuda" || planned.error().param != "device") return planned;
      log_event(LogLevel::kWarning, "cpu_chosen", "reason", planned.error().message);
    }
  }
  SLUICE_TRY(auto cpu, make_device(config, DeviceType::kCpu, placement, 0));
  return plan(std::move(cpu));
}

Expected<std::unique_ptr<ModelRunner>> ModelRunner::create(const Config& config,
                                                           const MakeRanks& make_ranks) {
  SLUICE_TRY(PlannedDevice planned, plan_on_device(config));
  const MemoryPlan& plan = planned.model.plan;
  const int32_t ranks = config.tensor_parallel_size;
  SLUICE_TRY(const ModelConfig own, share_of(planned.model.model, 0, ranks));
  SLUICE_TRY(KvStorage storage,
             KvStorage::create(rank_groups(plan, own),
                               plan.kv_dtype,
                               plan.block_size,
                               pages_of(config, Pages::kSmall),
                               planned.device->memory()));
  if (!plan.on_device) place(storage.bytes(), planned.placement.share(0, ranks));
  std::unique_ptr<ModelRunner> runner(new ModelRunner(
      batch_bounds_of(
          planned.model.bounds, plan.max_model_len, plan.block_size, plan.kv_groups.size()),
      std::move(storage)));
  runner->device_ = std::move(planned.device);
  runner->placement_ = std::move(planned.placement);
  SLUICE_TRY_VOID(runner->load_model(planned.model, own, config));
  SLUICE_TRY_VOID(runner->allocate(planned.model.bounds, config));
  runner->caches_ = layer_caches(*runner->model_, runner->kv_storage_);
  if (!runner->plan_.on_device) {
    runner->prefault_ =
        std::make_unique<Prefault>(runner->kv_storage_.bytes(), config.huge_pages == "transparent");
  }
  if (ranks > 1) SLUICE_TRY_VOID(runner->add_followers(config, planned.model, make_ranks(ranks)));
  if (runner->plan_.on_device) SLUICE_TRY_VOID(runner->record_steps(config));
  return runner;
}

Expected<void> ModelRunner::load_model(PlannedModel& planned,
                                       const ModelConfig& own,
                                       const Config& config) {
  checkpoint_ = std::move(planned.checkpoint);
  plan_ = planned.plan;
  // Vocabularies take as long as the weights of a small model, and other cores.
  Expected<CheckpointText> text;
  std::thread text_reader([&] { text = checkpoint_->text(); });
  weights_ = std::make_unique<WeightStore>(*checkpoint_, device_->type());
  Expected<std::unique_ptr<Model>> model = [&]() -> Expected<std::unique_ptr<Model>> {
    auto cache = planned.packed.open();
    plan_.weights_mapped = cache.has_value();
    plan_.placement = placement_text(config, placement_, plan_);
    if (cache) {
      if (const std::string ignored = ignored_by_mapped_weights(config); !ignored.empty()) {
        log_event(LogLevel::kWarning, "mapped_weights_not_placed", "ignored", ignored);
      }
      weights_->use(std::move(*cache));
    } else if (plan_.on_device) {
      SLUICE_TRY_VOID(weights_->allocate_on(*device_->memory(), plan_.weight_bytes));
    } else {
      SLUICE_TRY(const auto arena,
                 weights_->allocate(plan_.weight_bytes, pages_of(config, Pages::kHuge)));
      place(arena, placement_);
    }
    return planned.spec->build(own,
                               {.activation_bits = config.activation_bits,
                                .max_model_len = plan_.max_model_len,
                                .memory = device_->memory()},
                               *weights_);
  }();
  text_reader.join();
  if (!model) return tl::unexpected(std::move(model).error());
  if (!text) return tl::unexpected(std::move(text).error());
  if (!plan_.on_device) {
    cache_writer_ = planned.packed.write(weights_->arena(), weights_->matrix_hashes());
  }
  text_ = std::move(*text);
  model_ = std::move(*model);
  fingerprint_ =
      fingerprint_of(content_hash(*checkpoint_, *weights_), config, planned.model, plan_);
  return {};
}

// Everything else of the plan.
Expected<void> ModelRunner::allocate(const StepBounds& bounds, const Config& config) {
  kernels::DeviceMemory* const memory = device_->memory();
  const auto pages = pages_of(config, Pages::kHuge);
  SLUICE_TRY(arena_,
             kernels::DeviceBuffer::allocate(
                 memory, model_->arena_bytes(bounds), "activations", pages));
  if (memory == nullptr) {
    place(arena_.span(), placement_.share(0, config.tensor_parallel_size));
  }
  model_->bind(bounds, arena_.span());
  max_rows_ = static_cast<size_t>(bounds.max_logits);
  const int64_t logits_bytes = bounds.max_logits * int64_t{model_->config().vocab_size} *
                               static_cast<int64_t>(sizeof(float));
  SLUICE_TRY(logits_, kernels::DeviceBuffer::allocate(memory, logits_bytes, "logits"));
  exec_ = device_->context();
  if (memory == nullptr) return {};
  using kernels::DeviceBuffer;
  SLUICE_TRY(host_logits_, DeviceBuffer::allocate_pinned(*memory, logits_bytes, "logits"));
  SLUICE_TRY(workspace_,
             DeviceBuffer::allocate(memory,
                                    kernels::workspace_bytes(device_->type(),
                                                             bounds.max_tokens,
                                                             weights_->max_outputs()),
                                    "workspace"));
  SLUICE_TRY(device_batch_, DeviceBatch::create(*memory, batch_bounds_));
  SLUICE_TRY(sampling_, DeviceSampling::create(*memory, sampling_bounds_of(config)));
  exec_.workspace = workspace_.span();
  memory->wait();
  weights_->end_uploads();
  return {};
}

Expected<void> ModelRunner::add_followers(
    const Config& config,
    const PlannedModel& planned,
    std::vector<std::unique_ptr<Communicator>> communicators) {
  const int32_t size = config.tensor_parallel_size;
  CHECK_EQ(communicators.size(), static_cast<size_t>(size));
  std::vector<std::unique_ptr<ModelRank>> ranks;
  for (int32_t rank = 1; rank < size; ++rank) {
    const Placement placement = placement_.share(rank, size);
    SLUICE_TRY(auto device, make_device(config, DeviceType::kCpu, placement_, rank));
    SLUICE_TRY(const ModelConfig own, share_of(planned.model, rank, size));
    SLUICE_TRY(
        auto model,
        planned.spec->build(
            own,
            {.activation_bits = config.activation_bits, .max_model_len = plan_.max_model_len},
            *weights_));
    SLUICE_TRY(KvStorage storage,
               KvStorage::create(rank_groups(plan_, own),
                                 plan_.kv_dtype,
                                 plan_.block_size,
                                 pages_of(config, Pages::kSmall)));
    place(storage.bytes(), placement);
    SLUICE_TRY(AlignedBuffer arena,
               AlignedBuffer::allocate(model->arena_bytes(planned.bounds),
                                       "activations",
                                       pages_of(config, Pages::kHuge)));
    place(arena.span(), placement);
    model->bind(planned.bounds, arena.span());
    ModelRank& added = *ranks.emplace_back(std::make_unique<ModelRank>(
        std::move(device), std::move(model), std::move(storage), std::move(arena)));
    added.caches = layer_caches(*added.model, added.kv_storage);
    added.prefault =
        std::make_unique<Prefault>(added.kv_storage.bytes(), config.huge_pages == "transparent");
  }
  communicator_ = std::move(communicators.front());
  communicators.erase(communicators.begin());
  followers_ = std::make_unique<Followers>(std::move(ranks), std::move(communicators));
  return {};
}

// A step of padding rows alone, run once, as kernels are loaded and rotations computed by their
// first use, then recorded. Only the longest context bounds what a recorded step reads.
Expected<void> ModelRunner::record_steps(const Config& config) {
  buckets_.emplace(DecodeBuckets::sizes_of(config), static_cast<size_t>(batch_bounds_.num_groups));
  kernels::DeviceMemory& memory = *device_->memory();
  const InputBatch empty(batch_bounds_);
  for (size_t i = 0; i < buckets_->sizes().size(); ++i) {
    step_ = device_batch_->upload(buckets_->pad(empty.view(), i));
    step_.max_seq_len = plan_.max_model_len;
    model_->forward(context());
    model_->logits(context(), step_.logits_indices, logits());
    memory.wait();
    memory.begin_recording();
    model_->forward(context());
    model_->logits(context(), step_.logits_indices, logits());
    SLUICE_TRY(recorded_.emplace_back(), memory.end_recording());
  }
  memory.wait();
  return {};
}

ForwardContext ModelRunner::context() const {
  return {.exec = exec_,
          .batch = step_,
          .caches = caches_,
          .communicator = communicator_.get()};
}

void ModelRunner::wait_until_backed() const {
  if (prefault_) prefault_->wait();
  if (followers_) followers_->wait_until_backed();
}

void ModelRunner::execute(std::span<const KvBlockCopy> copies, const InputBatch& batch) {
  ForwardBatch host = batch.view();
  const std::optional<size_t> bucket =
      buckets_ && batch.prompt_rows().empty() ? buckets_->find(host) : std::nullopt;
  has_logits_ = bucket.has_value();
  if (bucket) host = buckets_->pad(host, *bucket);
  step_ = device_batch_ ? device_batch_->upload(host) : host;
  if (!step_.open_tokens.empty()) {
    kernels::take_tokens(exec_,
                         {.open = step_.open_tokens,
                          .chosen = sampling_->chosen(),
                          .token_ids = device_batch_->token_ids()});
  }
  if (followers_) followers_->start({.batch = &step_, .copies = copies});
  for (const KvBlockCopy& copy : copies) kv_storage_.copy_block(copy.group, copy.from, copy.to);
  if (bucket) {
    const kernels::TraceRange range(device_->type(), "recorded layers");
    return recorded_[*bucket]->run();
  }
  model_->forward(context());
  if (followers_) followers_->finish();
}

void ModelRunner::compute_logits() {
  if (!has_logits_) run_logits(step_.logits_indices);
}

void ModelRunner::compute_logits(std::span<const int32_t> rows) {
  run_logits(device_batch_ ? device_batch_->upload_rows(rows) : rows);
}

void ModelRunner::run_logits(std::span<const int32_t> rows) {
  CHECK_LE(rows.size(), max_rows_);
  if (rows.empty()) return;
  if (followers_) {
    followers_->start({.kind = RankJob::Kind::kLogits, .batch = &step_, .rows = rows});
  }
  model_->logits(context(), rows, logits());
  if (followers_) followers_->finish();
}

float* ModelRunner::begin_host_copy(size_t first, size_t count) {
  const size_t row = static_cast<size_t>(model_->config().vocab_size) * sizeof(float);
  kernels::DeviceMemory* const memory = device_->memory();
  std::byte* const from = logits_.data() + first * row;
  if (memory == nullptr) return reinterpret_cast<float*>(from);
  std::byte* const to = host_logits_.data() + first * row;
  memory->download(to, from, static_cast<int64_t>(count * row));
  is_copying_ = true;
  return reinterpret_cast<float*>(to);
}

void ModelRunner::wait_for_host_copies() {
  if (is_copying_) device_->memory()->wait();
  is_copying_ = false;
}

std::vector<KvGroupSpec> ModelRunner::kv_groups() const { return group_specs(*model_, plan_); }

}  // namespace sluice
