// SPDX-License-Identifier: Apache-2.0
// How a model comes to run: its devices, weights and ranks, their links, and recorded steps.
#include <algorithm>
#include <chrono>
#include <thread>

#include "engine/core/log.h"
#include "engine/core/node_watch.h"
#include "engine/models/rank_share.h"
#include "engine/parallel/rank_group.h"
#include "engine/parallel/rank_transport.h"
#include "engine/plan/fingerprint.h"
#include "engine/rank/followers.h"
#include "engine/rank/process_links.h"
#include "engine/run/model_runner.h"
#include "engine/run/rank_processes.h"
#include "engine/sampling/sampler.h"
#include "engine/weights/gguf_parse.h"

namespace sluice {
namespace {

using Pages = AlignedBuffer::Pages;

// Calls body(rank) for all ranks concurrently, rank 0 on this thread.
template <typename Body>
void side_by_side(int32_t num_ranks, const Body& body) {
  std::vector<std::thread> threads;
  for (int32_t rank = 1; rank < num_ranks; ++rank) threads.emplace_back([&, rank] { body(rank); });
  body(0);
  for (std::thread& thread : threads) thread.join();
}

// All nodes then have these words, unless the error only follows from another reason, which this
// node names, too.
tl::unexpected<Error> fail_with(RankGroup& group, const Error& error) {
  group.fail(error.message);
  return make_error(error.code, group.why(), error.param);
}

// Whether this process has one stage of several, or a rank of it.
bool has_stage_alone(const Config& config) { return num_node_stages(config) > 1; }

}  // namespace

Expected<std::unique_ptr<ModelRunner>> ModelRunner::create(const Config& config,
                                                           const RankGroups& groups) {
  SLUICE_TRY(PlannedDevices planned, plan_on_devices(config));
  ConnectRanks connect = [&groups](std::span<const DeviceRank> ranks) {
    return groups.on_cpu(static_cast<int32_t>(ranks.size()));
  };
  if (planned.model.plan.on_device && config.tensor_parallel_size > 1) {
    const Expected<void> found = config.nnodes > 1
                                     ? groups.on_nodes().map([](const ConnectNode&) {})
                                     : groups.on_devices().map([&](auto made) { connect = made; });
    if (!found && config.device == "cuda") return tl::unexpected(found.error());
    if (!found) {
      log_event(LogLevel::kWarning, "cpu_chosen", "reason", found.error().message);
      Config on_cpu = config;
      on_cpu.device = "cpu";
      SLUICE_TRY(planned, plan_on_devices(on_cpu));
    }
  }
  std::unique_ptr<ModelRunner> runner(new ModelRunner());
  if (config.nnodes > 1) {
    SLUICE_TRY(runner->group_, lead_nodes(config, planned.model.plan));
  }
  const Expected<void> ready = runner->start(planned, connect, config, groups);
  if (ready) return runner;
  if (!runner->group_) return tl::unexpected(ready.error());
  return fail_with(*runner->group_, ready.error());
}

Expected<void> ModelRunner::start(PlannedDevices& planned,
                                  const ConnectRanks& connect_ranks,
                                  const Config& config,
                                  const RankGroups& groups) {
  SLUICE_TRY_VOID(load(planned, config));
  SLUICE_TRY_VOID(connect(connect_ranks, config));
  if (group_) SLUICE_TRY_VOID(join_nodes(config, groups));
  if (has_stage_alone(config)) {
    const int32_t num_stages = config.pipeline_parallel_size;
    steps_in_flight_ = groups.steps_in_flight.value_or(num_stages);
    CHECK(steps_in_flight_ >= 1);
    CHECK_LE(steps_in_flight_, most_steps_in_flight(num_stages));
  }
  if (!device().memory().is_host()) SLUICE_TRY_VOID(record_steps(config, group_.get()));
  SLUICE_TRY_VOID(add_sampling(config));
  back_first();
  add_links(group_.get(), config);
  return {};
}

// Ranks of this stage get a job when rank 0 runs it, those of others also earlier.
void ModelRunner::add_links(RankGroup* group, const Config& config) {
  if (group != nullptr) {
    const int32_t of_stage = stage_team(0, group->size(), num_node_stages(config)).size;
    const auto add = [&](int32_t first, int32_t end) {
      if (first == end) return;
      links_.push_back(std::make_unique<ProcessLinks>(*group, first, end, bounds_.batch));
    };
    add(of_stage, group->size());
    add(1, of_stage);
  }
  if (ranks_.size() == 1) return;
  links_.push_back(std::make_unique<Followers>(std::span(ranks_).subspan(1)));
}

// A cache that requests meet at once finds memory there, as far as that takes no time.
void ModelRunner::back_first() {
  constexpr auto kMostTime = std::chrono::milliseconds(60);
  const auto until = std::chrono::steady_clock::now() + kMostTime;
  for (size_t group = 0; group < plan_.kv_groups.size(); ++group) {
    while (back_ahead(static_cast<int32_t>(group), 0)) {
      if (std::chrono::steady_clock::now() > until) return;
    }
  }
}

Expected<void> ModelRunner::follow(const Config& asked, const RankGroups& groups) {
  SLUICE_TRY(JoinedNodes joined, join_nodes_of(asked));
  tell_node_stage(NodeStage::kLoading);
  ModelRunner self;
  if (const Expected<void> ready = self.start_following(joined, groups); !ready) {
    return fail_with(*joined.group, ready.error());
  }
  self.device().enter();
  tell_node_stage(NodeStage::kReady);
  RankFrameReader::Bounds bounds = {
      .rank = self.bounds_,
      .vocab_size = self.model().vocab_size,
      .groups = self.plan_.kv_groups,
      .takes_earlier_rows = has_stage_alone(joined.config) && self.model().stage.is_first()};
  if (self.buckets_) {
    bounds.recorded_rows.assign(self.buckets_->sizes().begin(), self.buckets_->sizes().end());
    bounds.num_chosen = self.bounds_.step.max_logits;
  }
  return follow_rank_0(*joined.group,
                       RankFrameReader(std::move(bounds)),
                       [&self](const RankJob& job) { self.run(job); });
}

Expected<void> ModelRunner::start_following(const JoinedNodes& joined, const RankGroups& groups) {
  const Config& config = joined.config;
  SLUICE_TRY(PlannedDevices planned, plan_on_devices(config));
  SLUICE_TRY_VOID(joined.apply_blocks(planned.model.plan));
  if (planned.model.plan.on_device) {
    SLUICE_TRY_VOID(groups.on_nodes());  // a library that is missing is found before the weights
  }
  SLUICE_TRY_VOID(load(planned, config));
  SLUICE_TRY_VOID(tell_node_0(*joined.group, loaded(config)));
  const auto threads = [](std::span<const DeviceRank> ranks) {
    return make_local_ranks(static_cast<int32_t>(ranks.size()));
  };
  SLUICE_TRY_VOID(connect(threads, config));
  SLUICE_TRY_VOID(connect_nodes(*joined.group, config, groups));
  if (plan_.on_device) SLUICE_TRY_VOID(record_steps(config, joined.group.get()));
  add_links(nullptr, config);
  return {};
}

Expected<void> ModelRunner::join_nodes(const Config& config, const RankGroups& groups) {
  const LoadedModel own = loaded(config);
  SLUICE_TRY(const uint64_t content, hear_nodes(*group_, own, num_node_stages(config)));
  if (has_stage_alone(config)) {
    fingerprint_ = fingerprint_of(*checkpoint_, content, config, model(), plan_);
  }
  return connect_nodes(*group_, config, groups);
}

LoadedModel ModelRunner::loaded(const Config& config) const {
  const bool is_part = has_stage_alone(config);
  return {.fingerprint = fingerprint_,
          .part_content = is_part ? weights_.front()->content_hash() : 0};
}

Expected<void> ModelRunner::connect_nodes(RankGroup& group,
                                          const Config& config,
                                          const RankGroups& groups) {
  ModelRank& rank = *ranks_.front();
  if (plan_.on_device) {
    SLUICE_TRY(const ConnectNode connect_node, groups.on_nodes());
    rank.device().memory().enter();
    SLUICE_TRY(auto communicator, connect_node(group, rank.device_rank(0)));
    rank.connect(std::move(communicator));
    return {};
  }
  SLUICE_TRY(
      RankTransport made,
      connect_processes(
          group, config.kv_transport, ModelRank::exchange_sizes(rank.model(), bounds_.step)));
  for (auto* const end : {&made.rank, &made.stage}) {
    if (groups.around_nodes && *end != nullptr) *end = groups.around_nodes(std::move(*end));
  }
  if (made.rank != nullptr) rank.connect(std::move(made.rank));
  if (made.stage != nullptr) rank.connect_stages(std::move(made.stage));
  return {};
}

Expected<void> ModelRunner::load(PlannedDevices& planned, const Config& config) {
  PlannedModel& model = planned.model;
  checkpoint_ = std::move(model.checkpoint);
  plan_ = model.plan;
  placement_ = std::move(planned.placement);
  bounds_ = {.step = model.bounds,
             .batch = batch_bounds_of(
                 model.bounds, plan_.max_model_len, plan_.block_size, plan_.kv_groups),
             .largest = model.largest,
             .max_model_len = plan_.max_model_len};
  devices_ = std::move(planned.devices);
  // Reading vocabularies takes as long as a small model's weights and can use other cores.
  Expected<CheckpointText> text;
  std::jthread text_reader([&] { text = checkpoint_->text(); });
  Expected<void> made = allocate_weights(model, config);
  if (made) made = make_ranks(model, config);
  text_reader.join();
  SLUICE_TRY_VOID(std::move(made));
  SLUICE_TRY(text_, std::move(text));
  if (model.draft) SLUICE_TRY_VOID(load_draft(*model.draft, config));
  const WeightStore& weights = *weights_.front();
  cache_writer_ = model.packed.write(weights.arena(), weights.matrix_hashes());
  const uint64_t content = has_stage_alone(config) ? 0 : weights.content_hash();
  fingerprint_ = fingerprint_of(*checkpoint_, content, config, model.model, plan_);
  return {};
}

// Makes device ranks concurrently; host ranks take the same weights in turn.
Expected<void> ModelRunner::make_ranks(const PlannedModel& planned, const Config& config) {
  const int32_t size = local_ranks(config).count;
  std::vector<Expected<std::unique_ptr<ModelRank>>> made(static_cast<size_t>(size));
  const auto make = [&](int32_t rank) {
    made[static_cast<size_t>(rank)] = make_rank(planned, config, rank);
  };
  if (plan_.on_device) {
    side_by_side(size, make);
  } else {
    // A failure to take from the store would recur on every rank.
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

// Allocates one store for all host ranks, which read the same bytes, or one per device.
Expected<void> ModelRunner::allocate_weights(PlannedModel& planned, const Config& config) {
  using Hashed = WeightStore::Hashed;
  if (plan_.on_device) {
    for (size_t i = 0; i < devices_.size(); ++i) {
      weights_.push_back(
          std::make_unique<WeightStore>(*checkpoint_,
                                        DeviceType::kCuda,
                                        WeightStore::Kept::kShare,
                                        i == 0 ? Hashed::kTensors : Hashed::kShares));
    }
    return {};
  }
  WeightStore& weights = *weights_.emplace_back(
      std::make_unique<WeightStore>(*checkpoint_, DeviceType::kCpu, kept_weights(config)));
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

Expected<void> ModelRunner::load_draft(PlannedDraft& planned, const Config& config) {
  if (!planned.spec->is_head) {
    SLUICE_TRY(const CheckpointText text, planned.checkpoint->text());
    SLUICE_TRY_VOID(
        check_draft_vocabulary(*text_.tokenizer, *text.tokenizer, planned.checkpoint->path()));
  }
  SLUICE_TRY(draft_model_,
             DraftModel::create(ranks_.front()->device(),
                                &ranks_.front()->model(),
                                std::move(planned),
                                *plan_.draft,
                                placement_,
                                config));
  return {};
}

Expected<std::unique_ptr<ModelRank>> ModelRunner::make_rank(const PlannedModel& planned,
                                                            const Config& config,
                                                            int32_t index) const {
  const LocalRanks local = local_ranks(config);
  const kernels::Device& device = *devices_[static_cast<size_t>(index)];
  kernels::DeviceMemory& memory = device.memory();
  memory.enter();
  WeightStore& weights = *weights_[std::min(static_cast<size_t>(index), weights_.size() - 1)];
  if (!memory.is_host()) SLUICE_TRY_VOID(weights.allocate_on(memory, plan_.weight_bytes));
  SLUICE_TRY(const ModelConfig own,
             model_of_rank(planned.model, config, local.first + index));
  SLUICE_TRY(std::unique_ptr<Model> model,
             planned.spec->build(own,
                                 {.activation_bits = config.activation_bits,
                                  .max_model_len = plan_.max_model_len,
                                  .memory = &memory,
                                  .taps = taps_of(planned)},
                                 weights));
  const ModelRank::KvSizes kv = {
      .groups = plan_.kv_groups, .dtype = plan_.kv_dtype, .block_size = plan_.block_size};
  SLUICE_TRY(auto made,
             ModelRank::create(
                 device,
                 std::move(model),
                 bounds_,
                 kv,
                 placement_.share(index % local.at_once, local.at_once),
                 config));
  weights.end_uploads();
  return made;
}

// Connects the ranks of each stage, then the first ones of all; a single rank has no peers.
Expected<void> ModelRunner::connect(const ConnectRanks& connect_ranks, const Config& config) const {
  const auto connect_some = [&](size_t first, size_t step, size_t end, auto connected) {
    std::vector<DeviceRank> ends;
    for (size_t i = first; i < end; i += step) {
      ends.push_back(ranks_[i]->device_rank(static_cast<int32_t>(i)));
    }
    if (ends.size() == 1) return Expected<void>();
    return connect_ranks(ends).map([&](auto communicators) {
      CHECK_EQ(communicators.size(), ends.size());
      for (size_t i = 0; i < ends.size(); ++i) {
        (*ranks_[first + i * step].*connected)(std::move(communicators[i]));
      }
    });
  };
  const auto of_stage = static_cast<size_t>(local_ranks(config).at_once);
  for (size_t first = 0; first < ranks_.size(); first += of_stage) {
    SLUICE_TRY_VOID(connect_some(first, 1, first + of_stage, &ModelRank::connect));
  }
  return connect_some(0, of_stage, ranks_.size(), &ModelRank::connect_stages);
}

Expected<void> ModelRunner::record_steps(const Config& config, RankGroup* group) {
  const auto on_each = [&](const auto& body) -> Expected<void> {
    std::vector<Expected<void>> results(ranks_.size());
    side_by_side(static_cast<int32_t>(ranks_.size()), [&](int32_t i) {
      ModelRank& rank = *ranks_[static_cast<size_t>(i)];
      rank.device().memory().enter();
      const Expected<void>& done = results[static_cast<size_t>(i)] = body(rank);
      if (done) return;
      if (group != nullptr) {
        group->fail("rank " + std::to_string(group->rank()) + ": " + done.error().message);
      }
      rank.fail_exchanges();
    });
    // After one rank fails, the others only report that; its own error tells the reason.
    Expected<void> first = {};
    for (Expected<void>& result : results) {
      if (result) continue;
      if (result.error().code != ErrorCode::kUnavailable) return std::move(result);
      if (first) first = std::move(result);
    }
    return first;
  };
  const std::vector<int32_t> sizes =
      DecodeBuckets::sizes_of(config, most_recorded_rows(bounds_.step));
  SLUICE_TRY_VOID(on_each([&](ModelRank& rank) { return rank.warm_up(sizes); }));
  SLUICE_TRY_VOID(on_each([&](ModelRank& rank) { return rank.record_steps(sizes); }));
  buckets_.emplace(sizes, plan_.kv_groups.size(), model().is_recurrent());
  return {};
}

// Allocates what chooses tokens on rank 0's device and the buffers that bring other logits to the
// host. Where the host reads logits in place, it chooses all tokens.
Expected<void> ModelRunner::add_sampling(const Config& config) {
  kernels::DeviceMemory& memory = device().memory();
  DeviceSampling::Bounds bounds = sampling_bounds_of(config, model().vocab_size);
  int64_t bytes = host_rows_bytes(model(), bounds_.step.max_logits);
  if (memory.is_host()) bytes = bounds.max_rows = 0;
  SLUICE_TRY(host_rows_, kernels::DeviceBuffer::allocate_pinned(memory, bytes, "logits"));
  SLUICE_TRY(sampling_, DeviceSampling::create(memory, bounds));
  ranks_.front()->use_chosen(sampling_->chosen());
  return {};
}

}  // namespace sluice
