// SPDX-License-Identifier: Apache-2.0
#include "engine/model_runner.h"

#include <xxhash.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <limits>
#include <system_error>
#include <thread>

#include "engine/core/log.h"
#include "engine/core/version.h"
#include "engine/models/rank_share.h"
#include "engine/sampling/sampler.h"
#include "engine/weights/gguf_parse.h"

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
  const std::string key = std::string(version()) + "|" + build_id() + "|cpu|" +
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

Expected<std::unique_ptr<kernels::Device>> make_device(const Config& config, int32_t rank) {
  const int32_t ranks = config.tensor_parallel_size;
  return kernels::Device::create(
      {.type = DeviceType::kCpu,
       .isa = config.isa,
       .threads = ranks == 1 ? config.threads : threads_per_rank(config),
       .placement = ranks == 1 ? placement_of(config) : placement_of(config).share(rank, ranks)});
}

// Where the system refuses, memory lies where it is first touched, which is slower and no error.
void place(std::span<std::byte> bytes, const Placement& placement) {
  if (bind_memory(bytes, placement)) return;
  log_event(LogLevel::kWarning,
            "memory_not_placed",
            "reason",
            "mbind: " + std::generic_category().message(errno));
}

std::string placement_text(const Config& config, const MemoryPlan& plan) {
  std::string pages = "huge pages " + config.huge_pages;
  if (config.huge_pages == "explicit") {
    int64_t count = 0;
    for (const int64_t bytes :
         {plan.weights_mapped ? 0 : plan.weight_bytes, plan.kv_bytes, plan.arena_bytes}) {
      count += ceil_div(bytes, AlignedBuffer::kHugePageBytes);
    }
    pages += ", " + std::to_string(count) + " of 2 MiB";
  }
  return placement_of(config).describe() + "; " + pages;
}

}  // namespace

Placement placement_of(const Config& config) {
  return make_placement(parse_numa_mode(config.numa), config.cpu_strict);
}

LoadFormat load_format(const Config& config) {
  return config.load_format == "dummy" ? LoadFormat::kDummy : LoadFormat::kAuto;
}

int32_t threads_per_rank(const Config& config) {
  const int32_t threads =
      config.threads > 0 ? config.threads : kernels::default_num_threads(placement_of(config));
  return std::max(1, threads / config.tensor_parallel_size);
}

Expected<PlannedModel> plan_model(const Config& config, int32_t num_threads) {
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
                    .num_threads = num_threads};
  WeightStore names_and_shapes(*planned.checkpoint);
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
  if (!config.packed_weights_cache.empty() && !planned.checkpoint->is_dummy()) {
    planned.packed =
        PackedPlace(config.packed_weights_cache, *planned.checkpoint, names_and_shapes.layout());
  }
  const int64_t vocab = planned.model.vocab_size;
  const int64_t ranks = config.tensor_parallel_size;
  SLUICE_TRY(planned.plan,
             plan_memory(config,
                         counted,
                         shape->kv_layouts(),
                         {.file_bytes = planned.checkpoint->file_bytes(),
                          .weight_bytes = names_and_shapes.packed_bytes(),
                          .rope_bytes_per_token = ranks * planned.model.rope_bytes(1),
                          .arena_bytes = arena_bytes,
                          .logits_bytes =
                              vocab * config.max_num_seqs * static_cast<int64_t>(sizeof(float)) +
                              Sampler::buffer_bytes(planned.model.vocab_size,
                                                    config.max_num_seqs,
                                                    config.max_logprobs,
                                                    num_threads)}));
  planned.plan.weights_mapped = planned.packed.has_file();
  planned.plan.placement = placement_text(config, planned.plan);
  return planned;
}

