// SPDX-License-Identifier: Apache-2.0
// Start and stop of an engine: its thread, which loads the model.
#include <malloc.h>

#include <chrono>
#include <exception>
#include <future>
#include <string>
#include <utility>

#include "engine/core/load_watch.h"
#include "engine/core/log.h"
#include "engine/draft/drafting.h"
#include "engine/handoff/handoff_config.h"
#include "engine/loop/engine_core.h"
#include "engine/loop/grammar_vocabulary.h"
#include "engine/loop/local_engine.h"
#include "engine/parallel/nccl.h"
#include "engine/parallel/nccl_node.h"
#include "engine/parallel/parallel.h"
#include "engine/parallel/peer_ranks.h"
#include "engine/plan/fingerprint.h"
#include "engine/plan/model_plan.h"
#include "engine/run/model_runner.h"
#include "engine/run/step_executor.h"
#include "engine/sampling/grammar/grammar_compiler.h"
#include "engine/spec/spec_config.h"
#include "engine/tiers/kv_event_publisher.h"
#include "engine/tiers/prefix_store.h"
#include "engine/tokenizer/tokenizer.h"
#include "engine/weights/generation_defaults.h"
#include "engine/weights/pooling_files.h"
#include "engine/weights/tokenizer_files.h"

namespace sluice {
namespace {

GrammarCompiler::Options grammar_options(const Config& config) {
  GrammarCompiler::Options options;
  options.cache_bytes = config.grammar_cache_size;
  options.compile.cpu_s = config.grammar_compile_timeout_s;
  constexpr int32_t kPatience = 6;  // as the knob's help says
  options.compile.wall_s = kPatience * config.grammar_compile_timeout_s;
  options.grammar.max_whitespace = config.max_json_whitespace;
  return options;
}

// 0: no layer has a window.
int32_t narrowest_window(const ModelConfig& model) {
  int32_t narrowest = 0;
  for (const LayerConfig& layer : model.layers) {
    if (layer.window > 0 && (narrowest == 0 || layer.window < narrowest)) narrowest = layer.window;
  }
  return narrowest;
}

RankGroups default_groups(const Config& config) {
  return {.on_cpu = make_local_ranks,
          .on_devices = [as_peers = !config.disable_custom_all_reduce]() -> Expected<ConnectRanks> {
            SLUICE_TRY(ConnectRanks library, open_nccl());
            return as_peers ? with_peers(std::move(library)) : library;
          },
          .on_nodes = [within = std::chrono::seconds(config.rank_init_timeout_s)] {
            return open_nccl_node({.within = within});
          }};
}

// Whether there are tiers below the prefix cache.
bool has_tiers(const Config& config) {
  return !config.kv_disk_path.empty() || config.kv_offloading_size > 0;
}

}  // namespace

LocalEngine::Core::Core(LocalEngine& owner,
                        const Config& config,
                        const SpecConfig& speculation,
                        std::unique_ptr<ModelRunner> model_runner,
                        const Tokenizer& tokenizer,
                        const std::optional<PoolingInfo>& pooling)
    : engine(owner),
      runner(std::move(model_runner)),
      kv({.block_size = config.block_size,
          // A token of an encoder depends on later tokens.
          .enable_prefix_caching = config.enable_prefix_caching && !runner->model().is_encoder,
          // One slot for restoring from a tier, and those waiting for other workers' KV.
          .max_num_seqs =
              config.max_num_seqs + 1 + (config.kv_listen.empty() ? 0 : config.max_num_seqs),
          .max_model_len = runner->plan().max_model_len},
         runner->kv_groups()),
      scheduler({.max_num_seqs = config.max_num_seqs,
                 .max_num_batched_tokens = max_step_tokens(config, runner->model()),
                 .max_chosen_rows = max_chosen_rows(config),
                 .step_target_ms = static_cast<double>(config.step_target_ms),
                 .max_prefill_share = 0.01 * config.max_prefill_share,
                 .max_fallback_share = 0.01 * config.kv_fallback_share,
                 .long_prefill_token_threshold = config.long_prefill_token_threshold,
                 .max_num_partial_prefills = config.max_num_partial_prefills,
                 .max_num_queued_reqs =
                     config.max_num_queued_reqs +
                     static_cast<int32_t>(Admission::extra_requests(config.max_num_queued_reqs)),
                 .max_model_len = runner->plan().max_model_len,
                 .priority_aging_ms = int64_t{1000} * config.priority_aging_s,
                 .whole_prompts = runner->model().is_encoder,
                 .restores_preempted = has_tiers(config) && config.preemption_mode != "recompute",
                 .speculation = {.max_tokens = speculation.num_speculative_tokens,
                                 .is_fixed = speculation.is_fixed},
                 .follows_drafts = runner->places_rows() && runner->draft_model() == nullptr &&
                                   !has_tiers(config) && !runner->model().is_recurrent(),
                 .steps_in_flight = runner->steps_in_flight(),
                 .preempt_every = config.debug_preempt_every},
                kv),
      orders(scheduler.num_slots()),
      executor(std::make_unique<StepExecutor>(
          *runner,
          StepExecutor::Options{
              .overlap = config.overlap,
              .num_slots = scheduler.num_slots(),
              .max_logprobs = config.max_logprobs,
              .end_tokens = tokenizer.end_tokens(),
              .label_tokens = pooling ? pooling->label_tokens : std::vector<TokenId>()})),
      drafting(std::make_unique<Drafting>(
          speculation, runner->model().vocab_size, tokenizer, kv, runner->draft_model())) {
  if (DraftModel* const model = runner->draft_model()) {
    model->use_end_tokens(tokenizer.end_tokens());
  }
  const auto max_seqs = static_cast<size_t>(config.max_num_seqs);
  notes.reserve(static_cast<size_t>(executor->depth()) + 1);
  outcome.results.reserve(max_seqs);
  outcome.aborted.reserve(max_seqs);
}

LocalEngine::Core::~Core() = default;

LocalEngine::LocalEngine(const Config& config)
    : config_(config),
      inbox_(static_cast<size_t>(config.max_num_queued_reqs) * 2 + 64),
      gate_(config) {}

LocalEngine::~LocalEngine() { stop(); }

bool LocalEngine::watch_kv_events(std::weak_ptr<KvEventWatcher> watcher, int64_t first) {
  if (events_ == nullptr) return false;
  events_->watch(std::move(watcher), first);
  return true;
}

void LocalEngine::watch_kv_transfers(KvTransferWatcher* watcher) {
  const std::scoped_lock lock(watcher_mutex_);
  transfer_watcher_ = watcher;
}

Expected<std::vector<NamedFile>> LocalEngine::tokenizer_files() const {
  return read_tokenizer_files(info_.path, info_.chat_template, tokenizer_->end_tokens());
}

std::string LocalEngine::failure() const { return core_->runner->group_failure(); }

Expected<std::unique_ptr<Engine>> LocalEngine::create(const Config& config,
                                                      const RankGroups& groups,
                                                      const OpenKvPeers& open_peers) {
  std::unique_ptr<LocalEngine> engine(new LocalEngine(config));
  std::promise<Expected<void>> loaded;
  std::future<Expected<void>> result = loaded.get_future();
  engine->thread_ = std::thread([self = engine.get(), &loaded, &groups, &open_peers] {
    Expected<void> status;
    try {
      status = self->load(groups, open_peers);
    } catch (const std::exception& error) {  // for want of memory or threads
      status = make_error(ErrorCode::kUnavailable,
                          std::string("the system has too little to start: ") + error.what());
    }
    const bool ready = status.has_value();
    // Followers that are told nothing take the end of this node for one in order.
    if (!ready && self->core_) self->core_->runner->fail_group(status.error().message);
    loaded.set_value(std::move(status));
    if (ready) {
      if (!self->core_->executor->is_threaded()) self->core_->runner->device().enter();
      self->core_->run();
    }
    self->core_.reset();
  });
  SLUICE_TRY_VOID(result.get());
  return engine;
}

Expected<void> LocalEngine::take_description(ModelRunner& runner) {
  CheckpointText text = runner.take_text();
  tokenizer_ = std::move(text.tokenizer);
  if (tokenizer_->vocab_size() > runner.model().vocab_size) {
    return make_error(ErrorCode::kDataLoss,
                      config_.model + ": tokenizer: found " +
                          std::to_string(tokenizer_->vocab_size()) + " tokens, the embedding has " +
                          std::to_string(runner.model().vocab_size) + " rows");
  }
  tell_loading(1, 1);  // unpacked parts have no bytes in earlier progress
  info_.architecture = runner.model().architecture;
  info_.path = config_.model;
  info_.chat_template = std::move(text.chat_template);
  info_.vocab_size = runner.model().vocab_size;
  info_.max_model_len = runner.plan().max_model_len;
  info_.num_parameters = runner.num_parameters();
  info_.system_fingerprint = runner.fingerprint();
  info_.backend = runner.device().name();
  info_.memory_plan = runner.plan().describe();
  SLUICE_TRY(std::optional<Pooling> pooling,
             read_pooling(config_,
                          runner.checkpoint(),
                          *tokenizer_,
                          {.hidden = runner.model().hidden,
                           .num_labels = runner.model().num_labels,
                           .max_model_len = runner.plan().max_model_len,
                           .is_encoder = runner.model().is_encoder,
                           .lacks_output = runner.model().lacks_output,
                           .has_segments = runner.model().num_segments > 1,
                           .unseen = runner.model().num_segments * runner.model().vocab_size,
                           .window = narrowest_window(runner.model())}));
  if (pooling) {
    info_.system_fingerprint = pooled_fingerprint(info_.system_fingerprint, *pooling);
    info_.pooling = std::move(pooling->info);
    pooled_padding_ = pooling->padding;
    SLUICE_TRY(pooled_layers_, PooledOperators::create(std::move(pooling->layers), config_.isa));
  }
  SLUICE_TRY(const GenerationDefaults defaults,
             read_generation_defaults(config_, runner.checkpoint()));
  if (defaults.end_tokens) {
    const Expected<void> replaced = tokenizer_->replace_more_ends(*defaults.end_tokens);
    if (!replaced) {
      const bool is_override = !config_.override_generation_config.empty();
      return make_error(
          replaced.error().code,
          std::string(is_override ? "--override-generation-config" : "--generation-config") + ": " +
              replaced.error().message);
    }
  }
  info_.sampling = defaults.sampling;
  info_.max_output_tokens = defaults.max_output_tokens;
  if (!defaults.summary.empty()) {
    log_event(LogLevel::kInfo, "sampling_defaults", "of_the_model", defaults.summary);
  }
  return {};
}

Expected<void> LocalEngine::load(const RankGroups& groups, const OpenKvPeers& open_peers) {
  SLUICE_TRY(const KvEventsOptions events, parse_kv_events_config(config_.kv_events_config));
  SLUICE_TRY(const SpecConfig speculation, parse_spec_config(config_.speculative_config));
  for (const std::string& key : speculation.without_meaning) {
    log_event(LogLevel::kWarning, "speculative_config_without_meaning", "key", key);
  }
  SLUICE_TRY(const HandoffConfig handoff, handoff_config(config_));
  for (const std::string& member : handoff.without_meaning) {
    log_event(LogLevel::kWarning, "kv_transfer_config_without_meaning", "member", member);
  }
  SLUICE_TRY(auto runner, ModelRunner::create(config_, groups));
  if (const Expected<void> described = take_description(*runner); !described) {
    runner->fail_group(described.error().message);
    return described;
  }
  core_ = std::make_unique<Core>(
      *this, config_, speculation, std::move(runner), *tokenizer_, info_.pooling);
  grammars_ = std::make_unique<GrammarCompiler>(
      [this] { return grammar_vocabulary(*tokenizer_, info_.vocab_size); },
      grammar_options(config_),
      [this] { inbox_.push_urgent(WakeCommand{}); });
  if (events.is_enabled) {
    SLUICE_TRY(events_,
               KvEventPublisher::create(events, config_.block_size, core_->runner->kv_groups()));
    core_->kv.set_event_sink(*events_);
  }
  core_->holders.push_back(make_grammar_holder(core_->requests));
  SLUICE_TRY_VOID(open_handoff(handoff, open_peers));
  if (has_tiers(config_)) {
    SLUICE_TRY(core_->store,
               PrefixStore::create(config_,
                                   info_.system_fingerprint,
                                   core_->runner->kv_storage(),
                                   core_->kv,
                                   events_.get(),
                                   [this] { inbox_.push_urgent(WakeCommand{}); }));
    core_->holders.push_back(make_store_holder(*core_->store, core_->scheduler));
  }
  if (config_.preemption_mode == "swap" && !core_->store) {
    return make_error(ErrorCode::kInvalidArgument,
                      "--preemption-mode swap needs --kv-offloading-size or --kv-disk-path",
                      "preemption-mode");
  }
  // Returns memory used only for loading to the system: as much as a tokenizer takes.
  malloc_trim(0);
  last_progress_ns_ = now_ns();
  core_->publish_stats();
  return {};
}

void LocalEngine::stop() {
  const std::scoped_lock lock(join_mutex_);
  if (!thread_.joinable()) return;
  draining_ = true;
  inbox_.push_urgent(StopCommand{});
  thread_.join();
}

Expected<void> run_follower_node(const Config& config) {
  return run_follower_node(config, default_groups(config));
}

Expected<void> run_follower_node(const Config& config, const RankGroups& groups) {
  return ModelRunner::follow(config, groups);
}

void prepare_node_process(const Config& config) {
  if (config.nnodes > 1) prepare_nccl_environment();
}

std::optional<int> run_helper_process(int argc, const char* const* argv) {
  if (!is_compile_worker(argc, argv)) return std::nullopt;
  return run_compile_worker();
}

Expected<std::unique_ptr<Engine>> create_engine(const Config& config) {
  return create_worker_engine(config, {});
}

Expected<std::unique_ptr<Engine>> create_worker_engine(const Config& config,
                                                       const OpenKvPeers& open_peers) {
  return LocalEngine::create(config, default_groups(config), open_peers);
}

Expected<std::unique_ptr<Engine>> create_engine(const Config& config, const RankGroups& groups) {
  return LocalEngine::create(config, groups, {});
}

}  // namespace sluice
