// SPDX-License-Identifier: Apache-2.0
#include "engine/draft/draft_model.h"

#include <algorithm>
#include <array>
#include <utility>

namespace sluice {
namespace {

InputBatch::Bounds batch_bounds(const StepBounds& bounds,
                                const DraftPlan& plan,
                                int32_t block_size) {
  return {.max_tokens = bounds.max_tokens,
          .max_seqs = bounds.max_seqs,
          .max_rows = bounds.max_logits,
          .tables = InputBatch::Bounds::tables_of(plan.kv_groups, plan.max_model_len, block_size)};
}

}  // namespace

DraftModel::Known::Known(const SamplingParams& sampling, int32_t block_size)
    : params(sampling), chain(block_size) {
  params.num_logprobs = 0;
}

DraftModel::DraftModel(const DraftPlan& plan, const PlannedDraft& planned, int32_t block_size)
    : source_(planned.source),
      plan_(plan),
      block_size_(block_size),
      num_known_ids_(planned.spec->is_head ? planned.model.head.target_vocab
                                           : planned.model.vocab_size),
      num_tokens_(planned.num_tokens),
      bounds_(planned.bounds),
      num_target_blocks_(plan_.kv_groups.front().num_blocks - plan_.num_own_blocks),
      index_(num_target_blocks_, block_size_),
      kept_(static_cast<size_t>(bounds_.max_seqs)),
      batch_(batch_bounds(bounds_, plan_, block_size_)),
      no_slots_(static_cast<size_t>(bounds_.max_seqs)) {
  rows_.reserve(static_cast<size_t>(bounds_.max_seqs));
  last_rows_.reserve(static_cast<size_t>(bounds_.max_seqs));
  decision_.scheduled.reserve(static_cast<size_t>(bounds_.max_seqs));
  decision_.token_ids.reserve(static_cast<size_t>(bounds_.max_tokens));
  positions_.reserve(static_cast<size_t>(bounds_.max_tokens));
  inputs_.reserve(static_cast<size_t>(bounds_.max_logits));
}

DraftModel::~DraftModel() = default;

Expected<std::unique_ptr<DraftModel>> DraftModel::create(const kernels::Device& device,
                                                         const Model* target,
                                                         PlannedDraft planned,
                                                         const DraftPlan& plan,
                                                         const Placement& placement,
                                                         const Config& config) {
  std::unique_ptr<DraftModel> model(new DraftModel(plan, planned, config.block_size));
  SLUICE_TRY_VOID(model->allocate(device, target, std::move(planned), placement, config));
  return model;
}

Expected<void> DraftModel::allocate(const kernels::Device& device,
                                    const Model* target,
                                    PlannedDraft planned,
                                    const Placement& placement,
                                    const Config& config) {
  const DraftChoice::Bounds choice = choice_bounds_of(planned);
  checkpoint_ = std::move(planned.checkpoint);
  weights_ = std::make_unique<WeightStore>(*checkpoint_, device.type());
  kernels::DeviceMemory& memory = device.memory();
  if (memory.is_host()) {
    SLUICE_TRY(
        const auto arena,
        weights_->allocate(plan_.weight_bytes, pages_of(config, AlignedBuffer::Pages::kHuge)));
    place_memory(arena, placement);
  } else {
    SLUICE_TRY_VOID(weights_->allocate_on(memory, plan_.weight_bytes));
  }
  SLUICE_TRY(choice_, DraftChoice::create(device, choice, checkpoint_->id_offsets()));
  if (is_head()) {
    SLUICE_TRY(head_rows_,
               HeadRows::create(memory, *target, planned.model.head, head_rows_bounds_of(bounds_)));
  }
  SLUICE_TRY(std::unique_ptr<Model> model,
             planned.spec->build(std::move(planned.model),
                                 {.activation_bits = config.activation_bits,
                                  .max_model_len = plan_.max_model_len,
                                  .memory = &memory,
                                  .embedding = is_head() ? &target->embedding() : nullptr,
                                  .output = is_head() ? &target->output() : nullptr},
                                 *weights_));
  const ModelRank::KvSizes kv = {
      .groups = plan_.kv_groups, .dtype = plan_.kv_dtype, .block_size = block_size_};
  const ModelRank::Bounds bounds = {.step = bounds_,
                                    .batch = batch_bounds(bounds_, plan_, block_size_),
                                    .largest = planned.largest,
                                    .max_model_len = plan_.max_model_len};
  SLUICE_TRY(rank_, ModelRank::create(device, std::move(model), bounds, kv, placement, config));
  weights_->end_uploads();
  return memory.is_host() ? Expected<void>() : record_passes(config);
}

// Records passes of one row per request: all passes of a call but the first.
Expected<void> DraftModel::record_passes(const Config& config) {
  if (is_head()) rank_->use_hidden(head_rows_->own_rows(rank_->model()));
  const std::vector<int32_t> sizes = DecodeBuckets::sizes_of(config, bounds_.max_logits);
  SLUICE_TRY_VOID(rank_->warm_up(sizes));
  SLUICE_TRY_VOID(rank_->record_steps(sizes));
  buckets_.emplace(sizes, plan_.kv_groups.size());
  return {};
}

void DraftModel::end(RequestId id) {
  const auto found = requests_.find(id);
  if (found == requests_.end()) return;
  if (found->second.place >= 0) kept_[static_cast<size_t>(found->second.place)] = nullptr;
  requests_.erase(found);
}

// Returns a place for the request's state, kept there from now on. It may be taken from a request
// that is in no call; a call has no more requests than there are places.
int32_t DraftModel::place_of(Known& request) {
  if (request.place >= 0) return request.place;
  auto found = std::ranges::find(kept_, nullptr);
  if (found == kept_.end()) {
    found = std::ranges::find_if(kept_, [this](const Known* k) { return k->call != num_calls_; });
    CHECK(found != kept_.end());
    (*found)->place = (*found)->carried = -1;
  }
  *found = &request;
  request.place = static_cast<int32_t>(found - kept_.begin());
  return request.place;
}

// Decides what to compute for a request: nothing when it exceeds the model's context or has fewer
// blocks than its tokens need.
DraftModel::Row DraftModel::row_of(const DraftTask& task, Known& request) const {
  const auto num_known = static_cast<int32_t>(task.known.size());
  Row row = {.request = &request};
  row.end = num_known;
  row.covered = static_cast<int32_t>(task.blocks.size()) * block_size_;
  const int32_t num_own = plan_.num_own_blocks / bounds_.max_seqs * block_size_;
  // The row of draft token d after the known ones is at num_known + d - 1; the last has none.
  const int32_t room = std::min(row.covered + num_own, plan_.max_model_len) - num_known;
  row.max = std::min({task.max, num_tokens_, kMaxDraftTokens, room + 1});
  if (room < 0) {
    row.begin = row.end;
    return row;
  }
  if (is_head()) {
    place_head(task, row);
  } else {
    place(task, row);
  }
  return row;
}

// Sets where the model's sequence begins, and which positions to compute.
void DraftModel::place(const DraftTask& task, Row& row) const {
  Known& request = *row.request;
  const auto caught_up_from = [&](int32_t position) {
    return std::max(0, position - kMaxDraftCatchUp) / block_size_ * block_size_;
  };
  const auto there_from = [&](int32_t floor) {
    request.floor = floor;
    return index_.find(request.chain, task.known, task.blocks, floor);
  };
  DraftKvIndex::Range there =
      there_from(request.is_new ? caught_up_from(std::max(task.num_cached_tokens,
                                                          row.end - kMaxDraftCatchUp))
                                : request.floor);
  if (!request.is_new && row.end - there.end > kMaxDraftCatchUp) {
    there = there_from(caught_up_from(row.end));
  }
  row.first = there.first;
  row.begin = std::min(there.end, row.end - 1);
}

// Like place(), for a head: after a gap its sequence begins at the block in which the target's
// states begin. A request without states is not computed.
void DraftModel::place_head(const DraftTask& task, Row& row) const {
  Known& request = *row.request;
  row.tapped = row.end - task.num_rows;
  if (request.carried == row.tapped - 1) row.tapped = request.carried;
  if (row.tapped >= row.end) {
    row.begin = row.end;
    return;
  }
  const auto there_from = [&](int32_t floor) {
    request.floor = floor;
    return index_.find(request.chain, task.known, task.blocks, floor);
  };
  const int32_t border = row.tapped / block_size_ * block_size_;
  const int32_t floor = std::min(request.floor, border);  // preemption may have lowered it
  DraftKvIndex::Range there = there_from(request.is_new ? border : floor);
  if (there.end < row.tapped && request.floor != border) there = there_from(border);
  row.first = there.first;
  row.begin = std::min(there.end, row.end - 1);
  CHECK_LE(row.first, row.begin);
}

// Takes the tasks with the fewest tokens first, while the pass has room; the last may be cut.
void DraftModel::plan_rows(std::span<const DraftTask> tasks) {
  CHECK_LE(tasks.size(), static_cast<size_t>(bounds_.max_seqs));
  rows_.clear();
  for (size_t i = 0; i < tasks.size(); ++i) {
    const auto found = requests_.find(tasks[i].id);
    if (found == requests_.end()) continue;
    found->second.call = num_calls_;
    Row row = row_of(tasks[i], found->second);
    row.task = i;
    if (row.begin < row.end) rows_.push_back(row);
  }
  std::ranges::sort(
      rows_, {}, [](const Row& row) { return std::pair(row.end - row.begin, row.task); });
  int32_t left = bounds_.max_tokens;
  for (Row& row : rows_) {
    const int32_t count = std::min(left, row.end - row.begin);
    row.is_caught_up = count == row.end - row.begin;
    row.end = row.begin + count;
    left -= count;
  }
  std::erase_if(rows_, [](const Row& row) { return row.begin == row.end; });
}

// Two requests may share a block without draft KV: one computes it now, and the other finds it
// there later.
void DraftModel::claim_rows(std::span<const DraftTask> tasks) {
  index_.begin_pass();
  // Rows of drafts are written after the known tokens and overwrite what the blocks held.
  for (const Row& row : rows_) {
    if (row.is_drafting()) {
      index_.forget(tasks[row.task].blocks, row.end, std::min(row.end + row.max - 1, row.covered));
    }
  }
  std::erase_if(rows_, [&](const Row& row) {
    const int32_t end = std::min(row.end, row.covered);
    return !index_.claim(tasks[row.task].blocks, row.first, std::min(row.begin, end), end);
  });
}

void DraftModel::begin_batch() {
  decision_.scheduled.clear();
  decision_.token_ids.clear();
  decision_.blocks.clear();
  if (head_rows_) head_rows_->begin();
  positions_.clear();
}

// Adds rows of a request; the caller adds their tokens. For attention the sequence begins at
// row.first, a block's beginning; rotations use positions.
void DraftModel::add_to_batch(const DraftTask& task, Row& row, int32_t begin, int32_t end) {
  ScheduledRequest item;
  item.id = task.id;
  item.num_computed_tokens = begin - row.first;
  item.num_scheduled_tokens = end - begin;
  if (row.is_drafting()) item.chosen = {item.end() - 1, item.end()};
  decision_.scheduled.push_back(item);
  for (int32_t position = begin; position < end; ++position) positions_.push_back(position);
  row.last = static_cast<int32_t>(positions_.size()) - 1;
  const auto first_block = static_cast<size_t>(row.first / block_size_);
  const auto num_blocks = static_cast<size_t>(ceil_div(end, block_size_));
  const size_t num_own = static_cast<size_t>(plan_.num_own_blocks / bounds_.max_seqs);
  for (size_t group = 0; group < plan_.kv_groups.size(); ++group) {
    for (size_t i = first_block; i < num_blocks; ++i) {
      const size_t behind = i - std::min(i, task.blocks.size());
      decision_.blocks.push_back(
          i < task.blocks.size()
              ? task.blocks[i]
              : BlockId(num_target_blocks_ + static_cast<int32_t>(row.task * num_own + behind)));
    }
  }
}

// Runs the pass and leaves the logits of the chosen rows.
void DraftModel::run_batch(const HiddenRows& hidden, bool may_replay) {
  batch_.build(decision_, no_slots_);
  ForwardBatch step = batch_.view();
  step.positions = positions_;
  step.max_seq_len = 1 + *std::ranges::max_element(positions_);
  const std::optional<size_t> bucket = buckets_ && may_replay ? buckets_->find(step) : std::nullopt;
  rank_->run({.kind = RankJob::Kind::kLayers, .batch = &step, .hidden = hidden, .bucket = bucket});
  if (!bucket) rank_->run({.kind = RankJob::Kind::kLogits, .rows = step.logits_indices});
}

// Adds the states of rows [begin, end) for a head, and keeps what the next call may need.
void DraftModel::add_states(const DraftTask& task, const Row& row) {
  const int32_t first_tapped = row.end - task.num_rows;
  for (int32_t i = row.begin; i < row.end; ++i) {
    if (i >= first_tapped) {
      head_rows_->add_tapped(task.first_row + i - first_tapped);
    } else if (i == row.request->carried) {
      head_rows_->add_kept(row.request->place);
    } else {
      head_rows_->add_unknown();
    }
  }
  if (task.num_rows == 0) return;
  head_rows_->keep(place_of(*row.request), task.first_row + task.num_rows - 1);
  row.request->carried = row.end - 1;
}

void DraftModel::first_pass(std::span<const DraftTask> tasks) {
  begin_batch();
  for (Row& row : rows_) {
    const DraftTask& task = tasks[row.task];
    for (int32_t i = row.begin; i < row.end; ++i) add_token(task.known[static_cast<size_t>(i)]);
    add_to_batch(task, row, row.begin, row.end);
    if (is_head()) add_states(task, row);
  }
  // A head's first pass reads states from elsewhere than the recorded passes.
  run_batch(is_head() ? head_rows_->gather(rank_->exec()) : HiddenRows{}, !is_head());
  for (Row& row : rows_) {
    const DraftTask& task = tasks[row.task];
    const int32_t end = std::min(row.end, row.covered);
    index_.note(row.request->chain, task.known, task.blocks, row.begin, end);
    if (row.is_caught_up) row.request->is_new = false;
  }
}

// Runs one row, the token drafted last, for each request that goes on.
void DraftModel::next_pass(std::span<const DraftTask> tasks, std::span<const Draft> drafts) {
  begin_batch();
  last_rows_.clear();
  for (Row& row : rows_) {
    const Draft& draft = drafts[row.task];
    const int32_t position = row.end + draft.size - 1;
    last_rows_.push_back(row.last);
    add_token(draft.guessed().back());
    add_to_batch(tasks[row.task], row, position, position + 1);
  }
  run_batch(
      is_head() ? head_rows_->gather_own(rank_->exec(), rank_->model(), last_rows_) : HiddenRows{},
      true);
}

// Chooses a token for each drafting request by the target's rules; rows_ keeps the requests that
// want another token.
void DraftModel::choose(std::span<const DraftTask> tasks, std::span<Draft> drafts) {
  inputs_.clear();
  for (const Row& row : rows_) {
    const DraftTask& task = tasks[row.task];
    const Draft& draft = drafts[row.task];
    SamplerInput& input = inputs_.emplace_back();
    input.params = &row.request->params;
    input.num_prompt_tokens = task.num_prompt_tokens;
    input.num_generated = row.end - task.num_prompt_tokens + draft.size;
    if (!reads_tokens(*input.params)) continue;
    input.tokens = {.committed = task.known, .tail = draft.guessed()};
  }
  if (inputs_.empty()) return;
  const std::span<const SamplerResult> results =
      choice_->choose(rank_->exec(), rank_->logits(), inputs_);
  size_t next = 0;
  std::erase_if(rows_, [&](const Row& row) {
    const SamplerResult& result = results[next++];
    Draft& draft = drafts[row.task];
    if (result.finish_reason == FinishReason::kError) return true;
    draft.push(result.token, bin_of(row.request->params, result.logprob));
    return draft.size >= row.max || result.finish_reason != FinishReason::kNone;
  });
}

// Bins by the model's probability of the token, separately for greedy and sampled requests: the
// likeliest token of an even distribution and a token drawn from it are accepted at different
// rates.
uint8_t DraftModel::bin_of(const SamplingParams& params, float logprob) {
  constexpr std::array<float, 7> kBounds = {0.02F, 0.1F, 0.3F, 0.7F, 1.4F, 2.5F, 4.5F};
  constexpr size_t kClasses = kBounds.size() + 1;
  static_assert(2 * kClasses == kNumConfidenceBins);
  const auto unsure =
      static_cast<size_t>(std::ranges::upper_bound(kBounds, -logprob) - kBounds.begin());
  const size_t sure = kClasses - 1 - unsure;
  return static_cast<uint8_t>(sure + (params.temperature > 0.3F ? kClasses : 0));
}

void DraftModel::propose(std::span<const DraftTask> tasks, std::span<Draft> drafts) {
  CHECK_EQ(tasks.size(), drafts.size());
  for (Draft& draft : drafts) draft.clear(source_);
  ++num_calls_;
  plan_rows(tasks);
  claim_rows(tasks);
  if (rows_.empty()) return;
  first_pass(tasks);
  std::erase_if(rows_, [](const Row& row) { return !row.is_drafting(); });
  choose(tasks, drafts);
  while (!rows_.empty()) {
    next_pass(tasks, drafts);
    choose(tasks, drafts);
  }
}

}  // namespace sluice