Expected<std::unique_ptr<ModelRunner>> ModelRunner::create(const Config& config) {
  const Placement placement = placement_of(config);
  SLUICE_TRY(auto device, make_device(config, 0));
  SLUICE_TRY(PlannedModel planned, plan_model(config, device->num_threads()));
  const MemoryPlan& plan = planned.plan;
  const int32_t ranks = config.tensor_parallel_size;
  SLUICE_TRY(const ModelConfig own, share_of(planned.model, 0, ranks));
  SLUICE_TRY(KvStorage storage,
             KvStorage::create(rank_groups(plan, own),
                               plan.kv_dtype,
                               plan.block_size,
                               pages_of(config, Pages::kSmall)));
  place(storage.bytes(), placement.share(0, ranks));

  const InputBatch::Bounds batch_bounds = {
      .max_tokens = planned.bounds.max_tokens,
      .max_seqs = config.max_num_seqs,
      .max_blocks_per_seq = static_cast<int32_t>(ceil_div(plan.max_model_len, plan.block_size)),
      .num_groups = static_cast<int32_t>(plan.kv_groups.size()),
      .block_size = plan.block_size};
  std::unique_ptr<ModelRunner> runner(new ModelRunner(batch_bounds, std::move(storage)));
  runner->device_ = std::move(device);
  runner->checkpoint_ = std::move(planned.checkpoint);
  runner->plan_ = plan;

  // Vocabularies take as long as the weights of a small model, and other cores.
  Expected<CheckpointText> text;
  std::thread text_reader([&] { text = runner->checkpoint_->text(); });
  runner->weights_ = std::make_unique<WeightStore>(*runner->checkpoint_);
  Expected<std::unique_ptr<Model>> model = [&]() -> Expected<std::unique_ptr<Model>> {
    auto cache = planned.packed.open();
    runner->plan_.weights_mapped = cache.has_value();
    if (cache) {
      runner->weights_->use(std::move(*cache));
    } else {
      SLUICE_TRY(const auto arena,
                 runner->weights_->allocate(plan.weight_bytes, pages_of(config, Pages::kHuge)));
      place(arena, placement);
    }
    return planned.spec->build(
        own,
        {.activation_bits = config.activation_bits, .max_model_len = plan.max_model_len},
        *runner->weights_);
  }();
  text_reader.join();
  if (!model) return tl::unexpected(std::move(model).error());
  if (!text) return tl::unexpected(std::move(text).error());
  runner->cache_writer_ =
      planned.packed.write(runner->weights_->arena(), runner->weights_->matrix_hashes());
  runner->text_ = std::move(*text);
  runner->model_ = std::move(*model);
  const uint64_t content = content_hash(*runner->checkpoint_, *runner->weights_);
  runner->fingerprint_ = fingerprint_of(content, config, planned.model, plan);

  SLUICE_TRY(runner->arena_,
             AlignedBuffer::allocate(runner->model_->arena_bytes(planned.bounds),
                                     "activations",
                                     pages_of(config, Pages::kHuge)));
  place(runner->arena_.span(), placement.share(0, ranks));
  runner->model_->bind(planned.bounds, runner->arena_.span());
  runner->max_rows_ = static_cast<size_t>(planned.bounds.max_logits);
  SLUICE_TRY(runner->logits_,
             AlignedBuffer::allocate(planned.bounds.max_logits * int64_t{planned.model.vocab_size} *
                                         static_cast<int64_t>(sizeof(float)),
                                     "logits",
                                     AlignedBuffer::Pages::kSmall));
  runner->caches_ = layer_caches(*runner->model_, runner->kv_storage_);
  runner->prefault_ =
      std::make_unique<Prefault>(runner->kv_storage_.bytes(), config.huge_pages == "transparent");
  if (ranks > 1) SLUICE_TRY_VOID(runner->add_followers(config, planned));
  return runner;
}

Expected<void> ModelRunner::add_followers(const Config& config, const PlannedModel& planned) {
  const int32_t size = config.tensor_parallel_size;
  std::vector<std::unique_ptr<ModelRank>> ranks;
  for (int32_t rank = 1; rank < size; ++rank) {
    const Placement placement = placement_of(config).share(rank, size);
    SLUICE_TRY(auto device, make_device(config, rank));
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
  std::vector<std::unique_ptr<Communicator>> communicators = make_local_ranks(size);
  communicator_ = std::move(communicators.front());
  communicators.erase(communicators.begin());
  followers_ = std::make_unique<Followers>(std::move(ranks), std::move(communicators));
  return {};
}

ForwardContext ModelRunner::context(const ForwardBatch& batch) const {
  return {.exec = device_->context(),
          .batch = batch,
          .caches = caches_,
          .communicator = communicator_.get()};
}

void ModelRunner::execute(std::span<const KvBlockCopy> copies, const InputBatch& batch) {
  const ForwardBatch view = batch.view();
  if (followers_) followers_->start({.batch = &view, .copies = copies});
  for (const KvBlockCopy& copy : copies) kv_storage_.copy_block(copy.group, copy.from, copy.to);
  model_->forward(context(view));
  if (followers_) followers_->finish();
}

std::span<float> ModelRunner::logits(const InputBatch& batch, std::span<const int32_t> rows) {
  CHECK_LE(rows.size(), max_rows_);
  auto* const floats = reinterpret_cast<float*>(logits_.data());
  const std::span<float> result(floats,
                                rows.size() * static_cast<size_t>(model_->config().vocab_size));
  if (rows.empty()) return result;
  const ForwardBatch view = batch.view();
  if (followers_) {
    followers_->start({.kind = RankJob::Kind::kLogits, .batch = &view, .rows = rows});
  }
  model_->logits(context(view), rows, floats);
  if (followers_) followers_->finish();
  // Nothing of such a step means anything: its requests fail as those do whose rows are not finite.
  if (communicator_ && communicator_->has_failed()) {
    std::ranges::fill(result, std::numeric_limits<float>::quiet_NaN());
  }
  return result;
}

std::vector<KvGroupSpec> ModelRunner::kv_groups() const { return group_specs(*model_, plan_); }

}  // namespace sluice
